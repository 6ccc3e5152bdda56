"""REINFORCE with the mean return of the batch as its baseline."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def reinforce_baseline(rollout: Rollout) -> Array:
    """A[t] = R - mean over all N * K episodes of R.

    One baseline for easy and hard problems alike. It contains the episode's own return, which
    scales the expected gradient by 1 - 1 / (N * K). Williams, 1992.

    Returns: [N, K, T] float32; exactly 0 where all returns are equal.
    """
    total, present = episode_return(rollout)
    return spread(masked.center(total, present), rollout)
