"""What enumeration says of a rollout's rows."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.exact.lookup import find
from rlcredit.exact.size import row_capacity
from rlcredit.exact.tree import Tree, enumerate_episodes, present
from rlcredit.exact.values import Truth, exact
from rlcredit.sharding import each_device
from rlcredit.types import Array, Price, PyTree, Rollout, Task

BUDGET = 2**17  # rows of one problem


def exact_rows(context: Context, rollout: Rollout) -> tuple[Truth, Price]:
    """(Truth with leaves [N, K, ...], price) of the rollout's own rows; see `from_trees`."""

    def own(tree: Tree, truth: Truth, row: Array) -> Truth:
        del tree
        return jax.tree.map(jax.vmap(lambda leaf, at: leaf[at]), truth, Truth(*[row] * len(truth)))

    return from_trees(context, rollout, own)


def from_trees(context: Context, rollout: Rollout, describe: Callable) -> tuple[PyTree, Price]:
    """(what `describe` says of the rollout's rows, price), from the exact trees of its problems.

    nan for a row that is not in its tree: one without a token, or of a problem whose tree is larger
    than those of the 64 problems that were counted.

    Args: describe: (tree, truth, row [N, K] of each episode) -> numbers [N, K, ...].
    Raises: InputError if a problem has more than `BUDGET` episodes.
    """
    legal = context.sampling.legal
    with jax.ensure_compile_time_eval():
        capacity = _capacity(context.task, legal)

    def on_device(params: PyTree, rollout: Rollout) -> tuple[PyTree, Price]:
        tree = enumerate_episodes(context.task, rollout.problem, legal=legal, capacity=capacity)
        truth = exact(context.policy, params, tree, context.sampling)
        row = find(context.task, tree, rollout)

        def where_known(leaf: Array) -> Array:
            known = (row >= 0).reshape(*row.shape, *[1] * (leaf.ndim - 2))
            return jnp.where(known, leaf, jnp.nan)

        first = tree.edge == jnp.arange(capacity)[None, :, None]
        price = Price(
            tokens_scored=jnp.sum(jnp.where(present(tree), tree.rollout.length, 0)),
            environment_steps=jnp.sum(tree.rollout.mask & first, dtype=jnp.int32),
        )
        described = describe(tree, truth, jnp.maximum(row, 0))
        return jax.tree.map(where_known, described), price

    return each_device(context.layout.mesh, on_device, context.params, rollout)


@functools.lru_cache(maxsize=64)
def _capacity(task: Task, legal: bool) -> int:
    return row_capacity(task, legal=legal, budget=BUDGET)
