"""A maze as tokens, as a line of text and as a picture.

Token 0 is padding. The others are the four moves, three thoughts, one token for each of the 16
sets of directions in which a cell can be left, markers, and the numbers of rows and columns.
"""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np

from rlcredit.tasks import grid
from rlcredit.types import Array

LARGEST = 15  # the most rows or columns that there are tokens for
THOUGHTS = ("hm", "so", "if")
_SIDES = tuple(
    f"[{''.join(name for bit, name in enumerate(grid.DIRECTIONS) if code >> bit & 1)}]"
    for code in range(2 ** len(grid.DIRECTIONS))
)
_FIXED = (
    "_",
    *(f">{name}" for name in grid.DIRECTIONS),
    *THOUGHTS,
    *_SIDES,
    *("start", "exit", "key", "no-key", "has-key"),
)
FIRST_MOVE = _FIXED.index(">N")
FIRST_THOUGHT = _FIXED.index(THOUGHTS[0])
FIRST_SIDES = _FIXED.index(_SIDES[0])
START, EXIT, KEY, NO_KEY, HAS_KEY = range(_FIXED.index("start"), len(_FIXED))
FIRST_NUMBER = len(_FIXED)


def vocabulary(size: int) -> tuple[str, ...]:
    """The tokens of a maze of `size` rows and columns."""
    return (*_FIXED, *map(str, range(size)))


def is_move(token: Array) -> Array:
    """bool: the token is one of the four moves."""
    return (token >= FIRST_MOVE) & (token < FIRST_MOVE + len(grid.DIRECTIONS))


def is_thought(token: Array) -> Array:
    """bool: the token is one of the thoughts."""
    return (token >= FIRST_THOUGHT) & (token < FIRST_THOUGHT + len(THOUGHTS))


def sides(openings: Array) -> Array:
    """[...] int32 tokens that say where cells can be left; openings: [..., 4] bool.

    A trap reads `[]`: from inside it has no way out.
    """
    return FIRST_SIDES + openings.astype(jnp.int32) @ jnp.asarray([1, 2, 4, 8], jnp.int32)


def place(cell: Array, size: int) -> Array:
    """[2] int32 tokens: the row and the column of a cell."""
    return FIRST_NUMBER + jnp.stack(jnp.divmod(cell, size)).astype(jnp.int32)


def text(tokens: Array) -> str:
    """A row as a line, without its padding: `exit(3,1) at(0,2)[ES] >E at(0,3)[W] >W ...`."""
    names = vocabulary(LARGEST)
    line = " ".join(names[int(token)] for token in tokens if int(token) != 0)
    line = re.sub(r"(?<!\S)(start|exit|key) (\d+) (\d+)(?!\S)", r"\1(\2,\3)", line)
    return re.sub(r"(\d+) (\d+) \[", r"at(\1,\2)[", line)


def picture(openings: Array, letters: dict[int, str]) -> str:
    """The walls of a maze in ASCII, with a letter in some of its cells.

    There is a wall where neither side can be left: the way into a trap is drawn open.
    """
    openings = np.asarray(openings)
    passable = openings | grid.mirrored(openings)
    size = grid.side(openings)
    east, south = grid.DIRECTIONS.index("E"), grid.DIRECTIONS.index("S")
    lines = ["+" + "---+" * size]
    for row in range(0, size * size, size):
        cells = range(row, row + size)
        inside = (f" {letters.get(c, ' ')} " + " |"[not passable[c, east]] for c in cells)
        below = ("---+" if not passable[c, south] else "   +" for c in cells)
        lines += ["|" + "".join(inside), "+" + "".join(below)]
    return "\n".join(lines)
