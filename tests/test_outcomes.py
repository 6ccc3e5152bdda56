"""`Task.outcomes` says all that `step` may draw, and how likely it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit
from tree_reference import CASES, one_of, problems_of

from rlcredit.tasks import TASKS

DRAWS = 2000
NOISY = ["chance", "slip"]


def states_on_the_way(task, problem):
    """The states that the first legal tokens lead to."""
    step = quick_jit(lambda state, token: task.step(problem, state, token, jax.random.key(3)))
    state, seen = task.start(problem), []
    while len(seen) < 4:
        seen.append(state)
        token = jnp.argmax(task.legal(problem, state))
        after = step(state, token)
        if after.terminated or after.truncated:
            break
        state = after.state
    return seen


def same(left, right):
    """[A, B]: entry a of the one is entry b of the other."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    flat = [(a.reshape(len(a), 1, -1), b.reshape(1, len(b), -1)) for a, b in pairs]
    return np.all([np.all(a == b, axis=-1) for a, b in flat], axis=0)


@pytest.mark.parametrize("name", NOISY)
def test_a_step_takes_each_outcome_with_its_chance(name):
    task = CASES[name]
    keys = jax.random.split(jax.random.key(1), DRAWS)
    draw = quick_jit(jax.vmap(task.step, (None, None, None, 0)))
    outcomes = quick_jit(task.outcomes)
    uncertain = 0
    for problem in (one_of(problems_of(task), number) for number in range(2)):
        for state in states_on_the_way(task, problem):
            legal = np.flatnonzero(task.legal(problem, state))
            for token in (0, *legal[:2]):  # an illegal one too
                chances, transitions = outcomes(problem, state, jnp.int32(token))
                drawn = draw(problem, state, jnp.int32(token), keys)
                chances, transitions, drawn = jax.tree.map(
                    np.asarray, (chances, transitions, drawn)
                )
                assert chances.min() >= 0
                np.testing.assert_allclose(chances.sum(), 1, atol=1e-6)
                is_one = same(drawn, transitions) & (chances > 0)
                assert is_one.any(axis=1).all(), "a step gave what is no outcome"
                first = same(transitions, transitions).argmax(axis=1)
                chance = np.bincount(first, chances, len(chances))
                share = np.bincount(first[is_one.argmax(axis=1)], minlength=len(chances)) / DRAWS
                error = np.sqrt(chance * np.maximum(1 - chance, 0) / DRAWS)
                np.testing.assert_array_less(np.abs(share - chance), 4.5 * error + 1e-6)
                uncertain += chance.max() < 0.999
    assert uncertain >= 3


@pytest.mark.parametrize("name", NOISY)
def test_outcomes_are_transitions_with_one_axis_more(name):
    task = CASES[name]
    problem = one_of(problems_of(task), 0)
    state, token = task.start(problem), jnp.int32(1)
    chances, transitions = jax.eval_shape(task.outcomes, problem, state, token)
    once = jax.eval_shape(task.step, problem, state, token, jax.random.key(0))
    assert jax.tree.structure(once) == jax.tree.structure(transitions)
    for one, many in zip(jax.tree.leaves(once), jax.tree.leaves(transitions), strict=True):
        assert many.shape == (*chances.shape, *one.shape) and many.dtype == one.dtype


def test_what_leaves_nothing_to_chance_has_none():
    assert TASKS["bifurcation"]().outcomes is None
    assert TASKS["bifurcation"](chance=True).outcomes is not None
    assert TASKS["maze"](slip=0.0).outcomes is None
    assert TASKS["maze"](slip=0.1).outcomes is not None
    for name in ("arithmetic", "repair"):
        assert TASKS[name]().outcomes is None
