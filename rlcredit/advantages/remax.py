"""ReMax: the return relative to that of the greedy answer."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def remax(rollout: Rollout, *, greedy_return: Array) -> Array:
    """A[t] = R - greedy_return.

    The baseline depends on the problem and not on the sample, so the policy gradient is unbiased;
    its price is one more episode a problem. Li et al., 2023, arXiv 2310.10505.

    Args:
      greedy_return: [N] evidence, the return of one greedy episode of each problem.
    Returns: [N, K, T] float32.
    """
    total, _ = episode_return(rollout)
    baseline = jnp.broadcast_to(greedy_return[:, None], total.shape)
    return spread(total - baseline, rollout)
