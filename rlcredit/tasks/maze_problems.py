"""Maze problems: a layout with a start, an exit and perhaps a key, for training or held out.

Held out: for each layout and exit the starts that fit are numbered, a hash picks one residue class
of these numbers modulo `HOLD_OUT_EVERY` (or modulo how many there are, where they are fewer), and
training never starts there. Key and traps do not enter. Both sides draw uniformly from their own
starts, without rejection, so they are disjoint by construction. Which starts fit depends on the
limit and on whether there is a door: compare the two sides of the same settings only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.tasks import grid
from rlcredit.types import Array, InputError

HOLD_OUT_EVERY = 5
_FEWEST_DRAWN = 256  # held-out candidates at a time


class Problem(NamedTuple):
    """A maze of C cells with its start and its goals; made by `make_problem`."""

    openings: Array  # [C, 4] bool; see `grid`
    start_cell: Array  # int32
    exit_cell: Array  # int32
    key_cell: Array | None  # int32; None: no door
    to_exit: Array  # [C] int32 moves from each cell to the exit; -1 where there is no way
    to_key: Array | None  # [C] int32 the same to the key, never through the exit; None: no door


def make_problem(
    openings: Array, start_cell: Array, exit_cell: Array, key_cell: Array | None = None
) -> Problem:
    """The problem for a layout; without `key_cell` there is no door."""
    to_key = None
    if key_cell is not None:
        to_key = grid.distances(openings.at[exit_cell].set(False), key_cell)
    to_exit = grid.distances(openings, exit_cell)
    return Problem(openings, start_cell, exit_cell, key_cell, to_exit, to_key)


def draw_problem(
    key: Array,
    *,
    size: int,
    braid: float,
    door: bool,
    traps: float,
    limit: int,
    held_out: bool = False,
) -> Problem:
    """A random problem that `limit` moves are enough for, at least 2, or 3 with a door.

    The exit is uniform over all cells, the start over those that fit, and the key over those that
    can be reached while the exit is closed and leave enough moves for the way back.
    """
    cells = size * size
    layout_key, braid_key, cell_key, trap_key = jax.random.split(key, 4)
    layout = grid.braided(braid_key, grid.perfect(layout_key, size), braid)
    exit_drawn, start_drawn, key_drawn = jax.random.uniform(cell_key, (3, cells))
    exit_cell = jnp.argmax(exit_drawn).astype(jnp.int32)
    # At a distance of 2 the cell between can hold the key, so with a door every start has one.
    starts = _starts(layout, exit_cell, nearest=1 + door, limit=limit, held_out=held_out)
    start_cell = _largest(start_drawn, starts)
    spared = jnp.zeros(cells, bool).at[start_cell].set(True).at[exit_cell].set(True)
    key_cell = None
    if door:
        key_cell = _largest(key_drawn, _hiding_places(layout, start_cell, exit_cell, limit))
        spared = spared.at[key_cell].set(True)
    openings = grid.trapped(trap_key, layout, traps, spared)
    return make_problem(openings, start_cell, exit_cell, key_cell)


def distinct(draw: Callable[[Array], Problem], count: int, seed: int) -> Problem:
    """The first `count` different problems that are drawn, the same for the same seed.

    Args: draw: keys [M] -> problems, leaves [M, ...]; it is called for at least `count` at a time.
    Raises: InputError if one call brings nothing new before there are enough: then all that exist
      have, in all likelihood, been found.
    """
    if count < 1:
        raise InputError(f"{count} held-out problems asked for, give 1 or more")
    found, known = None, 0
    for number in itertools.count():
        round_key = jax.random.fold_in(jax.random.key(seed), number)
        drawn = draw(jax.random.split(round_key, max(count, _FEWEST_DRAWN)))
        drawn = jax.tree.map(np.asarray, drawn)
        found = drawn if found is None else jax.tree.map(_append, found, drawn)
        found = _without_repeats(found)
        if len(found.exit_cell) >= count:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf[:count]), found)
        if len(found.exit_cell) == known:
            raise InputError(f"{count} held-out problems asked for, these mazes have {known}")
        known = len(found.exit_cell)


def hash_of(openings: Array, numbers: list[Array]) -> Array:
    """uint32 of a layout and a few integers: the hash of a sum of hashes of (place, content).

    Zobrist (1970), with MurmurHash3's finalizer in the place of a table of random numbers.
    """
    codes = openings.astype(jnp.uint32) @ jnp.asarray([1, 2, 4, 8], jnp.uint32)
    codes = jnp.append(codes, jnp.stack(numbers).astype(jnp.uint32))
    places = jnp.arange(codes.shape[0], dtype=jnp.uint32)
    return _mixed(jnp.sum(_mixed(codes + places * jnp.uint32(0x9E3779B9)), dtype=jnp.uint32))


def _mixed(bits: Array) -> Array:
    """MurmurHash3's finalizer: every bit depends on every other."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _starts(layout: Array, exit_cell: Array, *, nearest: int, limit: int, held_out: bool) -> Array:
    """[C] bool: the starts of one side of the split; never empty."""
    away = grid.distances(layout, exit_cell)
    fits = (away >= nearest) & (away <= limit)
    classes = jnp.minimum(HOLD_OUT_EVERY, jnp.sum(fits)).astype(jnp.uint32)
    residue = hash_of(layout, [exit_cell]) % classes
    held = (jnp.cumsum(fits) - 1) % classes == residue
    return fits & (held if held_out else ~held)


def _hiding_places(layout: Array, start_cell: Array, exit_cell: Array, limit: int) -> Array:
    """[C] bool: the cells where the key can lie."""
    there = grid.distances(layout.at[exit_cell].set(False), start_cell)
    back = grid.distances(layout, exit_cell)
    return (there >= 1) & (there + back <= limit)


def _largest(drawn: Array, members: Array) -> Array:
    """int32 index of the largest number among the True of `members`, [C] bool."""
    return jnp.argmax(jnp.where(members, drawn, -1)).astype(jnp.int32)


def _append(found: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    return np.concatenate([found, drawn])


def _without_repeats(problems: Problem) -> Problem:
    """The first of each kind, in their order; leaves are numpy arrays [M, ...]."""
    leaves = jax.tree.leaves(problems)
    rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    return jax.tree.map(lambda leaf: leaf[first], problems)
