"""GiGPO: the episode relative to its group, plus each step relative to those from its state."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.advantages.state_groups import step_advantage
from rlcredit.advantages.weighted import score
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
    if statistics == "episodes":
        of_episode = grpo(rollout, eps=eps)
    else:
        steps = masked.count(units.opens(units.step(rollout)), axis=-1)
        total, present = episode_return(rollout)
        of_episode = spread(score(total, steps, present, eps=eps), rollout)
    of_step = step_advantage(rollout, fingerprint, discount=discount, eps=eps)
    return jnp.where(rollout.mask, of_episode + omega * of_step, 0)
