"""REINFORCE: the discounted return to go."""

from __future__ import annotations

from rlcredit.recurrence import discounted_return, last_chosen
from rlcredit.types import Array, Rollout


def reinforce(rollout: Rollout, *, discount: float = 1.0) -> Array:
    """A[t] = sum over chosen k >= t of discount**(k - t) * reward[k], counting chosen tokens.

    With discount 1 the policy gradient is unbiased, with the variance of the whole return.
    Williams, 1992.

    Returns: [N, K, T] float32.
    """
    ends = last_chosen(rollout.mask)
    return discounted_return(rollout.reward, rollout.mask, ends, discount=discount)
