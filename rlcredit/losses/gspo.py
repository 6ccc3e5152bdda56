"""GSPO: the clipped surrogate with one length-normalised ratio per sequence."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.losses.ratio import log_ratio, ratio_metrics
from rlcredit.types import Array


def gspo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * -min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A),
    s = exp(mean over the sequence's tokens of (log_prob - old_log_prob)).

    With `sequence_mean` and one advantage per sequence this is the published objective; with an
    advantage per token it is that of each token, all sharing the sequence's ratio. The clip range
    is far narrower than a token ratio's. Zheng et al., 2025, arXiv 2507.18071.

    Args: log_prob, old_log_prob, advantage, weight: [..., T], one sequence a row.
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    advantage = jnp.where(mask, advantage, 0)
    token_log_ratio = log_ratio(log_prob, old_log_prob, mask)
    ratio = jnp.exp(masked.mean(token_log_ratio, mask, axis=-1, keepdims=True))
    ratio = jnp.broadcast_to(ratio, mask.shape)
    low, high = 1 - clip_low, 1 + clip_high
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    return masked.sum(-weight * surrogate, mask), ratio_metrics(ratio, advantage, mask, low, high)
