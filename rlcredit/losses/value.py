"""The critic's loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array


def value_loss(
    value: Array, target: Array, old_value: Array, weight: Array, *, clip: float = float("inf")
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * 0.5 * max((value - target)**2, (clipped - target)**2),
    clipped = old_value + clip(value - old_value, -clip, clip).

    The max makes clipping pessimistic: a value that has left the range on the far side of its
    target keeps its gradient. An infinite `clip` is the plain squared error. Target and old value
    are constants. Schulman et al., 2017, arXiv 1707.06347 (its reference implementation).

    Args: value, target, old_value, weight: [..., T].
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    constants = jax.lax.stop_gradient((target, old_value))
    value, target, old_value = (jnp.where(mask, a, 0) for a in (value, *constants))
    clipped = old_value + jnp.clip(value - old_value, -clip, clip)
    outside = jnp.abs(value - old_value) > clip
    error, clipped_error = jnp.square(value - target), jnp.square(clipped - target)
    loss = masked.sum(0.5 * weight * jnp.maximum(error, clipped_error), mask)
    metrics = {
        "value/loss": 0.5 * masked.mean(error, mask),
        "value/mean": masked.mean(value, mask),
        "value/clip_ratio": masked.mean(outside & (clipped_error > error), mask),
    }
    return loss, metrics
