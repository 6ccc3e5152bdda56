"""Bi-level GAE: first over turns, then over the tokens of each turn towards the turn's return."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import recurrence, units
from rlcredit.types import Array, Rollout


def bilevel_gae(
    rollout: Rollout,
    *,
    unit: Array,
    value: Array,
    discount: float = 1.0,
    lambda_: float = 1.0,
    turn_discount: float = 0.95,
) -> Array:
    """Two estimates, one inside the other, with V[u] the value before the last token of unit u:

    B[u] = earned[u] + turn_discount * V[u + 1] - V[u] + turn_discount * lambda_ * B[u + 1]
    A[t] = delta[t] + discount * lambda_ * A[next chosen t], cut at the end of each unit,

    delta[t] = discount * value[next chosen t] - value[t] inside a unit and B[u] + V[u] - value[t]
    = B[u] at its last token. What a unit earned counts at its end. After the last unit V is 0 where
    the episode terminated, else `value[length]`; the authors' code has 0 in both cases, and finds
    the end of a turn by a reward that is not 0, so that a turn that earns 0 is lost in the next
    one: here units are told. Wang et al., 2025, arXiv 2504.20073. Meant with the unit `turn`.

    Args:
      unit: [N, K, T] evidence; value: [N, K, T + 1] evidence, the value of every prefix.
    Returns: [N, K, T] float32, not whitened.
    """
    mask, before = rollout.mask, value[..., :-1]
    unit = units.chosen(unit, mask)
    last = units.closes(unit)
    earned = units.of_unit(units.per_unit(rollout.reward, unit), unit)
    final = recurrence.final_value(value, rollout.length, rollout.terminated)
    _, of_turns = recurrence.gae(
        earned, before, last, final, discount=turn_discount, lambda_=lambda_
    )
    return recurrence.gae(
        of_turns, before, mask, jnp.zeros_like(final), discount=discount, lambda_=lambda_, ends=last
    )[0]
