"""MaxRL: the return relative to the group mean, in units of that mean."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def maxrl(rollout: Rollout, *, eps: float = 1e-6) -> Array:
    """A[t] = (R - mean_group R) / (mean_group R + eps); 0 where mean_group R <= 0.

    For returns of 0 and 1 with success rate p the expected update is (1 - (1 - p)**(K - 1)) / p
    times the gradient of p. For large K that is the gradient of log p, maximum likelihood: hard
    problems weigh more, by more than in `grpo`.

    Meant for returns that are never negative: there a mean of 0 says that all are 0. Where some
    are negative the mean is no scale. A group whose mean is 0 or less gets no credit; the quotient
    would turn its signs around. Tajwar et al., 2026, arXiv 2602.02710; the formula is that of third
    parties' code.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    mean = masked.mean(total, present, axis=1, keepdims=True)
    scale = jnp.where(mean > 0, mean + eps, 1)
    relative = masked.center(total, present, axis=1) / scale
    return spread(jnp.where(mean > 0, relative, 0), rollout)
