"""GiGPO: the episode relative to its group, plus each step relative to those from its state."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.recurrence import reverse_affine
from rlcredit.types import Array, InputError, Rollout

STATISTICS = ("steps", "episodes")


def gigpo(
    rollout: Rollout,
    *,
    fingerprint: Array,
    omega: float = 1.0,
    discount: float = 1.0,
    statistics: str = "steps",
    eps: float = 1e-6,
) -> Array:
    """A[t] = A_E + omega * A_S[u], where u is the step of t.

    A_E    = (R - mean R) / (std R + eps) over the group
    A_S[u] = (G[u] - mean G) / (std G + eps) over the steps of the group, of all its samples, that
             start in the same state as u
    G[u]   = sum over steps v >= u of discount**(v - u) * what step v earned

    With `statistics` "steps", the default of the authors' code, an episode enters mean and std of R
    once for each of its steps, so that long ones weigh more; with "episodes" once, and A_E is
    `grpo`. Standard deviations are the population's; the authors' code has torch.std, that of a
    sample. A step that is alone in its state has A_S = 0. Feng et al., 2025, arXiv 2505.10978.

    Args:
      fingerprint: [N, K, T] evidence, the state before each chosen token.
    Returns: [N, K, T] float32; A_E is exactly 0 for a group of equal returns, A_S where steps from
      the same state have equal returns to go.
    Raises: InputError for other `statistics`.
    """
    if statistics not in STATISTICS:
        raise InputError(f"gigpo has no {statistics=}; take one of {', '.join(STATISTICS)}")
    start = _step_starts(rollout)
    if statistics == "episodes":
        of_episode = grpo(rollout, eps=eps)
    else:
        of_episode = spread(_relative_over_steps(rollout, start, eps), rollout)
    to_go = _return_from_step(rollout, start, discount)
    in_state = jax.vmap(functools.partial(_relative_in_state, eps=eps))
    of_step = _over_step(in_state(to_go, fingerprint, start), start)
    return jnp.where(rollout.mask, of_episode + omega * of_step, 0)


def _step_starts(rollout: Rollout) -> Array:
    """[N, K, T] bool, True at the first chosen token of each step."""
    step = jnp.where(rollout.mask, rollout.step, -1)
    before = jnp.pad(jax.lax.cummax(step, axis=2), ((0, 0), (0, 0), (1, 0)), constant_values=-1)
    return step > before[..., :-1]


def _return_from_step(rollout: Rollout, start: Array, discount: float) -> Array:
    """[N, K, T] at the start of a step the return from it on, discounted once a step."""
    next_starts = jnp.roll(start, -1, axis=-1)
    reward = jnp.where(rollout.mask, rollout.reward, 0)
    return reverse_affine(reward, jnp.where(next_starts, discount, 1.0))


def _over_step(at_start: Array, start: Array) -> Array:
    """[N, K, T] the number at the start of a step at each of its tokens."""
    position = jnp.arange(start.shape[-1])[None, None]
    latest = jax.lax.cummax(jnp.where(start, position, 0), axis=2)
    return jnp.take_along_axis(at_start, latest, axis=-1)


def _relative_over_steps(rollout: Rollout, start: Array, eps: float) -> Array:
    """[N, K] the return relative to the group, each episode counted once for each of its steps."""
    total, present = episode_return(rollout)
    steps = masked.count(start, axis=-1)
    share = steps / jnp.maximum(jnp.sum(steps, axis=1, keepdims=True), 1)
    centered = masked.center(total, present, axis=1)  # exactly 0 where all are equal
    centered = centered - jnp.sum(share * centered, axis=1, keepdims=True)
    deviation = jnp.sqrt(jnp.sum(share * jnp.square(centered), axis=1, keepdims=True))
    return centered / (deviation + eps)


def _relative_in_state(x: Array, state: Array, member: Array, *, eps: float) -> Array:
    """(x - mean) / (std + eps) among the members of a problem in the same state; 0 for the others.

    Args: x, state, member: [K, T].
    Returns: [K, T] float32.
    """
    shape, size = x.shape, x.size
    x, state = (jnp.where(member, leaf, 0).ravel() for leaf in (x, state))
    order = jnp.lexsort((state, ~member.ravel()))
    x, state, member = (leaf.ravel()[order] for leaf in (x, state, member))
    differs = (state[1:] != state[:-1]) | (member[1:] != member[:-1])
    opens = jnp.pad(differs, (1, 0), constant_values=True)
    first = jax.lax.cummax(jnp.where(opens, jnp.arange(size), 0))

    def mean(values: Array) -> Array:
        sums = jax.ops.segment_sum(values, first, num_segments=size, indices_are_sorted=True)
        counts = jax.ops.segment_sum(jnp.ones(size), first, num_segments=size)
        return (sums / jnp.maximum(counts, 1))[first]

    relative = x - x[first]  # before the mean: equal entries then give exactly 0
    relative = relative - mean(relative)
    score = relative / (jnp.sqrt(mean(jnp.square(relative))) + eps)
    return jnp.zeros(size).at[order].set(score).reshape(shape)
