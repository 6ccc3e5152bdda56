"""Probability ratios that stay finite in value and gradient."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array

# exp(20) is 5e8. Clamped before exp: beyond it the gradient is 0, not inf * 0.
MAX_LOG_RATIO = 20.0


def log_ratio(log_prob: Array, other_log_prob: Array, mask: Array) -> Array:
    """log_prob - other_log_prob within +-MAX_LOG_RATIO; 0 off the mask, whatever lies there."""
    difference = jnp.where(mask, log_prob, 0) - jnp.where(mask, other_log_prob, 0)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def ratio_metrics(ratio: Array, advantage: Array, mask: Array, low: float, high: float) -> dict:
    """Token means: how often clipping removes a gradient, and the KL to the sampling policy.

    clip_ratio/low_mean: ratio < low where the advantage is negative; clip_ratio/high_mean: ratio >
    high where it is positive. approx_kl: k3 of the sampling policy from the current one,
    ratio - 1 - log ratio.
    """
    clipped_low = (ratio < low) & (advantage < 0)
    clipped_high = (ratio > high) & (advantage > 0)
    return {
        "clip_ratio/low_mean": masked.mean(clipped_low, mask),
        "clip_ratio/high_mean": masked.mean(clipped_high, mask),
        "clip_ratio/region_mean": masked.mean(clipped_low | clipped_high, mask),
        "approx_kl": masked.mean(ratio - 1 - jnp.log(ratio), mask),
    }
