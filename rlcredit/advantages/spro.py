"""SPRO: GRPO plus the log-ratio to a reference so far, relative to the group at that length."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.log_ratio import log_ratio
from rlcredit.recurrence import running_sum
from rlcredit.types import Array, Rollout


def spro(rollout: Rollout, *, ref_log_prob: Array, beta: float = 0.05, eps: float = 1e-6) -> Array:
    """A_i[t] = grpo + P_i[t] - mean of P_k over the samples k that chose as many tokens,
    P[t] = beta * sum over chosen j <= t of (log_prob[j] - ref_log_prob[j]).

    The mean is over the tokens of one number, counted among the chosen ones: where lengths differ
    it compares steps that have nothing to do with each other. The second part is 0 everywhere while
    the policy is its reference. arXiv 2507.01551, known from a third party's code; `beta` is set
    here.

    Args:
      ref_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    number = units.token(rollout)
    so_far = beta * running_sum(log_ratio(rollout, ref_log_prob))
    by_number = units.per_unit(so_far, number)
    alive = units.per_unit(rollout.mask.astype(jnp.float32), number) > 0
    relative = units.of_unit(masked.center(by_number, alive, axis=1), number)
    return grpo(rollout, eps=eps) + relative
