"""HCAPO: turns weighed by how likely they are once the policy has read how the episode ended."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.gains import by_number
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.outcome import episode_return
from rlcredit.types import Array, Rollout


def hcapo(
    rollout: Rollout,
    *,
    unit: Array,
    hindsight_log_prob: Array,
    omega: float = 1.0,
    temperature: float = 5.0,
    low: float = 0.8,
    high: float = 1.2,
    discount: float = 0.95,
    eps: float = 1e-6,
) -> Array:
    """A[t] = grpo + omega * z[u], u the unit of t, of U units of its episode,
    z[u] = (Q[u] - mean Q) / (std Q + eps) over all units of the group,
    Q[u] = clip(h[u] / mean of h over the episode's units, low, high) * discount**(U - 1 - u) * R,
    h[u] = exp(mean over the tokens of u of hindsight_log_prob / temperature).

    In episodes of positive return a negative z is 0: no step of a success is blamed, so the second
    part no longer has mean 0. arXiv 2603.08754, known from a third party's note.

    Args:
      unit: [N, K, T] evidence; hindsight_log_prob: [N, K, T] evidence.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    size = units.per_unit(rollout.mask.astype(jnp.float32), unit)
    _, exists = by_number(hindsight_log_prob, unit)
    mean = units.per_unit(hindsight_log_prob, unit) / jnp.maximum(size, 1)
    likely = jnp.where(exists, jnp.exp(mean / temperature), 0)
    typical = masked.mean(likely, exists, axis=-1, keepdims=True)
    weight = jnp.clip(likely / jnp.where(typical > 0, typical, 1), low, high)
    left = jnp.max(unit, axis=-1, keepdims=True) - jnp.arange(unit.shape[-1])[None, None]
    total = episode_return(rollout)[0][..., None]
    quality = jnp.where(exists, weight * discount ** jnp.maximum(left, 0) * total, 0)
    deviation = masked.std(quality, exists, axis=(1, 2), keepdims=True)
    score = masked.center(quality, exists, axis=(1, 2)) / (deviation + eps)
    score = jnp.where((total > 0) & (score < 0), 0, score)
    return grpo(rollout, eps=eps) + omega * units.of_unit(score, unit)
