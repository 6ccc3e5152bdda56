"""What rules that subtract values at the borders of units share."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.types import Array


def at_start(value: Array, unit: Array) -> Array:
    """[N, K, T] the entry of the first token of each unit, on all its tokens; 0 off the mask."""
    first = jnp.where(units.opens(unit), value, 0)
    return units.of_unit(units.per_unit(first, unit), unit)


def at_end(value: Array, unit: Array, final: Array) -> Array:
    """[N, K, T] the entry of the first token of the unit that follows, `final` [N, K] where none
    does; 0 off the mask.
    """
    first = units.per_unit(jnp.where(units.opens(unit), value, 0), unit)
    following = jnp.concatenate([first[..., 1:], jnp.zeros_like(first[..., :1])], axis=-1)
    number = jnp.arange(unit.shape[-1])[None, None]
    last = number >= jnp.max(unit, axis=-1, keepdims=True)
    return units.of_unit(jnp.where(last, final[..., None], following), unit)
