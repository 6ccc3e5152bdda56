"""PRL: GRPO less the log-ratio to a reference that is still to come."""

from __future__ import annotations

from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.log_ratio import log_ratio
from rlcredit.recurrence import discounted_return, last_chosen
from rlcredit.types import Array, Rollout


def prl(rollout: Rollout, *, ref_log_prob: Array, eta: float = 100.0, eps: float = 1e-6) -> Array:
    """A[t] = grpo - 1 / eta * sum over chosen j >= t of (log_prob[j] - ref_log_prob[j]).

    The second term is the return to go of a KL in the reward. It is 0 everywhere while the policy
    is its reference, as on the first update. arXiv 2601.10201, at every token; `eta` is set here.

    Args:
      ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    mask = rollout.mask
    ahead = discounted_return(
        log_ratio(rollout, ref_log_prob), mask, last_chosen(mask), discount=1.0
    )
    return grpo(rollout, eps=eps) - ahead / eta
