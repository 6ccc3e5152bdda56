"""Rows that share prefixes by sampling: who owns a token, where a tree forks, what nodes are worth.

A tree is in `Rollout.parent` and `Rollout.branch_at`. The *node* of a token is the prefix before
it; a row *forks* at t where another row of its tree leaves the prefix `tokens[:t]`. Rows that were
sampled apart are in different nodes from their first token on, even if they chose the same tokens;
the prompt is the node that all of a problem's rows share.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.recurrence import running_sum
from rlcredit.types import Array, Rollout

# How a scatter is told not to check its indices, which would take most of its time.
IN_BOUNDS = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS


def owners(parent: Array, branch_at: Array, length: int) -> Array:
    """[..., K, length] int32: the row that each position was not copied to, but sampled in.

    Args: parent, branch_at: [..., K] of `Rollout`.
    """
    rows = jnp.broadcast_to(jnp.arange(parent.shape[-1], dtype=jnp.int32), parent.shape)

    def climb(carry: tuple[Array, Array], _) -> tuple[tuple, tuple]:
        row, low = carry
        low = jnp.minimum(low, jnp.take_along_axis(branch_at, row, axis=-1))
        row = jnp.take_along_axis(parent, row, axis=-1)
        return (row, low), (row, low)

    # No row has more ancestors; to ask whether all are found would ask all devices.
    start = (rows, jnp.full_like(branch_at, length))
    _, (ancestors, lows) = jax.lax.scan(climb, start, length=parent.shape[-1] - 1)
    ancestors = jnp.moveaxis(jnp.concatenate([rows[None], ancestors]), 0, -1)
    # A position goes back one generation for each row on the way that copied it.
    position = jnp.arange(length)[(None,) * lows.ndim]
    generation = jnp.sum(position < lows[..., None], axis=0, dtype=jnp.int32)
    return jnp.take_along_axis(ancestors, generation, axis=-1)


def nodes(rollout: Rollout) -> Array:
    """[N, K, T] int32 in [0, K * T): names the node of each position; equal where it is shared.

    A node is named by the owner of the token before it. Before its first chosen token every row of
    a problem is in node 0.
    """
    length = rollout.mask.shape[-1]
    owner = owners(rollout.parent, rollout.branch_at, length)
    before = jnp.pad(owner[..., :-1], ((0, 0), (0, 0), (1, 0)))
    begun = running_sum(rollout.mask) - rollout.mask > 0
    name = before * length + jnp.arange(length)[None, None]
    return jnp.where(begun, name, 0).astype(jnp.int32)


def edges(rollout: Rollout) -> Array:
    """[N, K, T] int32 in [0, K * T): names each position's token with all before it, as sampled."""
    length = rollout.mask.shape[-1]
    owner = owners(rollout.parent, rollout.branch_at, length)
    return owner * length + jnp.arange(length, dtype=jnp.int32)[None, None]


def first_of_edge(rollout: Rollout) -> Array:
    """[N, K, T] bool: the lowest row among those that share this chosen token and all before it."""
    mask = rollout.mask
    samples = mask.shape[1]
    row = jnp.arange(samples, dtype=jnp.int32)[None, :, None]

    def lowest(row: Array, edge: Array) -> Array:
        flat = edge.ravel()
        return jax.ops.segment_min(row.ravel(), flat, num_segments=row.size, mode=IN_BOUNDS)[edge]

    return mask & (jax.vmap(lowest)(jnp.where(mask, row, samples), edges(rollout)) == row)


def children(rollout: Rollout) -> Array:
    """[N, K, T] float32: how many ways rows go on from the node of each chosen token.

    0 off the mask, 1 where a row does not fork. Rows without a chosen token are not counted.
    """
    return by_node(first_of_edge(rollout), nodes(rollout), rollout.mask)


def node_value(rollout: Rollout, leaf: Array) -> Array:
    """[N, K, T] float32: the mean over the children of each token's node of what they are worth,
    where a row's end is worth `leaf`; 0 off the mask.

    Args: leaf: [N, K].
    """
    mask = rollout.mask
    share = jnp.where(mask, 1 / jnp.maximum(children(rollout), 1), 1)
    way = jnp.cumprod(share[..., ::-1], axis=-1)[..., ::-1]  # how a uniform walk comes to the leaf
    return by_node(way * leaf[..., None], nodes(rollout), mask)


def by_node(x: Array, node: Array, mask: Array) -> Array:
    """[N, K, T] sums over the chosen tokens of a problem whose node is the same; 0 off the mask."""

    def of_problem(x: Array, node: Array) -> Array:
        flat = node.ravel()
        return jax.ops.segment_sum(x.ravel(), flat, num_segments=x.size, mode=IN_BOUNDS)[node]

    sums = jax.vmap(of_problem)(jnp.where(mask, x, 0).astype(jnp.float32), node)
    return jnp.where(mask, sums, 0)
