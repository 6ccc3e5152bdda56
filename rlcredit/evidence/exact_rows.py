"""What enumeration says of a rollout's rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.exact.lookup import find
from rlcredit.exact.size import row_capacity
from rlcredit.exact.tree import enumerate_episodes, present
from rlcredit.exact.values import Truth, exact
from rlcredit.sharding import each_device
from rlcredit.types import Price, PyTree, Rollout, Task

BUDGET = 2**17  # rows of one problem


def exact_rows(context: Context, rollout: Rollout) -> tuple[Truth, Price]:
    """(Truth with leaves [N, K, ...], price) of the rollout's own rows.

    nan for a row that is not in its tree: one without a token, or of a problem whose tree is larger
    than those of the 64 problems that were counted.

    Raises: InputError if a problem has more than `BUDGET` episodes.
    """
    legal = context.sampling.legal
    with jax.ensure_compile_time_eval():
        capacity = _capacity(context.task, legal)

    def on_device(params: PyTree, rollout: Rollout) -> tuple[Truth, Price]:
        tree = enumerate_episodes(context.task, rollout.problem, legal=legal, capacity=capacity)
        truth = exact(context.policy, params, tree, context.sampling)
        row = find(context.task, tree, rollout)

        def own(leaf):
            taken = jax.vmap(lambda values, at: values[at])(leaf, jnp.maximum(row, 0))
            known = (row >= 0).reshape(*row.shape, *[1] * (taken.ndim - 2))
            return jnp.where(known, taken, jnp.nan)

        first = tree.edge == jnp.arange(capacity)[None, :, None]
        price = Price(
            tokens_scored=jnp.sum(jnp.where(present(tree), tree.rollout.length, 0)),
            environment_steps=jnp.sum(tree.rollout.mask & first, dtype=jnp.int32),
        )
        return jax.tree.map(own, truth), price

    return each_device(context.layout.mesh, on_device, context.params, rollout)


@functools.lru_cache(maxsize=64)
def _capacity(task: Task, legal: bool) -> int:
    return row_capacity(task, legal=legal, budget=BUDGET)
