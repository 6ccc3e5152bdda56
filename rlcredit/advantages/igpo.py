"""IGPO: each turn by what it adds to the chance of the right answer, and the outcome at the end."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.gains import by_number, gain_of_units
from rlcredit.advantages.outcome import episode_return
from rlcredit.recurrence import reverse_affine
from rlcredit.types import Array, Rollout


def igpo(
    rollout: Rollout,
    *,
    unit: Array,
    answer_log_prob: Array,
    discount: float = 1.0,
    eps: float = 1e-6,
) -> Array:
    """A[t] = sum over units k >= u of discount**(k - u) * z[k], u the unit of t,
    z[k] = (g[k] - mean g) / (std g + eps), g[k] = p[k + 1] - p[k], p = exp(answer_log_prob),

    for all units but the last of an episode, whose z is (R - mean R) / (std R + eps). Gains are
    compared with all gains of the group, outcomes with its outcomes; population std. The paper's
    form: the authors' code subtracts the group mean at each token position, which compares turns
    that have nothing to do with each other where lengths differ. Wang et al., 2025, arXiv
    2510.14967. Meant with the unit `turn`.

    Args:
      unit: [N, K, T] evidence; answer_log_prob: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    chance = jnp.exp(jnp.where(rollout.mask, answer_log_prob, 0))
    gain, followed = gain_of_units(chance, unit)
    deviation = masked.std(gain, followed, axis=(1, 2), keepdims=True)
    of_gain = masked.center(gain, followed, axis=(1, 2)) / (deviation + eps)
    total, present = episode_return(rollout)
    spread = masked.std(total, present, axis=1, keepdims=True)
    of_outcome = masked.center(total, present, axis=1) / (spread + eps)
    exists = by_number(chance, unit)[1]
    reward = jnp.where(followed, of_gain, jnp.where(exists, of_outcome[..., None], 0))
    return units.of_unit(reverse_affine(reward, jnp.full_like(reward, discount)), unit)
