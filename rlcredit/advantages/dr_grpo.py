"""Dr. GRPO: the return relative to the group mean, and nothing more."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def dr_grpo(rollout: Rollout) -> Array:
    """A[t] = R - mean_group R.

    GRPO without the division by the group's deviation; the other half of the method is a constant
    length in the loss (`losses.constant_length`). The expected gradient is (K - 1) / K of the true
    one. Liu et al., 2025, arXiv 2503.20783.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    return spread(masked.center(total, present, axis=1), rollout)
