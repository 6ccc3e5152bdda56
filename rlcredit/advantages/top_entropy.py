"""The 80/20 rule: GRPO for the tokens of highest entropy alone."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.advantages.grpo import grpo
from rlcredit.types import Array, Rollout


def top_entropy(
    rollout: Rollout, *, entropy: Array, share: float = 0.2, eps: float = 1e-6
) -> Array:
    """A[t] = grpo where H[t] is among the highest `share` of the chosen tokens, over all N * K
    episodes, else 0; tokens of equal entropy at the border all stay.

    A reducer still counts the tokens that were left out. Wang et al., 2025, arXiv 2506.01939.

    Args:
      entropy: [N, K, T] evidence.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    mask = rollout.mask
    entropy = jnp.where(mask, entropy, -jnp.inf)
    kept = jnp.ceil(share * jnp.sum(mask)).astype(jnp.int32)
    least = -jnp.sort(-entropy.ravel())[jnp.maximum(kept - 1, 0)]
    return jnp.where(mask & (entropy >= least), grpo(rollout, eps=eps), 0)
