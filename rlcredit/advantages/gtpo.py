"""GTPO: GRPO, more at tokens whose entropy is high for their group."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.grpo import grpo
from rlcredit.types import Array, Rollout


def gtpo(rollout: Rollout, *, entropy: Array, beta: float = 0.1, eps: float = 1e-6) -> Array:
    """A[t] = grpo * max(0, 1 + beta * (H[t] / mean H - 1)), the mean over the group's tokens.

    Every token of an episode keeps the sign of its return. arXiv 2508.04349, known from a third
    party's code.

    Args:
      entropy: [N, K, T] evidence.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    mask = rollout.mask
    mean = masked.mean(entropy, mask, axis=(1, 2), keepdims=True)
    relative = jnp.where(mask, entropy, 0) / jnp.maximum(mean, eps)
    return grpo(rollout, eps=eps) * jnp.maximum(1 + beta * (relative - 1), 0)
