"""GRPO: the return relative to the group of samples of one problem, in standard deviations."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def grpo(rollout: Rollout, *, eps: float = 1e-6) -> Array:
    """A[t] = (R - mean_group R) / (std_group R + eps), population std.

    For large K the division weighs problems by 1 / std: those that are nearly always or nearly
    never solved push as hard as the others, a bias towards them. Shao et al., 2024, arXiv
    2402.03300.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    deviation = masked.std(total, present, axis=1, keepdims=True)
    return spread(masked.center(total, present, axis=1) / (deviation + eps), rollout)
