"""Shapley values: what each player of a game adds, on average over the orders of joining."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from rlcredit.coalitions import all_coalitions
from rlcredit.types import Array


def shapley_value(value: Array) -> Array:
    """phi[u] = sum over coalitions S without u of
    |S|! (U - |S| - 1)! / U! * (value[S and u] - value[S])

    The only shares that always sum up to value[all] - value[none], are equal for players who add
    the same everywhere, 0 for one who adds nothing anywhere, and linear in `value`. Shapley, 1953.

    Args: value: [..., 2**U]; bit u of the index says whether player u is there.
    Returns: [..., U]; exactly 0 for a player who adds nothing.
    """
    players = value.shape[-1].bit_length() - 1
    there = all_coalitions(players)
    without = np.stack([np.flatnonzero(~there[:, u]) for u in range(players)])  # [U, 2**(U - 1)]
    added = value[..., without + 2 ** np.arange(players)[:, None]] - value[..., without]
    chance = np.array([1 / (players * math.comb(players - 1, s)) for s in range(players)])
    weight = jnp.asarray(chance[there.sum(axis=1)[without]], jnp.float32)
    return jnp.einsum("...us,us->...u", added, weight, precision="highest")


def shapley_of_orders(value: Array, order: np.ndarray) -> Array:
    """phi[u] = mean over orders of what was added when u joined.

    The Shapley value if all U! orders are there; unbiased for it if they are drawn at random. In
    each order the shares sum up to value[all] - value[none].

    Args:
      value: [..., orders, U + 1] of the first 0, 1, ..., U players; order: [orders, U] who joins.
    Returns: [..., U].
    """
    added = jnp.diff(value, axis=-1)
    place = np.argsort(order, axis=1)
    return jnp.mean(added[..., np.arange(len(order))[:, None], place], axis=-2)
