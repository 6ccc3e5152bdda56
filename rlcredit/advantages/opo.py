"""OPO: the return relative to the group mean in which long samples count more."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages import weighted
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def opo(rollout: Rollout) -> Array:
    """A[t] = R - b, b = sum_group(length * R) / sum_group(length), length in chosen tokens.

    b has the least sum_group(length * (R - b)**2), that is the least variance if the squared score
    of an episode grows with its length. Over all tokens of the group A sums up to 0. With equal
    lengths it is `dr_grpo`. b contains the episode itself, and how much of it depends on its
    length, so the gradient is biased, and not by a factor alone. Hao et al., 2025, arXiv
    2505.23585.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    length = masked.count(rollout.mask, axis=-1)
    return spread(weighted.center(total, length, present), rollout)
