"""From r to Q*: the log-ratio to the reference as each token's own advantage, plus the outcome."""

from __future__ import annotations

from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.log_ratio import log_ratio
from rlcredit.types import Array, Rollout


def r_to_q(rollout: Rollout, *, ref_log_prob: Array, beta: float = 0.05) -> Array:
    """A[t] = R - mean_group R + beta * (log_prob[t] - ref_log_prob[t]).

    For a policy that is optimal under a KL to its reference, the second term is its exact advantage
    in that problem: beta * log(pi / pi_ref) = Q - V. The source was not read in full: Rafailov et
    al., 2024, arXiv 2404.12358, has policies trained on preferences; to add it to the outcome, so
    that it learns from rewards, is our own operationalisation. It is 0 everywhere while the policy
    is its reference.

    Args:
      ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    return dr_grpo(rollout) + beta * log_ratio(rollout, ref_log_prob)
