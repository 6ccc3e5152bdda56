"""What rules that subtract values at the borders of units share."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.recurrence import latest, next_at
from rlcredit.types import Array


def at_start(value: Array, unit: Array) -> Array:
    """[N, K, T] the entry of the first token of each unit, on all its tokens; 0 off the mask."""
    return jnp.where(unit >= 0, latest(value, units.opens(unit)), 0)


def at_end(value: Array, unit: Array, final: Array) -> Array:
    """[N, K, T] the entry of the first token of the unit that follows, `final` [N, K] where none
    does; 0 off the mask.
    """
    return jnp.where(unit >= 0, next_at(value, units.opens(unit), final), 0)
