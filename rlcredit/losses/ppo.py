"""PPO's clipped surrogate, with an asymmetric range and a dual clip."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.losses.ratio import log_ratio, ratio_metrics
from rlcredit.types import Array


def ppo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = float("inf"),
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A),
    ratio = exp(log_prob - old_log_prob).

    clip_high > clip_low is DAPO's clip-higher (Yu et al., 2025, arXiv 2503.14476). Where A < 0 the
    token loss is at most -dual_clip * A (Ye et al., 2019, arXiv 1912.09729); without it a ratio is
    still bounded by exp(20). Schulman et al., 2017, arXiv 1707.06347.

    Args: log_prob, old_log_prob, advantage, weight: [..., T]; weight 0 marks what to leave out.
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    advantage = jnp.where(mask, advantage, 0)
    ratio = jnp.exp(log_ratio(log_prob, old_log_prob, mask))
    low, high = 1 - clip_low, 1 + clip_high
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    if dual_clip != float("inf"):
        bounded = jnp.maximum(surrogate, dual_clip * advantage)
        surrogate = jnp.where(advantage < 0, bounded, surrogate)
    return masked.sum(-weight * surrogate, mask), ratio_metrics(ratio, advantage, mask, low, high)
