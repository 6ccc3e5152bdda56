"""Stratified GRPO: the return relative to the samples that took as many turns."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.advantages.state_groups import groups, relative_in_group
from rlcredit.types import Array, Rollout


def stratified_grpo(rollout: Rollout, *, alpha: float = 0.8, eps: float = 1e-6) -> Array:
    """A[t] = alpha * (R - mean_stratum R) / (std_stratum R + eps) + (1 - alpha) * grpo

    The stratum of an episode are the samples of its problem with the same number of turns. The
    first term does not say whether it is better to take more or fewer turns, the second does. A
    sample that is alone in its stratum has the second alone. The source counts calls of a search
    engine; that a stratum is a number of turns, and the default of alpha, are ours. Zhu et al.,
    2025, arXiv 2510.06214; the formula is that of a third party's account.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    turns = jnp.max(units.turn(rollout), axis=-1)
    in_stratum = relative_in_group(total, groups(present, turns), present, eps=eps)
    return alpha * spread(in_stratum, rollout) + (1 - alpha) * grpo(rollout, eps=eps)
