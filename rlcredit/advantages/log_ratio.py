"""What rules share that compare the policy with its reference, token by token."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.types import Array, Rollout


def log_ratio(rollout: Rollout, ref_log_prob: Array) -> Array:
    """[N, K, T] log_prob - ref_log_prob at the chosen tokens, 0 elsewhere; k1 of the KL."""
    return jnp.where(rollout.mask, rollout.log_prob - ref_log_prob, 0)


def with_kl_in_reward(rollout: Rollout, ref_log_prob: Array, kl_coef: float) -> Rollout:
    """The rollout whose tokens have paid kl_coef * (log_prob - ref_log_prob) of their rewards."""
    reward = rollout.reward - kl_coef * log_ratio(rollout, ref_log_prob)
    return rollout._replace(reward=jnp.where(rollout.mask, reward, 0))
