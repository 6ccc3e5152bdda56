"""HICRA: GRPO with more reward and less blame for planning tokens."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.grpo import grpo
from rlcredit.types import Array, Rollout


def hicra(rollout: Rollout, *, unit: Array, alpha: float = 0.2, eps: float = 1e-6) -> Array:
    """A[t] = grpo + alpha * |grpo| * planning[t], planning 1 at the first token of each unit.

    So a planning token has 1 + alpha times the reward and 1 - alpha times the blame. In the source
    planning tokens are phrases that plan; the first token of a unit is our own operationalisation.
    arXiv 2509.03646, known from a third party's note.

    Args:
      unit: [N, K, T] evidence.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    outcome = grpo(rollout, eps=eps)
    planning = units.opens(units.chosen(unit, rollout.mask))
    return outcome + alpha * jnp.abs(outcome) * planning
