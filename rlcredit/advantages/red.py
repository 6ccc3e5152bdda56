"""RED: what each token adds to the score that a reward model gives of the text so far."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.advantages.outcome import episode_return
from rlcredit.recurrence import next_value
from rlcredit.types import Array, Rollout


def red(
    rollout: Rollout,
    *,
    prefix_score: Array,
    ref_log_prob: Array,
    mix: float = 1.0,
    beta: float = 0.0,
) -> Array:
    """A[t] = mix * (score after t - score before t) + (1 - mix) * reward[t] - beta * k1[t],
    k1[t] = log_prob[t] - ref_log_prob[t].

    The score after a token is that before the next chosen one; after the last it is the return. So
    with mix=1 and beta=0 the credit of an episode sums up to its return minus the score of the
    prompt. If the score is what was earned plus the exact value, and the task takes no chances,
    this is the exact advantage (`exact`). The source takes A for a reward and gives it to RLOO or
    PPO; as potential-based shaping that leaves the return minus the score before t to go. Here it
    is the credit itself. Li et al., 2024, arXiv 2411.08302.

    Args:
      prefix_score: [N, K, T] evidence, in units of the return; ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    mask = rollout.mask
    total, _ = episode_return(rollout)
    score = jnp.concatenate([prefix_score, total[..., None]], axis=-1)
    end = jnp.full(total.shape, mask.shape[-1])
    after = next_value(score, mask, end, jnp.zeros(total.shape, bool))
    k1 = rollout.log_prob - ref_log_prob
    credit = mix * (after - prefix_score) + (1 - mix) * rollout.reward - beta * k1
    return jnp.where(mask, credit, 0)
