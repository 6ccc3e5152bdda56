"""Values by branching: intervals that hold the exact value, never without one, at their price."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, quick_jit

from rlcredit.evidence import EVIDENCE, Context
from rlcredit.oracle import monte_carlo_value
from rlcredit.rollout import draw_problems, sample
from rlcredit.tasks import TASKS
from rlcredit.types import InputError, Sampling

TASK = TASKS["bifurcation"](gaps=(0.5, 0.3), filler=0, delay=0)
POLICY, PARAMS = network(vocabulary=len(TASK.vocabulary), seed=3)
CONTEXT = Context(POLICY, PARAMS, PARAMS, TASK, Sampling(legal=True))
PROBLEMS, SAMPLES, CONTINUATIONS = 16, 4, 40
CHOICES = TASK.horizon


@functools.cache
def rollout():
    problems, keys = draw_problems(TASK, jax.random.key(0), PROBLEMS)
    how = {"samples": SAMPLES, "sampling": CONTEXT.sampling}
    return quick_jit(lambda *drawn: sample(POLICY, PARAMS, TASK, *drawn, **how)[0])(problems, keys)


@functools.cache
def measured():
    """(exact [N, K, P], estimate, price) at every position, the prompt's last one before them."""
    first = TASK.prompt_capacity - 1
    positions = jnp.broadcast_to(first + jnp.arange(CHOICES + 1), (PROBLEMS, SAMPLES, CHOICES + 1))

    def both(rollout):
        key = jax.random.key(7)
        exact = EVIDENCE["exact_value"](CONTEXT, rollout, key)[0]
        estimate, price = monte_carlo_value(CONTEXT, rollout, positions, CONTINUATIONS, key)
        return exact[..., first : first + CHOICES + 1], estimate, price

    return quick_jit(both)(rollout())


def test_intervals_hold_the_exact_value():
    exact, estimate, _ = (jax.tree.map(np.asarray, part) for part in measured())
    exact, low, high = (part[..., 1:] for part in (exact, estimate.low, estimate.high))
    held = (low - 1e-6 <= exact) & (exact <= high + 1e-6)
    assert held.size >= 60 and held.mean() >= 0.88
    width = high - low
    assert (width > 0).mean() > 0.9 and width.max() < 0.5
    error = np.abs(estimate.value[..., 1:] - exact)
    assert error.mean() < width.mean() / 2


def test_the_interval_is_students():
    """40 returns of two values, won and lost: the share that won says what their deviation is."""
    _, estimate, _ = (jax.tree.map(np.asarray, part) for part in measured())
    lost, won = 0.1, 0.4
    at = estimate.value[..., -1]  # before the last decision, whose gap is 0.3
    share = (at - np.where(at > 0.5, 0.6, lost)) / (won - lost)
    deviation = (won - lost) * np.sqrt(share * (1 - share) * 40 / 39)
    width = (estimate.high - estimate.low)[..., -1]
    np.testing.assert_allclose(width, 2 * 2.0227 * deviation / np.sqrt(40), atol=1e-4)
    assert estimate.continuations == CONTINUATIONS


def test_where_nothing_was_chosen_there_is_no_estimate():
    _, estimate, _ = measured()
    for part in (estimate.value, estimate.low, estimate.high):
        assert np.isnan(part[..., 0]).all() and np.isfinite(part[..., 1:]).all()


def test_every_continuation_is_paid_for():
    price = measured()[2]
    tokens = PROBLEMS * SAMPLES * CONTINUATIONS * sum(range(1, CHOICES + 1))
    assert int(price.tokens_sampled) == tokens
    assert int(price.environment_steps) >= tokens and int(price.tokens_scored) > 0


@pytest.mark.parametrize("continuations", [1, 0])
def test_an_interval_needs_two(continuations):
    positions = jnp.full((PROBLEMS, SAMPLES, 1), TASK.prompt_capacity)
    with pytest.raises(InputError, match=f"continuations={continuations}: an interval needs 2"):
        monte_carlo_value(CONTEXT, rollout(), positions, continuations, jax.random.key(0))
