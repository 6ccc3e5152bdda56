"""The evidence `step_score` and `prefix_score`, by each scorer."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continued import TALK, by_table, talked
from stubs import network, quick_jit, tape

from rlcredit.episode import play
from rlcredit.evidence import Context, Probing, continuations, exact_rows, scorers
from rlcredit.evidence.exact_value import exact_value
from rlcredit.evidence.omega_label import omega_label
from rlcredit.evidence.prefix_score import prefix_score
from rlcredit.evidence.shepherd_label import shepherd_label
from rlcredit.evidence.step_score import step_score
from rlcredit.evidence.value import value
from rlcredit.exact.tree import enumerate_episodes
from rlcredit.rollout import draw_problems
from rlcredit.sharding import make_mesh
from rlcredit.tasks import TASKS
from rlcredit.tasks.arithmetic import steps_true
from rlcredit.types import InputError, Layout, Price, Sampling

KEY, ONE = jax.random.key(7), Layout()
HOPEFUL = TALK._replace(potential=lambda problem, state: (state[1] % 13).astype(jnp.float32))


def states_told():
    """[N, K, T + 1] the second number of the state before each position of `talked`."""
    rows = jax.tree.map(np.asarray, talked()._replace(key=None))
    told = np.where(rows.mask, rows.tokens + rows.feedback[..., 0].astype(int), 0)
    return np.pad(np.cumsum(told, axis=-1), ((0, 0), (0, 0), (1, 0))) % 97


def spans(rollout, numbers):
    """(n, k, positions, start, end) of each unit; the end is where the next one starts, or T."""
    for n, k in np.argwhere(np.asarray(rollout.mask).any(axis=-1)):
        last = numbers[n, k].max()
        starts = [np.flatnonzero(numbers[n, k] == u)[0] for u in range(last + 1)]
        for u, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
            size = numbers.shape[-1] if end is None else end
            yield n, k, np.flatnonzero(numbers[n, k] == u), start, size


def measured(provider, task, rollout, *, key=KEY, policy=None, layout=ONE, **probing):
    """What a provider says as plain arrays, and its price; policy: with its parameters."""
    network, params = policy or (None, None)
    where = (task, Sampling(legal=True), layout, Probing(**probing))
    context = Context(network, params, params, *where)
    return jax.tree.map(np.asarray, quick_jit(functools.partial(provider, context))(rollout, key))


THREE_TURNS = {"scorer": "checker", "unit": "turn", "most_units": 3}


def turns_of(rollout):
    return np.minimum(np.asarray(rollout.turn), 2)


def test_a_step_is_wrong_where_the_potential_fell():
    rollout, potential = talked(), states_told() % 13
    found, price = measured(step_score, HOPEFUL, rollout, **THREE_TURNS)
    wanted = np.zeros(found.shape)
    for n, k, positions, start, end in spans(rollout, turns_of(rollout)):
        wanted[n, k, positions] = 1 if potential[n, k, end] >= potential[n, k, start] else -1
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.float32 and set(np.unique(wanted)) == {-1, 0, 1}
    assert price == Price(environment_steps=int(rollout.mask.sum()))
    spread = Layout(mesh=make_mesh(jax.devices()[:2]))
    again, same = measured(step_score, HOPEFUL, rollout, layout=spread, **THREE_TURNS)
    np.testing.assert_array_equal(again, found)
    assert same == price


def test_a_prefix_has_the_potential_before_its_token():
    rollout = talked()
    found, price = measured(prefix_score, HOPEFUL, rollout, scorer="checker")
    wanted = np.where(rollout.mask, states_told()[..., :-1] % 13, 0)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.float32 and price.environment_steps == rollout.mask.sum()


def test_a_checker_comes_before_the_potential_and_sees_both_states():
    def grown(problem, state, after):
        return (after[0] - state[0]) / (8.0 * (problem.prompt_length > 0))

    rollout = talked()
    found, _ = measured(step_score, HOPEFUL._replace(checker=grown), rollout, **THREE_TURNS)
    for n, k, positions, _, _ in spans(rollout, turns_of(rollout)):
        np.testing.assert_array_equal(found[n, k, positions], min(len(positions) / 8, 1))


def test_rounding_does_not_make_a_potential_fall():
    """In `bifurcation` it does: 0.1 + (0.4 + 0.4) is more than (0.1 + 0.4) + 0.4 in float32."""
    assert np.float32(0.1) + np.float32(0.8) > np.float32(0.1) + np.float32(0.4) + np.float32(0.4)
    worn = HOPEFUL._replace(potential=lambda problem, state: 0.5 - 6e-8 * state[0])
    found, _ = measured(step_score, worn, talked(), scorer="checker", unit="token")
    np.testing.assert_array_equal(found, talked().mask)


def test_in_arithmetic_it_is_what_the_checker_of_steps_says():
    task = TASKS["arithmetic"]()
    problems = task.held_out(8, 0)
    written = task.demonstrate(problems, np.random.default_rng(0), 0.5, 0.3)
    plans = np.asarray([row + [1] * (task.horizon - len(row)) for row in written], np.int32)

    def choose(problem, state, number, key):
        here = jnp.all(problems.operands == problem.operands[None], axis=-1)
        return jnp.asarray(plans)[jnp.argmax(here), number]

    keys = jax.random.split(jax.random.key(0), 8)
    rollout = quick_jit(lambda *drawn: play(task, *drawn, choose))(problems, keys)
    found, _ = measured(step_score, task, rollout, scorer="checker", unit="step")
    check = quick_jit(jax.vmap(steps_true))
    true = np.asarray(check(problems, rollout.tokens[:, 0], rollout.mask[:, 0]))
    sizes = set()
    for n, k, positions, _, _ in spans(rollout, np.asarray(rollout.step)):
        np.testing.assert_array_equal(found[n, k, positions], 2 * true[n, positions[-1]] - 1)
        sizes.add((len(positions) > 1, bool(true[n, positions[-1]])))
    assert sizes >= {(True, True), (True, False)}


def rewarded(task):
    """The chain with something to earn, or to lose, at every choice."""

    def step(*arguments):
        after = task.step(*arguments)
        return after._replace(reward=after.state.secured - 0.35 * after.state.position)

    return task._replace(step=step)


@functools.cache
def valued():
    """(rollout, {scorer: (value, step_score, prefix_score), prices}) of the episodes of a chain."""
    task = rewarded(TASKS["bifurcation"](gaps=(0.8, 0.1), base=0.1, filler=0))
    policy, params = network(len(task.vocabulary), seed=3, value_head="shared")
    context = Context(policy, params, params, task, Sampling(legal=True))

    def run(problems):
        rollout = enumerate_episodes(task, problems, legal=True, capacity=8).rollout
        found = {}
        for name, provider in {"exact": exact_value, "critic": value}.items():
            here = context._replace(probing=Probing(unit="step", scorer=name))
            made = [f(here, rollout, KEY) for f in (provider, step_score, prefix_score)]
            found[name] = tuple(zip(*made, strict=True))
        return rollout._replace(key=None), found

    with mock.patch.object(exact_rows, "_capacity", lambda *_: 8):
        found = quick_jit(run)(draw_problems(task, jax.random.key(0), 2)[0])
    return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("name", ["exact", "critic"])
def test_scores_are_what_was_earned_and_the_value(name):
    rollout, found = valued()
    (worth, step, prefix), prices = found[name]
    reward = np.where(rollout.mask, rollout.reward, 0)
    earned = np.pad(np.cumsum(reward, axis=-1), ((0, 0), (0, 0), (1, 0)))
    worth = earned + worth
    np.testing.assert_allclose(prefix, np.where(rollout.mask, worth[..., :-1], 0), atol=1e-5)
    wanted, whole = np.zeros(step.shape), worth.shape[-1] - 1
    for n, k, positions, _, end in spans(rollout, rollout.step):
        after = earned[n, k, -1] if end == whole else worth[n, k, end]
        wanted[n, k, positions] = 2 * np.clip(after, 0, 1) - 1
    np.testing.assert_allclose(step, wanted, atol=1e-5)
    inside = np.abs(step[rollout.mask])
    assert (inside == 1).any() and (inside < 0.9).any() and np.ptp(earned) > 0.3
    assert prices[0] == prices[1] == prices[2] and prices[0].tokens_scored > 0


def test_scores_are_within_bounds_before_noise_is_added():
    def far_away(context, rollout, key):
        return jnp.full((4, 2, rollout.mask.shape[-1] + 1), -50.0), Price()

    rollout, context = talked(), Context(None, None, None, TALK, Sampling())
    score = quick_jit(lambda r: scorers.from_value(far_away).step(context, r, r.turn, KEY)[0])
    found = np.asarray(score(rollout))[rollout.mask]
    assert set(np.unique(found)) == {-1, 1}  # the last unit is followed by a return above 1


@pytest.mark.parametrize("provider", [shepherd_label, omega_label])
def test_labels_are_steps_right_and_wrong(provider):
    rng, rollout = np.random.default_rng(0), talked()
    paid = rollout._replace(reward=jnp.zeros_like(rollout.reward))
    alive = (rng.random(rollout.mask.shape) < 0.6).astype(np.float32)
    where = {"unit": "turn", "continuations": 1}
    with mock.patch.object(continuations, "branch", by_table(alive)):
        label, price = measured(provider, HOPEFUL, paid, **where)
        scorer = provider.__name__.removesuffix("_label")
        found, same = measured(step_score, HOPEFUL, paid, scorer=scorer, **where)
    np.testing.assert_array_equal(found, np.where(rollout.mask, 2 * label - 1, 0))
    assert price == same and set(np.unique(found)) == {-1, 0, 1}


def test_noise_is_drawn_once_a_unit_and_clipped():
    """Of a task where every step has the score 0, and every prefix 0.5."""
    flat = HOPEFUL._replace(
        potential=lambda problem, state: jnp.float32(0.5),
        checker=lambda problem, state, after: jnp.float32(0),
    )
    rollout = talked()
    mask, turn = np.asarray(rollout.mask), np.asarray(rollout.turn)
    noisy = {"scorer": "checker", "noise": 0.7}
    found, _ = measured(step_score, flat, rollout, unit="turn", **noisy)
    drawn = [found[n, k, positions] for n, k, positions, _, _ in spans(rollout, turn)]
    assert all((same == same[0]).all() for same in drawn) and max(map(len, drawn)) > 1
    drawn = np.asarray([same[0] for same in drawn])
    assert np.abs(drawn).max() == 1 and len(np.unique(drawn[np.abs(drawn) < 1])) > 20
    assert 0.45 < drawn.std() < 0.75 and abs(drawn.mean()) < 0.3
    again, _ = measured(step_score, flat, rollout, unit="turn", key=jax.random.key(1), **noisy)
    assert (again != found)[mask].mean() > 0.7
    prefixes, _ = measured(prefix_score, flat, rollout, **noisy)
    assert not prefixes[~mask].any() and len(np.unique(prefixes[mask])) == mask.sum()
    assert abs(prefixes[mask].mean() - 0.5) < 0.25 and 0.5 < prefixes[mask].std() < 0.9


@pytest.mark.parametrize(
    "provider, scorer, message",
    [
        (step_score, "oracle", "scorer 'oracle'; known are checker, exact, critic, shepherd"),
        (prefix_score, "oracle", "scorer 'oracle'; known are checker, exact, critic, shepherd"),
        (prefix_score, "omega", "'omega' scores steps alone; checker, exact, critic score"),
        (step_score, "checker", "task 'tape' has no checker and no potential"),
        (prefix_score, "checker", "task 'tape' has no potential"),
        (step_score, "critic", "'value' needs a critic"),
    ],
)
def test_what_cannot_be_scored_is_refused(provider, scorer, message):
    with pytest.raises(InputError, match=message):
        measured(provider, tape(), talked(), scorer=scorer, policy=network())
