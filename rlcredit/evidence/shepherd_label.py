"""Whether success can still be reached after each unit."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import SUCCESS, after, returns, solved, starts
from rlcredit.evidence.unit import unit
from rlcredit.types import Array, Price, Rollout


def shepherd_label(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: 1 if any of `probing.continuations` new episodes from the end of the
    token's unit succeeds, else 0; after the last unit whether the episode itself did.

    An episode succeeds if its whole return is 1 or more, up to rounding; a task that pays less at
    best has no success. 0 off the mask. The hard estimate of Math-Shepherd, Wang et al., 2023,
    arXiv 2312.08935. The source was not read in full; that the last unit needs no new episode is
    our own operationalisation.
    """
    numbers, unit_price = unit(context, rollout, key)
    ends = starts(context, numbers).at[..., 0].set(-1)  # nothing ends where the first one begins
    total, price = returns(context, context.params, rollout, ends, key)
    alive = after(jnp.any(total >= SUCCESS, axis=-1), solved(rollout), numbers)
    return units.of_unit(alive.astype(jnp.float32), numbers), unit_price + price
