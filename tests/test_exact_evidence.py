"""The evidence `exact_value` and `exact_advantage`: what enumeration says of sampled episodes."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import distance, parameters, quick_jit
from tree_reference import CASES, LEGAL, SLIPPERY, leaves, one_of, policy_of, problems_of, worth

from rlcredit import sharding, train, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.branching import grow
from rlcredit.credit import measure
from rlcredit.cuts import every
from rlcredit.episode import play
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.evidence import exact_rows as module
from rlcredit.evidence.exact_rows import exact_rows
from rlcredit.exact import lookup
from rlcredit.exact.tree import enumerate_episodes
from rlcredit.score import score
from rlcredit.sharding import make_mesh
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import InputError, Layout

PROBLEMS, CAPACITY = 4, 192
# In `unseen` the policy is never told where its moves led.
TASK = {"maze": CASES["maze"], "unseen": TASKS["maze"](**SLIPPERY, regime="plan")}
POLICY, PARAMS = policy_of("maze")
WANTED = ("exact_value", "exact_advantage")


@functools.cache
def rollout(name):
    """Episodes of `maze`, the first of them empty; a tree with chances in it of `unseen`."""
    problems, keys = problems_of(TASK[name], PROBLEMS), jax.random.split(jax.random.key(5), 32)
    if name == "unseen":
        how = {"branching": (4, 2), "cut": every(1), "sampling": LEGAL}
        sampled = quick_jit(lambda *drawn: grow(POLICY, PARAMS, TASK[name], *drawn, **how)[0])
        return sampled(problems, keys[:PROBLEMS])

    def at_random(problem, state, number, key):
        allowed = TASK[name].legal(problem, state)
        return jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1))

    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, 8, axis=0), problems)
    played = quick_jit(lambda *drawn: play(TASK[name], *drawn, at_random))(repeated, keys)
    rows = jax.tree.map(
        lambda leaf: leaf.reshape(PROBLEMS, 8, *leaf.shape[2:]), played._replace(problem=None)
    )
    there = jnp.arange(8)[None, :, None] > 0
    return rows._replace(
        tokens=jnp.where(there, rows.tokens, 0), mask=there & rows.mask, problem=problems
    )


def context_of(name, params, devices):
    layout = Layout(mesh=make_mesh(jax.devices()[:devices]))
    return Context(POLICY, params, params, TASK[name], LEGAL, layout)


@functools.cache
def rows_of(name, devices):
    """(evidence, price) without the providers around it."""

    def call(params, rollout):
        truth, price = exact_rows(context_of(name, params, devices), rollout)
        advantage = jnp.where(rollout.mask, truth.advantage, 0)
        return {"exact_value": truth.value, "exact_advantage": advantage}, price

    with mock.patch.object(module, "_capacity", lambda *_: CAPACITY):  # drawing 64 mazes is slow
        found, price = quick_jit(call)(PARAMS, rollout(name))
    return jax.tree.map(np.asarray, found), jax.tree.map(int, price)


@functools.cache
def evidence(name):
    """(evidence, price); through the providers for `maze`."""
    if name == "unseen":
        return rows_of(name, 1)

    def call(params, rollout):
        context = context_of(name, params, 1)
        return measure(tuple(WANTED), context, rollout, jax.random.key(0))

    with mock.patch.object(module, "_capacity", lambda *_: CAPACITY):  # drawing 64 mazes is slow
        found, price = quick_jit(call)(PARAMS, rollout(name))
    return jax.tree.map(np.asarray, found), jax.tree.map(int, price)


@functools.cache
def found_rows(name):
    """(rows [N, K] of the trees, the trees) as `lookup.find` has them."""

    def both(rollout):
        tree = enumerate_episodes(TASK[name], rollout.problem, legal=True, capacity=CAPACITY)
        return lookup.find(TASK[name], tree, rollout), tree._replace(
            rollout=tree.rollout._replace(key=None)
        )

    return jax.tree.map(np.asarray, quick_jit(both)(rollout(name)))


@functools.cache
def reference(name):
    """[(episodes, Worth)] of each problem, by recursion."""
    task, found = TASK[name], []
    ask = quick_jit(
        lambda tokens, legal: score(POLICY, PARAMS, tokens, sampling=LEGAL, legal=legal).log_prob
    )
    for number in range(PROBLEMS):
        episodes = leaves(task, one_of(problems_of(task, PROBLEMS), number))
        empty = 256 - len(episodes)
        tokens = np.pad([leaf.tokens for leaf in episodes], ((0, empty), (0, 0)))
        legal = np.pad([leaf.legal for leaf in episodes], ((0, empty), (0, 0), (0, 0)))
        log_prob = np.asarray(ask(tokens.astype(np.int32), legal))[: len(episodes)]
        log_prob = np.where([leaf.mask for leaf in episodes], log_prob, 0)
        found.append((episodes, worth(episodes, log_prob)))
    return found


@pytest.mark.parametrize("name", TASK)
def test_it_is_what_the_recursion_says_of_the_same_episode(name):
    """Rewards of `warmer` tell where a move led, also where the tokens are alike."""
    rows, (found, _), checked = rollout(name), evidence(name), 0
    tokens, reward, mask = (np.asarray(part) for part in (rows.tokens, rows.reward, rows.mask))
    for n, (episodes, wanted) in enumerate(reference(name)):
        of_leaves = [np.asarray([leaf.tokens for leaf in episodes])]
        of_leaves.append(np.asarray([leaf.reward for leaf in episodes]))
        for k in np.flatnonzero(mask[n].any(axis=-1)):
            same = (of_leaves[0] == tokens[n, k]).all(axis=1)
            same &= np.isclose(of_leaves[1], reward[n, k], atol=1e-6).all(axis=1)
            values = np.unique(np.round(wanted.value[same], 4), axis=0)
            if len(values) != 1:  # two ways to earn the same, which only the state tells apart
                continue
            row = np.flatnonzero(same)[0]
            np.testing.assert_allclose(found["exact_value"][n, k], wanted.value[row], atol=1e-5)
            np.testing.assert_allclose(
                found["exact_advantage"][n, k], wanted.advantage[row], atol=1e-5
            )
            checked += 1
    assert checked >= 16


def test_episodes_are_found_by_their_answers_where_the_tokens_are_alike():
    row, tree = found_rows("unseen")
    rows = rollout("unseen")
    mask, tokens = np.asarray(rows.mask), np.asarray(rows.tokens)
    ambiguous = 0
    for n, k in np.argwhere(mask.any(axis=-1)):
        assert row[n, k] >= 0
        np.testing.assert_array_equal(tree.rollout.tokens[n, row[n, k]], tokens[n, k])
        np.testing.assert_allclose(tree.rollout.reward[n, row[n, k]], rows.reward[n, k], atol=1e-6)
        alike = (tree.rollout.tokens[n] == tokens[n, k]).all(axis=1)
        ambiguous += np.unique(tree.rollout.reward[n, alike], axis=0).shape[0] > 1
    assert ambiguous >= 3


@pytest.mark.parametrize("name", TASK)
def test_every_row_is_found_and_empty_ones_are_nan(name):
    rows, (found, _) = rollout(name), evidence(name)
    mask = np.asarray(rows.mask)
    there = mask.any(axis=-1)
    branched = there & (np.asarray(rows.branch_at) > 0)
    assert branched.any() == (name == "unseen") and not there.all()
    assert np.isfinite(found["exact_value"][there]).all()
    assert np.isnan(found["exact_value"][~there]).all()
    assert np.isfinite(found["exact_advantage"]).all()
    assert not found["exact_advantage"][~mask].any()


def test_gae_with_an_exact_critic_and_lambda_0_is_the_exact_advantage():
    rows, (found, _) = rollout("maze"), evidence("maze")
    value = np.nan_to_num(found["exact_value"])  # nan where a row is empty
    credit = quick_jit(lambda value: ADVANTAGES["gae"](rows, value=value, lambda_=0.0))(value)
    np.testing.assert_allclose(credit, found["exact_advantage"], atol=1e-5)
    assert np.abs(found["exact_advantage"]).max() > 0.01


def test_with_chance_the_answer_is_no_credit():
    rows, (found, _) = rollout("unseen"), evidence("unseen")
    value = np.nan_to_num(found["exact_value"])
    credit = quick_jit(lambda value: ADVANTAGES["gae"](rows, value=value, lambda_=0.0))(value)
    assert np.abs(credit - found["exact_advantage"]).max() > 0.01


def test_problems_may_be_spread_over_devices():
    (alone, price), (spread, same_price) = evidence("maze"), rows_of("maze", 4)
    for name in WANTED:
        np.testing.assert_allclose(spread[name], alone[name], atol=1e-5)
    assert price == same_price + same_price  # each of the two providers is charged in full


@pytest.mark.parametrize("name", TASK)
def test_the_price_is_the_whole_tree_once_for_each(name):
    lengths, choices = 0, 0
    for episodes, _ in reference(name):
        lengths += sum(leaf.length for leaf in episodes)
        taken = {
            (leaf.history[t], token)
            for leaf in episodes
            for t, token in enumerate(leaf.tokens)
            if leaf.mask[t]
        }
        choices += len(taken)
    price, times = evidence(name)[1], 2 if name == "maze" else 1  # two providers, or none
    assert price.tokens_scored == times * lengths
    assert price.environment_steps == times * choices and price.tokens_sampled == 0


def test_a_tree_above_the_budget_is_refused_with_its_size():
    task = TASKS["bifurcation"](filler=20)
    context = Context(POLICY, PARAMS, PARAMS, task, LEGAL)
    with pytest.raises(InputError, match=f"has {2**43:,} episodes .* budget of 131,072"):
        EVIDENCE["exact_value"](context, rollout("maze"), jax.random.key(0))


@pytest.fixture
def compilations():
    """A list that grows by one with every compilation."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_training_on_exact_credit_compiles_once(compilations):
    sizes = {"width": 16, "layers": 1, "problems": 4, "samples": 2, "legal": True}
    schedule = {"minibatches": 1, "accumulate": 1, "lanes": 0}
    training = Training(advantage="exact", **sizes, **schedule)
    parts = train.build(training, CASES["recovery"])
    mesh, optimizer = make_mesh(), update.guarded(1e-2)
    collect = train.make_collect(training, parts, mesh)
    with mock.patch.object(jax, "jit", quick_jit):
        step = sharding.jit_step(mesh, train.make_train_step(training, parts, collect, optimizer))
    state = update.initial_state(parameters(parts.policy, seed=0), optimizer, jax.random.key(0))
    state, _ = step(sharding.replicated(mesh, state))
    assert compilations
    before = jax.tree.map(np.array, state.params)
    compilations.clear()
    state, metrics = step(state)
    assert not compilations
    assert metrics["grad_norm"] > 0 and metrics["skipped_updates"] == 0
    assert distance(before, state.params) > 0
