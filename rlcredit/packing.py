"""Several episodes in one row, so that a forward pass reads no padding.

Rows of a rollout hold T tokens and most episodes are shorter. For the update they are laid one
behind another into as few rows as will do: a slot of a packed row reads one token of one episode,
and attention keeps to the slots of the same episode (`segment` of `Policy.forward`). An episode is
never cut in two. The last token of an episode is predicted and never read, so a row has T - 1
slots, and an episode that fills its row of the rollout fills a packed one.

How many rows are in use is known at run time only. There are as many as episodes, so they always
fit, those in use come first, and `fold` visits no others: no capacity is chosen beforehand, and
other lengths compile nothing anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rlcredit.types import Array, PyTree


class Slots(NamedTuple):
    """What packed rows read."""

    episode: Array  # [R, S] int32 whose token lies in the slot; B where it is empty
    position: Array  # [R, S] int32 of that token in its episode


class Packing(NamedTuple):
    """B episodes in at most B rows of S slots."""

    slots: Slots  # [B, S]
    row: Array  # [B] int32 where each episode lies; of size 0: some row
    used: Array  # int32; the first rows hold all there is


class Piece(NamedTuple):
    """Some packed rows, and the episodes in them."""

    slots: Slots  # [rows, S]
    present: Array  # [B] bool


def tokens_read(mask: Array) -> Array:
    """How many tokens of each row must be read to predict all chosen ones: those before the last.

    Args: mask: [..., T].
    Returns: [...] int32; 0 for a row without a chosen token.
    """
    position = lax.broadcasted_iota(jnp.int32, mask.shape, mask.ndim - 1)
    return jnp.max(jnp.where(mask, position, 0), axis=-1)


def pack(size: Array, capacity: int) -> Packing:
    """First-fit decreasing: the largest episode first, each into the first row that has room.

    It needs at most 11 / 9 of the least possible number of rows, and two thirds of one (Dosa, 2007,
    "The tight bound of first fit decreasing bin-packing algorithm").

    Args: size: [B] int32 in 0..capacity; capacity: S.
    """
    row, start = _first_fit_decreasing(size, capacity)
    used = jnp.max(jnp.where(size > 0, row + 1, 0))
    return Packing(_slots(size, row, start, capacity), row, used)


def take(packing: Packing, first: Array | int, rows: int) -> Piece:
    """Rows first..first + rows - 1."""
    slots = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, rows), packing.slots)
    return Piece(slots, (packing.row >= first) & (packing.row < first + rows))


def fold(
    add: Callable[[PyTree, Piece], PyTree], total: PyTree, packing: Packing, rows: int
) -> PyTree:
    """`total = add(total, piece)` over the rows in use: pieces of `rows`, the rest in eighths.

    Fewer than rows / 8 empty rows are visited, where 8 divides `rows`; else the rest is split as
    finely as a divisor of 8 allows.

    Args: rows: of a piece, a divisor of the number of episodes.
    """
    least = rows // math.gcd(rows, 8)
    wanted = -(-packing.used // least) * least
    done = jnp.int32(0)
    for size in sorted({rows, least}, reverse=True):
        first, last = done // size, wanted // size

        def visit(number: Array, total: PyTree, size: int = size) -> PyTree:
            return add(total, take(packing, number * size, size))

        total = lax.fori_loop(first, last, visit, total)
        done = last * size
    return total


def _first_fit_decreasing(size: Array, capacity: int) -> tuple[Array, Array]:
    """(row, first slot) of each episode."""

    def place(free: Array, size_b: Array) -> tuple[Array, tuple[Array, Array]]:
        row = jnp.argmax(free >= size_b).astype(jnp.int32)
        return free.at[row].add(-size_b), (row, capacity - free[row])

    order = jnp.argsort(size, descending=True)
    _, placed = lax.scan(place, jnp.full_like(size, capacity), size[order])
    return jax.tree.map(lambda a: jnp.zeros_like(a).at[order].set(a), placed)


def _slots(size: Array, row: Array, start: Array, capacity: int) -> Slots:
    """Marks where each episode starts and carries the mark on for as long as it lasts."""
    episodes = size.shape[0]
    marked = jnp.where(size > 0, start, capacity)
    starts = jnp.full((episodes, capacity), episodes, jnp.int32)
    starts = starts.at[row, marked].set(jnp.arange(episodes, dtype=jnp.int32), mode="drop")
    slot = jnp.arange(capacity, dtype=jnp.int32)[None]
    latest = lax.cummax(jnp.where(starts < episodes, slot, 0), axis=1)
    episode = jnp.take_along_axis(starts, latest, axis=1)
    position = slot - latest
    held = position < size.at[episode].get(mode="fill", fill_value=0)
    return Slots(jnp.where(held, episode, episodes), position)
