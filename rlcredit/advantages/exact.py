"""The exact advantage, as a rule: what a credit rule would say that knew everything."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.types import Array, Rollout


def exact(rollout: Rollout, *, exact_advantage: Array) -> Array:
    """A[t] = Q[t] - value[t], of the live policy.

    The policy gradient is unbiased, and nothing that comes after a token adds noise to its credit.

    Args:
      exact_advantage: [N, K, T] evidence, by enumeration.
    Returns: [N, K, T] float32.
    """
    return jnp.where(rollout.mask, exact_advantage, 0)
