"""GRPO for pass@k: only the best sample of a problem is paid, by its lead over the second best."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def grpo_passk(rollout: Rollout) -> Array:
    """A[t] = R - (the second best R of the group) for the best sample, 0 for the others.

    This is the best return of the group minus the best one without the sample; the latter does not
    depend on it. So K times the expected update (a mean over samples) is the gradient of E[max of K
    returns], for returns of 0 and 1 that of pass@K. Where the best two are equal nobody is paid:
    problems that two samples solve teach nothing. verl also divides by the group's deviation unless
    told otherwise; this is the formula without it. Tang et al., 2025, arXiv 2503.19595.

    Returns: [N, K, T] float32, never below 0; exactly 0 for a group of equal returns or of one.
    """
    total, present = episode_return(rollout)
    first = jnp.argmax(jnp.where(present, total, -jnp.inf), axis=1, keepdims=True)
    best = present & (jnp.arange(total.shape[1])[None] == first)
    others = present & ~best
    lead = total - masked.max(total, others, axis=1, keepdims=True)
    paid = best & jnp.any(others, axis=1, keepdims=True)
    return spread(jnp.where(paid, lead, 0), rollout)
