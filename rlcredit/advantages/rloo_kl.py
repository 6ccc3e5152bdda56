"""RLOO as in RLHF: the return less the KL to a reference, against the mean of the other samples."""

from __future__ import annotations

from rlcredit.advantages.log_ratio import with_kl_in_reward
from rlcredit.advantages.rloo import rloo
from rlcredit.types import Array, Rollout


def rloo_kl(rollout: Rollout, *, ref_log_prob: Array, kl_coef: float = 0.01) -> Array:
    """`rloo` of R - kl_coef * sum over t of (log_prob[t] - ref_log_prob[t]).

    While the policy is its reference this is `rloo`. Ahmadian et al., 2024, arXiv 2402.14740.

    Args:
      ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    return rloo(with_kl_in_reward(rollout, ref_log_prob, kl_coef))
