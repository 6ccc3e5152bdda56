"""REINFORCE++: return to go with the KL to a reference taken off every token's reward."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.recurrence import discounted_return, last_chosen
from rlcredit.types import Array, Rollout


def reinforce_pp(
    rollout: Rollout, *, ref_log_prob: Array, kl_coef: float = 0.01, discount: float = 1.0
) -> Array:
    """A[t] = sum over chosen k >= t of discount**(k - t) * (reward[k] - kl_coef * k1[k]),
    k1[t] = log_prob[t] - ref_log_prob[t].

    The method whitens this over the whole batch: `masked.whiten`, in the experiment `--whiten`.
    Hu et al., 2025, arXiv 2501.03262.

    Args:
      ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32, not whitened.
    """
    mask = rollout.mask
    k1 = jnp.where(mask, rollout.log_prob - ref_log_prob, 0)
    reward = rollout.reward - kl_coef * k1
    return discounted_return(reward, mask, last_chosen(mask), discount=discount)
