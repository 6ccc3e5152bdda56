"""Delta-belief: each turn by the change of the log-probability of the right answer."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.gains import gain_of_units
from rlcredit.types import Array, Rollout


def delta_belief(
    rollout: Rollout,
    *,
    unit: Array,
    answer_log_prob: Array,
    coef: float = 1.0,
    clip: float = float("inf"),
) -> Array:
    """A[t] = R - mean_group R + coef * clip(l[u + 1] - l[u], -clip, clip), u the unit of t, where
    l[k] is `answer_log_prob` before unit k.

    The last unit has no gain. arXiv 2602.12342; to add it to the outcome as it is, with no return
    to go, is our own operationalisation. Meant with the unit `turn`.

    Args:
      unit: [N, K, T] evidence; answer_log_prob: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    gain, _ = gain_of_units(answer_log_prob, unit)
    return dr_grpo(rollout) + coef * units.of_unit(jnp.clip(gain, -clip, clip), unit)
