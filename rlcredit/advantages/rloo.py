"""RLOO: the return relative to the mean of the other samples of the problem."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def rloo(rollout: Rollout) -> Array:
    """A_i[t] = R_i - mean over j != i of R_j = K / (K - 1) * (R_i - mean_group R).

    K counts the samples of the group that have a chosen token. The baseline does not contain the
    episode itself, so the policy gradient is unbiased. Ahmadian et al., 2024, arXiv 2402.14740.

    Returns: [N, K, T] float32; exactly 0 for equal returns, and for a group of one, which has no
      other sample to compare with.
    """
    total, present = episode_return(rollout)
    size = masked.count(present, axis=1, keepdims=True)
    scale = size / jnp.maximum(size - 1, 1)
    return spread(scale * masked.center(total, present, axis=1), rollout)
