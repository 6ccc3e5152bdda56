"""PPO as in RLHF: generalised advantage estimation of rewards less the KL to a reference."""

from __future__ import annotations

from rlcredit.advantages.gae import gae
from rlcredit.advantages.log_ratio import with_kl_in_reward
from rlcredit.types import Array, Rollout


def ppo_kl(
    rollout: Rollout,
    *,
    value: Array,
    ref_log_prob: Array,
    kl_coef: float = 0.01,
    discount: float = 1.0,
    lambda_: float = 0.95,
) -> Array:
    """`gae` of reward[t] - kl_coef * (log_prob[t] - ref_log_prob[t]).

    While the policy is its reference, the KL is 0 at every token and this is `gae`. Ouyang et al.,
    2022, arXiv 2203.02155.

    Args:
      value: [N, K, T + 1] evidence; ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    paid = with_kl_in_reward(rollout, ref_log_prob, kl_coef)
    return gae(paid, value=value, discount=discount, lambda_=lambda_)
