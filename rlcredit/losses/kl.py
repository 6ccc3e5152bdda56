"""Estimators of the KL divergence to a reference, in the loss or in the reward.

With d = log_prob - ref_log_prob on tokens sampled from the policy pi, all three estimate KL(pi ||
ref); they differ in variance, and more in the gradient that they have when they stand in a loss,
where the sampling is not differentiated. J. Schulman, "Approximating KL divergence", 2020; the
gradients as in Tang and Munos, 2025, arXiv 2506.09477.

What is said below of a loss holds for one token given its prefix. Summed over a sequence it is a
part of the gradient only: that a token changes which prefixes follow is left out. In the reward,
with a return to go, k1 gives the whole gradient of the sequence's divergence.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.losses.ratio import log_ratio
from rlcredit.types import Array

Estimator = Literal["k1", "k2", "k3"]


def k1(log_prob: Array, ref_log_prob: Array, mask: Array) -> Array:
    """d. Unbiased, can be negative.

    In a loss its expected gradient is 0 (that of log_prob, the score): useless there. In the reward
    it gives the gradient of KL(pi || ref).
    """
    return log_ratio(log_prob, ref_log_prob, mask)


def k2(log_prob: Array, ref_log_prob: Array, mask: Array) -> Array:
    """d**2 / 2. Biased, never negative.

    In a loss its gradient d * grad log_prob is in expectation that of KL(pi || ref).
    """
    return 0.5 * jnp.square(log_ratio(log_prob, ref_log_prob, mask))


def k3(log_prob: Array, ref_log_prob: Array, mask: Array) -> Array:
    """exp(-d) - 1 + d. Unbiased, never negative.

    In a loss its gradient (1 - exp(-d)) * grad log_prob is in expectation that of the *other*
    divergence, KL(ref || pi). Beyond |d| = 20 the gradient is 0.
    """
    d = log_ratio(log_prob, ref_log_prob, mask)
    return jnp.expm1(-d) + d


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl_loss(
    log_prob: Array, ref_log_prob: Array, weight: Array, *, estimator: Estimator = "k3"
) -> tuple[Array, dict[str, Array]]:
    """sum of weight * estimator; to be added to a loss that is minimised.

    Args: log_prob, ref_log_prob, weight: [..., T].
    Returns: (loss, metrics), metrics being means over tokens.
    """
    mask = weight > 0
    estimate = ESTIMATORS[estimator](log_prob, ref_log_prob, mask)
    return masked.sum(weight * estimate, mask), {"kl": masked.mean(estimate, mask)}


def kl_in_reward(
    reward: Array,
    log_prob: Array,
    ref_log_prob: Array,
    mask: Array,
    *,
    coefficient: float,
    estimator: Estimator = "k1",
) -> Array:
    """reward - coefficient * estimator, token by token; before credit is assigned.

    Args: reward, log_prob (of the sampling policy), ref_log_prob, mask: [..., T].
    Returns: [..., T] float32; 0 off the mask.
    """
    penalty = ESTIMATORS[estimator](log_prob, ref_log_prob, mask)
    return jnp.where(mask, reward - coefficient * penalty, 0)
