"""FinePO: the episode's advantage, more of it for better steps and less for worse ones."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.types import Array, Rollout


def finepo(
    rollout: Rollout, *, step_score: Array, alpha: float = 1.0, beta: float = 2.0, eps: float = 1e-6
) -> Array:
    """A[t] = clip(A_E + alpha * k * D[t]) between 0 and beta * A_E, with

    A_E  = R - mean_group R
    D[t] = step_score[t] - mean of step_score over the episode's tokens
    k    = |A_E| / (max(D) + eps)

    Steps are weighed by their tokens, so before the clip the credit of an episode stays the same,
    sum over t of (A[t] - A_E) = 0. The clip keeps the sign of A_E at all tokens and breaks that:
    what is cut off at one token comes back at no other. With these defaults, which are ours, the
    best step of a success has twice its credit and that of a failure none.

    The source also moves the scores by how common the type of a visual action is; there is none
    here. Huang et al., 2026, arXiv 2601.05688.

    Args:
      step_score: [N, K, T] evidence in [-1, 1], equal over a step.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    outcome = dr_grpo(rollout)
    better = masked.center(step_score, rollout.mask, axis=-1)
    most = jnp.max(jnp.maximum(better, 0), axis=-1, keepdims=True)
    credit = outcome + alpha * jnp.abs(outcome) / (most + eps) * better
    bound = beta * outcome
    return jnp.clip(credit, jnp.minimum(bound, 0), jnp.maximum(bound, 0))
