"""New episodes from where units of credit begin: what they earn, and whether they succeed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.branching import branch
from rlcredit.evidence.context import Context
from rlcredit.evidence.unit import unit
from rlcredit.types import Array, Price, PyTree, Rollout

SUCCESS = 1 - 1e-6  # the whole return of an episode that did all that was asked


def value_of_units(
    context: Context, params: PyTree, rollout: Rollout, key: Array
) -> tuple[Array, Price]:
    """[N, K, T] float32: the mean whole return of `probing.continuations` new episodes that these
    parameters sample from before each token's unit; 0 off the mask.
    """
    numbers, unit_price = unit(context, rollout, key)
    total, price = returns(context, params, rollout, starts(context, numbers), key)
    return units.of_unit(jnp.mean(total, axis=-1), numbers), unit_price + price


def returns(
    context: Context, params: PyTree, rollout: Rollout, positions: Array, key: Array
) -> tuple[Array, Price]:
    """[N, K, P, continuations] whole returns of new episodes from positions [N, K, P]; as `branch`,
    and 0 where there is nothing to continue.
    """
    count = context.probing.continuations
    rows, price = branch(
        context.policy, params, context.task, rollout, positions, count, key,
        sampling=context.sampling, layout=context.layout,
    )  # fmt: skip
    total = masked.sum(rows.reward, rows.mask, axis=-1)
    return total.reshape(*positions.shape, count), price


def starts(context: Context, unit: Array) -> Array:
    """[N, K, P] int32: where each unit of a row begins, -1 for units that it does not have.

    P is `probing.most_units`, or T if that is less.
    """
    most = min(context.probing.most_units, unit.shape[-1])
    at = jnp.where(units.opens(unit), jnp.arange(unit.shape[-1])[None, None], -1)
    return jnp.maximum(units.per_unit(at, unit, jax.ops.segment_max)[..., :most], -1)


def after(before: Array, end: Array | int, unit: Array) -> Array:
    """[N, K, P]: from what holds before each unit, what holds after it; `end` after the last one.

    Args: before: [N, K, P] by number of the unit; end: [N, K], or one for all.
    """
    last = jnp.max(unit, axis=-1)[..., None]
    number = jnp.arange(before.shape[-1])[None, None]
    end = jnp.broadcast_to(jnp.asarray(end, before.dtype), unit.shape[:2])
    return jnp.where(number == last, end[..., None], jnp.roll(before, -1, axis=-1))


def solved(rollout: Rollout) -> Array:
    """[N, K] bool: the episode itself succeeded."""
    return masked.sum(rollout.reward, rollout.mask, axis=-1) >= SUCCESS
