"""SPO-chain: segments by the change of a Monte Carlo value, for the tokens that were unsure."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.advantages.vineppo import vineppo
from rlcredit.types import Array, Rollout


def spo_chain(
    rollout: Rollout, *, unit: Array, branch_value: Array, threshold: float = 0.9
) -> Array:
    """A[t] = V[u + 1] - V[u] where exp(log_prob[t]) < threshold, else 0; as `vineppo`.

    The probability mask takes tokens that the policy was sure of out of the gradient. A row without
    an unsure token keeps all of its tokens; the authors' code does so for a whole batch. Meant with
    the unit `low_probability:0.9:5`, segments of five unsure tokens. Guo et al., 2025, arXiv
    2505.23564, which also takes the masked tokens out of whitening: a 0 here stays in it.

    Args:
      unit: [N, K, T] evidence; branch_value: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    mask = rollout.mask
    unsure = mask & (jnp.exp(jnp.where(mask, rollout.log_prob, 0)) < threshold)
    kept = unsure | ~jnp.any(unsure, axis=-1, keepdims=True)
    return jnp.where(kept, vineppo(rollout, unit=unit, branch_value=branch_value), 0)
