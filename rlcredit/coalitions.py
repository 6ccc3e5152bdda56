"""Which coalitions of an episode's units are looked at: sets of players that are kept together.

A player is a unit of an episode by its number; the last player takes all units that follow. Up to
`MOST` players all coalitions are formed, above that those of players who join one by one.
"""

from __future__ import annotations

import numpy as np

from rlcredit.types import InputError

MOST = 10  # players of whom all 2**U coalitions are formed
NAMED = 30  # players whose coalitions have an int32 name


def all_coalitions(players: int) -> np.ndarray:
    """[2**U, U] bool: coalition c holds player u if bit u of c is set."""
    return (np.arange(2**players)[:, None] >> np.arange(players)) & 1 == 1


def orders(players: int, count: int) -> np.ndarray:
    """[count, U] int: random orders in which the players join; the same in every call."""
    rng = np.random.default_rng(0)
    return np.stack([rng.permutation(players) for _ in range(count)])


def joined(order: np.ndarray) -> np.ndarray:
    """[orders, U + 1, U] bool: who is there after the first 0, 1, ..., U have joined.

    Args: order: [orders, U].
    """
    place = np.argsort(order, axis=1)
    return np.arange(order.shape[1] + 1)[None, :, None] > place[:, None]


def formed(players: int, count: int) -> np.ndarray:
    """[2**U, U] bool, or of more than `MOST` players [count, U + 1, U]: what is to be valued.

    Args: count: orders, where these are needed.
    Raises: InputError for a number of players or orders that cannot be used.
    """
    if not 1 <= players <= NAMED:
        raise InputError(f"{players=}: coalitions are formed by 1 to {NAMED}")
    if players <= MOST:
        return all_coalitions(players)
    if count < 1:
        raise InputError(f"orders={count}: {players} players join in at least one order")
    return joined(orders(players, count))
