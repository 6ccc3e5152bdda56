"""SORL: the clipped surrogate with one length-normalised ratio a turn."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.losses.ratio import log_ratio, ratio_metrics
from rlcredit.types import Array


def sorl(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    *,
    unit: Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * -min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A),
    s = exp(mean over the tokens of the unit of (log_prob - old_log_prob)).

    With one unit an episode this is `gspo`, with units of one token the plain clipped surrogate.
    The source was not read in full: its ratio is known from a summary, arXiv 2511.20718, which also
    normalises by statistics of the clipping; that is left out. Meant with the unit `turn`.

    Args:
      log_prob, old_log_prob, advantage, weight: [..., T]; unit: [..., T] int32 evidence.
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    advantage = jnp.where(mask, advantage, 0)
    unit = units.chosen(unit, mask)
    sums = units.per_unit(log_ratio(log_prob, old_log_prob, mask), unit)
    counts = units.per_unit(mask.astype(jnp.float32), unit)
    ratio = jnp.exp(units.of_unit(sums / jnp.maximum(counts, 1), unit))
    low, high = 1 - clip_low, 1 + clip_high
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    return masked.sum(-weight * surrogate, mask), ratio_metrics(ratio, advantage, mask, low, high)
