"""The plain policy gradient."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.losses.ratio import log_ratio, ratio_metrics
from rlcredit.types import Array


def policy_gradient(
    log_prob: Array, old_log_prob: Array, advantage: Array, weight: Array
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * -A * log_prob.

    Right for the policy that sampled, that is for the first step on a batch; `old_log_prob` is used
    for the metrics alone. Williams, 1992.

    Args: log_prob, old_log_prob, advantage, weight: [..., T].
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    advantage = jnp.where(mask, advantage, 0)
    ratio = jnp.exp(log_ratio(log_prob, old_log_prob, mask))
    gain = advantage * jnp.where(mask, log_prob, 0)
    unclipped = ratio_metrics(ratio, advantage, mask, 0.0, float("inf"))
    return masked.sum(-weight * gain, mask), unclipped
