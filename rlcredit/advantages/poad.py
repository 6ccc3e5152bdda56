"""POAD: a value for every token of an action, discounted once an action."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import recurrence, units
from rlcredit.types import Array, Rollout


def poad(
    rollout: Rollout, *, unit: Array, value: Array, discount: float = 0.99, lambda_: float = 0.95
) -> Array:
    """A[t] = delta[t] + d[t] * lambda_ * A[next chosen t],
    delta[t] = reward[t] + d[t] * value[next chosen t] - value[t],

    d = discount at the last token of an action, 1 inside it. So the discount counts what is done in
    the environment and not how many tokens it takes to say it; `gae` with discount 1 is the same.
    An action is a unit. Wen et al., 2024, arXiv 2405.15821.

    Args:
      unit: [N, K, T] evidence; value: [N, K, T + 1] evidence, the value of every prefix.
    Returns: [N, K, T] float32.
    """
    last = units.closes(units.chosen(unit, rollout.mask))
    final = recurrence.final_value(value, rollout.length, rollout.terminated)
    arrays = (rollout.reward, value[..., :-1], rollout.mask, final)
    each = jnp.where(last, discount, 1.0)
    return recurrence.gae(*arrays, discount=each, lambda_=lambda_)[0]
