"""Evidence by continuing episodes where units begin: values, and where success was lost."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continued import TALK, by_table, talked
from stubs import network, quick_jit

from rlcredit.branching import branch
from rlcredit.evidence import Context, Probing, continuations, exact_rows
from rlcredit.evidence.branch_value import branch_value
from rlcredit.evidence.omega_label import omega_label
from rlcredit.evidence.prover_value import prover_value
from rlcredit.evidence.shepherd_label import shepherd_label
from rlcredit.exact.tree import enumerate_episodes
from rlcredit.rollout import draw_problems
from rlcredit.sharding import make_mesh
from rlcredit.tasks import TASKS
from rlcredit.testing.grafts import graft
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import Layout, Price, Sampling

KEY = jax.random.key(7)

HOW = Sampling(0.8, legal=True)
POLICY, PARAMS = network()
TURNS = Probing(unit="turn", most_units=3, continuations=2)


def first_positions(limit):
    """[N, K, limit] where each turn begins, those after the last one left out."""
    mask, turn = np.asarray(talked().mask), np.asarray(talked().turn)
    found = np.full((*mask.shape[:2], limit), -1, np.int32)
    for n, k in np.ndindex(*mask.shape[:2]):
        before = -1
        for t in np.flatnonzero(mask[n, k]):
            if turn[n, k, t] != before and turn[n, k, t] < limit:
                found[n, k, turn[n, k, t]] = t
            before = turn[n, k, t]
    return found


@functools.cache
def on_the_tree():
    """(branch_value, its price), three lanes on each of two devices; (reward, mask, price) of the
    same branches made by hand, all at once on one.
    """
    layout = Layout(3, make_mesh(jax.devices()[:2]))
    context = Context(POLICY, None, None, TALK, HOW, layout, TURNS)
    positions = first_positions(3)

    def run(params, rollout):
        value = branch_value(context._replace(params=params), rollout, KEY)
        rows, price = branch(POLICY, params, TALK, rollout, positions, 2, KEY, sampling=HOW)
        return value, (rows.reward, rows.mask, price)

    return jax.tree.map(np.asarray, quick_jit(run)(PARAMS, talked()))


def test_it_is_the_mean_return_of_branches_from_where_each_unit_begins():
    """On any lanes and devices."""
    (found, own_price), (reward, mask, price) = on_the_tree()
    positions, rollout = first_positions(3), talked()
    mean = np.where(mask, reward, 0).sum(axis=-1).reshape(*positions.shape, 2).mean(axis=-1)
    number = np.minimum(np.asarray(rollout.turn), 2)  # the third one takes the rest
    wanted = np.take_along_axis(mean, np.maximum(number, 0), axis=-1)
    chosen = np.asarray(rollout.mask)
    np.testing.assert_allclose(found, np.where(chosen, wanted, 0), atol=1e-5)
    assert found.dtype == np.float32 and own_price[:3] == price[:3]
    assert (np.asarray(rollout.turn).max(axis=-1) > 3).any() and (positions < 0).any()
    branched = chosen & (np.asarray(rollout.branch_at) > 0)[..., None]
    assert branched.any() and (found[branched] > 0).all()


def test_the_policy_goes_on_or_the_reference():
    """Where a policy of number i earns i."""
    rollout = talked()
    context = Context(POLICY, 1.0, 2.0, TALK, HOW, probing=TURNS)

    def earned(policy, params, task, rollout, positions, continuations, key, **how):
        reward = jnp.full((4, positions[0].size * continuations, 1), params)
        return rollout._replace(reward=reward, mask=reward > 0), Price()

    with mock.patch.object(continuations, "branch", earned):
        own, other = (f(context, rollout, KEY)[0] for f in (branch_value, prover_value))
    np.testing.assert_array_equal(own, np.where(rollout.mask, 1, 0))
    np.testing.assert_array_equal(other, np.where(rollout.mask, 2, 0))


# Three choices that earn 0.4, 0.3 and 0.3 if they are right: one wrong choice and success is lost.
FREE = TASKS["bifurcation"](gaps=(0.4, 0.3, 0.3), base=0.0, filler=0, delay=0)
COUNT = 64


def at_once(problem, state, token, key):
    """The step of `FREE` that pays what a choice secures when it is made."""
    after = FREE.step(problem, state, token, key)
    return after._replace(reward=after.state.secured - state.secured)


@functools.cache
def on_the_chain():
    """(its 8 episodes, what is true of them, evidence by name, prices of the labels)."""
    task = FREE._replace(step=at_once)
    policy, params = network(vocabulary=len(task.vocabulary), seed=3)
    how = Sampling(temperature=2.0, legal=True)  # no choice is rare
    probing = Probing(unit="token", most_units=3, continuations=COUNT)
    context = Context(policy, params, params, task, how, Layout(16), probing)

    def run(problems, keys):
        rollout = enumerate_episodes(task, problems, legal=True, capacity=8).rollout
        rollout = rollout._replace(key=keys)
        truth, evidence, prices = exact_rows.exact_rows(context, rollout)[0], {}, {}
        for provider in (branch_value, shepherd_label, omega_label):
            found = provider(context, rollout, KEY)
            evidence[provider.__name__], prices[provider.__name__] = found
        return rollout._replace(key=None), truth, evidence, prices

    problems = draw_problems(task, jax.random.key(0), 1)[0]
    with mock.patch.object(exact_rows, "_capacity", lambda *_: 8):
        found = quick_jit(run)(problems, jax.random.split(KEY, 8)[None])
    return jax.tree.map(np.asarray, found)


def test_its_expectation_is_what_was_earned_and_the_exact_value():
    rollout, truth, evidence, _ = on_the_chain()
    earned = np.cumsum(rollout.reward, axis=-1) - rollout.reward
    wanted, checked = earned + truth.value[..., :-1], 0
    for k, t in np.argwhere(rollout.mask[0]):
        same = (rollout.tokens[0, :, :t] == rollout.tokens[0, k, :t]).all(axis=-1)
        chance, total = truth.probability[0, same], truth.total[0, same]
        mean = np.average(total, weights=chance)
        np.testing.assert_allclose(wanted[0, k, t], mean, atol=1e-5)
        deviation = np.sqrt(np.average((total - mean) ** 2, weights=chance))
        error = abs(evidence["branch_value"][0, k, t] - mean)
        assert error <= 4 * deviation / np.sqrt(COUNT) + 1e-5
        checked += error > 1e-3
    root = rollout.mask & (np.cumsum(rollout.mask, axis=-1) == 1)
    np.testing.assert_allclose(wanted[root], truth.value[..., :-1][root][0], atol=1e-5)
    assert checked > 12 and np.ptp(earned) > 0.5


def test_labels_say_from_where_on_success_was_out_of_reach():
    rollout, _, evidence, _ = on_the_chain()
    right = np.where(rollout.mask, rollout.reward > 0.1, True)
    wanted = rollout.mask & np.logical_and.accumulate(right, axis=-1)
    for name in ("shepherd_label", "omega_label"):
        assert evidence[name].dtype == np.float32
        np.testing.assert_array_equal(evidence[name], wanted, err_msg=name)
    assert sorted(wanted.sum(axis=-1).ravel()) == [0, 0, 0, 0, 1, 1, 2, 3]


def test_labels_cost_the_episodes_that_they_look_at():
    """A new episode from the end of unit u chooses the 2 - u tokens that are left."""
    rollout, _, _, prices = on_the_chain()
    assert prices["shepherd_label"].tokens_sampled == COUNT * 8 * (2 + 1)
    searched = 0
    for reward, mask in zip(rollout.reward[0], rollout.mask[0], strict=True):
        first, second, third = reward[mask] > 0.1
        if not (first and second and third):  # after unit 1; after unit 0 where it is lost by then
            searched += 1 if first and second else 1 + 2
    assert prices["omega_label"].tokens_sampled == COUNT * searched


def by_binary_search(alive):
    """(number of the unit that lost success, looks); alive: after each unit, the last one first."""
    low, high, looks = 0, len(alive) - 1, 0
    if alive[-1]:
        return len(alive), 0
    while low < high:
        middle, looks = (low + high) // 2, looks + 1
        low, high = (middle + 1, high) if alive[middle] else (low, middle)
    return low, looks


@pytest.mark.parametrize("most", [1, 4, 16])
def test_labels_of_units_of_any_number_and_length(most):
    """Also where success comes and goes, as it seems to with few episodes."""
    rng = np.random.default_rng(most)
    rollout = graft(rng, random_rollout(rng, 3, 4, 24))
    mask = np.asarray(rollout.mask)
    reward = np.where(mask & (rng.random(mask.shape) < 0.08), 1.0, 0).astype(np.float32)
    rollout = rollout._replace(reward=reward)
    alive, calls = (rng.random(mask.shape) < 0.5).astype(np.float32), []
    probing = Probing(unit="segment:3", most_units=most, continuations=1)
    context = Context(None, None, None, TALK, HOW, probing=probing)
    found, price = {}, {}
    for provider in (shepherd_label, omega_label):
        with mock.patch.object(continuations, "branch", by_table(alive, calls)):
            made = quick_jit(functools.partial(provider, context))(rollout, KEY)
        found[provider], price[provider] = jax.tree.map(np.asarray, made)
    wanted, looks, sizes = np.zeros((2, *mask.shape)), 0, set()
    for n, k in np.argwhere(mask.any(axis=-1)):
        at = np.flatnonzero(mask[n, k])
        number = np.minimum(np.arange(len(at)) // 3, most - 1)
        starts = at[np.unique(number, return_index=True)[1]]
        after = np.append(alive[n, k, starts[1:]], reward[n, k].sum() >= 1)
        first, looked = by_binary_search(after)
        wanted[:, n, k, at] = after[number], number < first
        looks += looked
        sizes.add(len(starts))
    np.testing.assert_array_equal(found[shepherd_label], wanted[0])
    np.testing.assert_array_equal(found[omega_label], wanted[1])
    assert price[omega_label].tokens_sampled == looks and max(sizes) <= most
    assert calls == [min(most, mask.shape[-1]), 1]  # the search is one program for all rounds
    assert len(sizes) > 1 or most == 1
