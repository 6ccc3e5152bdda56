"""PURE: the scores of what is left, of which the worst counts, relative to the group's level."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.rloo import rloo
from rlcredit.recurrence import running_sum
from rlcredit.types import Array, InputError, Rollout

FORMS = ("soft", "hard")


def pure(
    rollout: Rollout,
    *,
    unit: Array,
    step_score: Array,
    temperature: float = 0.1,
    form: str = "soft",
) -> Array:
    """A_i[t] = sum over units v >= u of (r_i[v] - b_i) + rloo_i, where u is the unit of t.

    r_i[v] = w[v] * p[v], with p the scores and w = softmax(-p / temperature) over i's units
    b_i    = mean over j != i of (sum_v r_j[v] / number of units of j); 0 where there is no other

    An episode's scores sum up to about the lowest of them, so that a unit is not paid for being one
    of many. In the "hard" form w is 1 for the first unit with the lowest score and 0 for all
    others: what is left to earn is the lowest score up to that unit, and 0 after it. The soft form
    is that of the authors' code (its variant "step"), the hard one the limit of the paper. Every
    remaining unit is charged b_i, so the baseline looks at how many units are still to come.
    `rloo` is that of the returns. Cheng et al., 2025, arXiv 2504.15275.

    Args:
      unit: [N, K, T] evidence; step_score: [N, K, T] evidence in [-1, 1], read where a unit opens.
    Returns: [N, K, T] float32, the same number at all tokens of a unit.
    Raises: InputError for another `form`.
    """
    if form not in FORMS:
        raise InputError(f"pure has no {form=}; take one of {', '.join(FORMS)}")
    unit = units.chosen(unit, rollout.mask)
    first = units.opens(unit)
    score = units.per_unit(jnp.where(first, step_score, 0), unit)
    count = masked.count(first, axis=-1)
    number = jnp.arange(unit.shape[-1])[None, None]
    reward = _weight(score, number < count[..., None], temperature, form) * score
    to_go = running_sum(reward, reverse=True)
    level = _mean_of_others(to_go[..., 0] / jnp.maximum(count, 1), count > 0)
    left = count[..., None] - number
    return jnp.where(
        rollout.mask, units.of_unit(to_go - left * level[..., None], unit) + rloo(rollout), 0
    )


def _weight(score: Array, exists: Array, temperature: float, form: str) -> Array:
    """[N, K, T] by unit number: how much the score of each unit counts; they sum up to 1."""
    if form == "hard":
        lowest = jnp.argmin(jnp.where(exists, score, jnp.inf), axis=-1)
        weight = jnp.arange(score.shape[-1])[None, None] == lowest[..., None]
    else:
        weight = jax.nn.softmax(-score / temperature, axis=-1, where=exists)
    return jnp.where(exists, weight, 0)


def _mean_of_others(x: Array, present: Array) -> Array:
    """[N, K] the mean of the other samples of the problem that are present; 0 for none."""
    others = masked.count(present, axis=1, keepdims=True) - present
    total = masked.sum(x, present, axis=1, keepdims=True) - jnp.where(present, x, 0)
    return total / jnp.maximum(others, 1)
