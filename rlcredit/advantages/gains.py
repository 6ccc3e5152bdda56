"""What rules share that credit units for what they add to the chance of the right answer."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.types import Array


def by_number(x: Array, unit: Array) -> tuple[Array, Array]:
    """(x at the first token of each unit, whether there is one), [N, K, T] by its number."""
    opens = units.opens(unit)
    return (
        units.per_unit(jnp.where(opens, x, 0), unit),
        units.per_unit(opens.astype(jnp.float32), unit) > 0,
    )


def gain_of_units(x: Array, unit: Array) -> tuple[Array, Array]:
    """(x before the next unit less x before this one, whether there is a next), [N, K, T] by the
    unit's number; 0 for the last unit of a row.
    """
    before, _ = by_number(x, unit)
    number = jnp.arange(unit.shape[-1])[None, None]
    followed = number < jnp.max(unit, axis=-1, keepdims=True)
    return jnp.where(followed, jnp.roll(before, -1, axis=-1) - before, 0), followed
