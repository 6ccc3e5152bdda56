"""MIG: each step by how far it lifts the chance of the right answer above all before."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.gains import by_number, gain_of_units
from rlcredit.recurrence import running_max
from rlcredit.types import Array, Rollout


def mig(rollout: Rollout, *, unit: Array, answer_log_prob: Array, coef: float = 1.0) -> Array:
    """A[t] = R - mean_group R + coef * max(0, l[u + 1] - max over k <= u of l[k]), u the unit of t,
    where l[k] is `answer_log_prob` before unit k.

    Gains are over the highest mark so far, so that to lose the answer and find it again earns
    nothing; the last unit has none. The source was not read in full: the gain is known from a
    summary, arXiv 2602.01034, and to add it to the outcome is our own operationalisation.

    Args:
      unit: [N, K, T] evidence; answer_log_prob: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    before, exists = by_number(answer_log_prob, unit)
    highest = running_max(jnp.where(exists, before, -jnp.inf))
    step, followed = gain_of_units(answer_log_prob, unit)
    gain = jnp.where(followed, jnp.maximum(before + step - highest, 0), 0)
    return dr_grpo(rollout) + coef * units.of_unit(gain, unit)
