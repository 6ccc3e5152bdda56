"""Layouts of square mazes: random ones, and how many moves cells are apart.

The C = size * size cells are numbered row by row. A layout is `openings`, [C, 4] bool: True where a
cell can be left in a direction of `DIRECTIONS`. Random layouts are open both ways; a trap is a cell
that can be entered and not left. Every loop has a fixed number of rounds, so all of this can be
jitted and vmapped.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.types import Array

DIRECTIONS = "NESW"
_OPPOSITE = np.asarray([2, 3, 0, 1])


def neighbours(size: int) -> np.ndarray:
    """[C, 4] int: the cell that lies in each direction; at the border the cell itself."""
    row, column = np.divmod(np.arange(size * size), size)
    north, south = np.maximum(row - 1, 0), np.minimum(row + 1, size - 1)
    west, east = np.maximum(column - 1, 0), np.minimum(column + 1, size - 1)
    rows = np.stack([north, row, south, row], axis=1)
    columns = np.stack([column, east, column, west], axis=1)
    return rows * size + columns


def side(openings: Array) -> int:
    """The size of the maze that a layout belongs to."""
    return math.isqrt(openings.shape[0])


def mirrored(openings: Array) -> Array:
    """[C, 4] bool: True where the neighbour in a direction can be left towards this cell."""
    size = side(openings)
    return openings[neighbours(size), _OPPOSITE[None]] & _inner(size)


def perfect(key: Array, size: int) -> Array:
    """A random layout [C, 4] in which exactly one path joins any two cells.

    It is the minimum spanning tree of independent random edge weights, grown by Prim's algorithm
    (1957). Every spanning tree can occur; they are not all equally likely.
    """
    table = jnp.asarray(neighbours(size))
    drawn = jax.random.uniform(key, table.shape)
    weight = jnp.minimum(drawn, drawn[table, _OPPOSITE[None]])  # one weight for both sides

    def grow(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        openings, reached = carry
        frontier = reached[:, None] & ~reached[table]
        lightest = jnp.argmin(jnp.where(frontier, weight, jnp.inf))
        cell, direction = jnp.divmod(lightest, len(DIRECTIONS))
        added = table[cell, direction]
        openings = openings.at[cell, direction].set(True)
        openings = openings.at[added, jnp.asarray(_OPPOSITE)[direction]].set(True)
        return openings, reached.at[added].set(True)

    closed = jnp.zeros(table.shape, bool)
    first = jnp.arange(size * size) == 0
    return jax.lax.fori_loop(0, size * size - 1, grow, (closed, first))[0]


def dead_ends(openings: Array) -> Array:
    """[C] bool: cells that can be left in one direction only."""
    return jnp.sum(openings, axis=1) == 1


def braided(key: Array, openings: Array, chance: float) -> Array:
    """Opens one more wall, drawn uniformly, of each dead end with the given chance."""
    cells, directions = openings.shape
    drawn = jax.random.uniform(key, (cells, 1 + directions))
    chosen = dead_ends(openings) & (drawn[:, 0] < chance)
    wall = ~openings & _inner(side(openings))
    first = jnp.argmax(jnp.where(wall, drawn[:, 1:], -1), axis=1)
    opened = chosen[:, None] & (first[:, None] == jnp.arange(directions)[None])
    return openings | opened | mirrored(opened)


def trapped(key: Array, openings: Array, chance: float, spared: Array) -> Array:
    """Makes each dead end a trap with the given chance, but none that is `spared`, [C] bool.

    No path between two other cells leads through a dead end, so none is lost.
    """
    drawn = jax.random.uniform(key, spared.shape) < chance
    traps = dead_ends(openings) & ~spared & drawn
    return openings & ~traps[:, None]


def distances(openings: Array, goal: Array) -> Array:
    """[C] int32: fewest moves from each cell to the cell `goal`; -1 where there is no way."""
    table = jnp.asarray(neighbours(side(openings)))
    cells = openings.shape[0]

    def relax(_: int, moves: Array) -> Array:
        onward = jnp.where(openings, moves[table], cells)
        return jnp.minimum(moves, 1 + jnp.min(onward, axis=1))

    unknown = jnp.full(cells, cells, jnp.int32)  # more moves than any shortest path has
    moves = jax.lax.fori_loop(0, cells - 1, relax, unknown.at[goal].set(0))
    return jnp.where(moves < cells, moves, -1)


def _inner(size: int) -> np.ndarray:
    """[C, 4] bool: there is another cell in that direction."""
    return neighbours(size) != np.arange(size * size)[:, None]
