"""Which units come before the one that lost success, found by binary search."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import SUCCESS, returns, solved, starts
from rlcredit.evidence.unit import unit
from rlcredit.types import Array, Price, Rollout


def omega_label(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: 1 for units before the first one after which none of
    `probing.continuations` new episodes succeeds, 0 from it on; 0 off the mask.

    A binary search, which takes success to be lost once and for good: ceil(log2(most_units))
    rounds, in each of which every row is continued from the end of one unit. An episode that
    succeeded has lost nothing and is not searched. Success is that of `shepherd_label`. OmegaPRM,
    Luo et al., 2024, arXiv 2406.06592. The source was not read in full; the tree that it keeps of
    what was sampled is left out here.
    """
    numbers, unit_price = unit(context, rollout, key)
    begins = starts(context, numbers)
    count, unharmed = jnp.max(numbers, axis=-1) + 1, solved(rollout)

    def halve(bounds: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Price]:
        """Bounds [N, K] of the number of the unit that lost it."""
        low, high = bounds
        searching, middle = low < high, (low + high) // 2
        following = jnp.minimum(middle + 1, begins.shape[-1] - 1)[..., None]
        at = jnp.where(searching, jnp.take_along_axis(begins, following, -1)[..., 0], -1)
        total, price = returns(context, context.params, rollout, at[..., None], key)
        alive = jnp.any(total >= SUCCESS, axis=(-2, -1))
        low = jnp.where(searching & alive, middle + 1, low)
        return (low, jnp.where(searching & ~alive, middle, high)), price

    high = jnp.where(unharmed, count, jnp.maximum(count - 1, 0))
    bounds = (jnp.where(unharmed, count, 0), high)
    rounds = (begins.shape[-1] - 1).bit_length()
    (first, _), prices = jax.lax.scan(halve, bounds, length=rounds)
    spent = jax.tree.map(lambda cost: jnp.sum(cost, axis=0), prices)
    label = jnp.where(numbers < first[..., None], 1.0, 0.0)
    return jnp.where(numbers >= 0, label, 0), unit_price + spent
