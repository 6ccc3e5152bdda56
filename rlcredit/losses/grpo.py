"""GRPO's objective: the clipped surrogate and a KL penalty to the reference."""

from __future__ import annotations

from rlcredit.losses.kl import kl_loss
from rlcredit.losses.ppo import ppo
from rlcredit.types import Array


def grpo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    weight: Array,
    *,
    ref_log_prob: Array,
    beta: float = 0.04,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Array, dict[str, Array]]:
    """ppo(...) + beta * sum of weight * k3(log_prob, ref_log_prob).

    As published it is reduced by `sequence_mean`. Groups of equal returns have no advantage, yet
    are still pulled to the reference. Shao et al., 2024, arXiv 2402.03300.

    Args: log_prob, old_log_prob, ref_log_prob, advantage, weight: [..., T].
    Returns: (loss, metrics), metrics being means over tokens.
    """
    surrogate, metrics = ppo(
        log_prob, old_log_prob, advantage, weight, clip_low=clip_low, clip_high=clip_high
    )
    penalty, kl_metrics = kl_loss(log_prob, ref_log_prob, weight, estimator="k3")
    return surrogate + beta * penalty, metrics | kl_metrics
