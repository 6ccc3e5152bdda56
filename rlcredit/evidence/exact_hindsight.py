"""How likely each choice was, given what the episode came to: exactly, by enumeration."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.exact_rows import from_trees
from rlcredit.exact.tree import Tree
from rlcredit.exact.values import Truth
from rlcredit.types import Array, Price, Rollout

SAME = 1e-5  # returns nearer than this are one


def exact_hindsight(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: log P(token | prefix, return), for the return that the episode had; 0 off
    the mask.

    P = sum of the probability of all episodes of that return that go on with the token, over that
    of all that go on from the prefix.

    Raises: InputError if a problem has more than 2**17 episodes.
    """
    del key
    found, price = from_trees(context, rollout, _posterior)
    return jnp.where(rollout.mask, found, 0), price


def _posterior(tree: Tree, truth: Truth, row: Array) -> Array:
    """[N, K, T] of the rows [N, K]."""

    def of_problem(node: Array, edge: Array, chance: Array, total: Array, row: Array) -> Array:
        def of_row(own: Array) -> Array:
            alike = jnp.where(jnp.abs(total - total[own]) < SAME, chance, 0)[:, None]
            going_on = jnp.sum(jnp.where(edge == edge[own][None], alike, 0), axis=0)
            there = jnp.sum(jnp.where(node == node[own][None], alike, 0), axis=0)
            return jnp.log(going_on) - jnp.log(there)

        return jax.lax.map(of_row, row)

    node = tree.node[..., :-1]
    return jax.vmap(of_problem)(node, tree.edge, truth.probability, truth.total, row)
