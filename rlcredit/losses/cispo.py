"""CISPO: clips the importance weight instead of the update."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import masked
from rlcredit.losses.ratio import log_ratio, ratio_metrics
from rlcredit.types import Array


def cispo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    *,
    clip_low: float = 1.0,
    clip_high: float = 0.2,
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * -stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log_prob.

    Every token keeps a gradient, with a bounded weight; clip_low 1 bounds it from above only.
    MiniMax, 2025, arXiv 2506.13585.

    Args: log_prob, old_log_prob, advantage, weight: [..., T].
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    advantage = jnp.where(mask, advantage, 0)
    ratio = jnp.exp(log_ratio(log_prob, old_log_prob, mask))
    low, high = 1 - clip_low, 1 + clip_high
    bounded = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
    gain = bounded * advantage * jnp.where(mask, log_prob, 0)
    return masked.sum(-weight * gain, mask), ratio_metrics(ratio, advantage, mask, low, high)
