"""Batches of rows of the exact trees: episodes drawn apart, or trees grown from shared prefixes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.exact.tree import Tree
from rlcredit.exact.values import Truth
from rlcredit.types import Array, Rollout


class Batch(NamedTuple):
    """J batches of N problems and K samples each; without J where one of them is meant."""

    row: Array  # [J, N, K] int32 rows of the exact trees
    parent: Array  # [J, N, K] int32 as in `Rollout`
    branch_at: Array  # [J, N, K] int32 as in `Rollout`
    present: Array  # [J, N, K] bool; False for a row that could not branch off its parent
    key: Array  # [J] of what is drawn anew with every batch, see `redraw`


class Growth(NamedTuple):
    """How trees are grown; see `branching.grow`."""

    branching: tuple[int, ...] = ()  # in so many ways each row goes on, a number a stage
    cut: object = None  # (rollout, stage) -> [N, K] positions, -1 for none


def apart(row: Array, key: Array) -> Batch:
    """Batches of rows [J, N, K] that were drawn apart."""
    number = jnp.arange(row.shape[-1], dtype=jnp.int32)[None, None]
    return Batch(
        row=row,
        parent=jnp.broadcast_to(number, row.shape),
        branch_at=jnp.zeros_like(row),
        present=jnp.ones(row.shape, bool),
        key=jax.random.split(key, row.shape[0]),
    )


def drawn(tree: Tree, truth: Truth, samples: int, count: int, key: Array, growth: Growth) -> Batch:
    """`count` batches as sampling gives them, `samples` rows of each problem before they branch."""
    return _draw(tree, truth, key, samples=samples, count=count, growth=growth)


@functools.partial(jax.jit, static_argnames=("samples", "count", "growth"))
def _draw(tree, truth, key, *, samples: int, count: int, growth: Growth) -> Batch:
    root_key, own_key, *stage_keys = jax.random.split(key, 2 + len(growth.branching))
    problems = tree.count.shape[0]
    start = jnp.zeros((count, problems, samples), jnp.int32)
    batch = apart(continuation(tree, truth.probability, start, start, root_key), own_key)
    stages = zip(growth.branching, stage_keys, strict=True)
    for stage, (ways, stage_key) in enumerate(stages, start=1):
        batch = _grown(tree, truth, batch, growth.cut, stage, ways - 1, stage_key)
    return batch


def _grown(tree, truth, batch: Batch, cut, stage: int, others: int, key: Array) -> Batch:
    """The batches with `others` more rows for each, that leave it at its cut."""
    at = jax.lax.map(lambda one: cut(rollout_of(tree, truth, one), stage), batch)
    exists = (at >= 0) & batch.present

    def each(leaf: Array) -> Array:
        return jnp.repeat(leaf, others, axis=-1)

    source, at, exists = each(batch.row), each(jnp.maximum(at, 0)), each(exists)
    number = jnp.arange(batch.row.shape[-1], dtype=jnp.int32)[None, None]
    new = {
        "row": continuation(tree, truth.probability, source, at, key),
        "parent": each(jnp.broadcast_to(number, batch.row.shape)),
        "branch_at": at.astype(jnp.int32),
        "present": exists,
    }
    joined = {
        name: jnp.concatenate([getattr(batch, name), leaf], axis=-1) for name, leaf in new.items()
    }
    return batch._replace(**joined)


def continuation(tree: Tree, probability: Array, row: Array, at: Array, key: Array) -> Array:
    """Rows drawn among those that begin as `row` does before position `at`, by their probability.

    Args: probability: [N, M]; row, at: [J, N, ...] int32.
    Returns: [J, N, ...] int32.
    """

    def of_problem(node, count, probability, row: Array, at: Array, level: Array) -> Array:
        below = jnp.cumsum(probability)
        lowest = node[row, at]
        here = (jnp.arange(node.shape[0]) < count).astype(jnp.int32)
        sizes = jax.vmap(lambda names: jax.ops.segment_sum(here, names, here.size))(node.T)
        highest = lowest + sizes[at, lowest] - 1  # the rows of a prefix stand together
        left = below[lowest] - probability[lowest]
        level = left + level * (below[highest] - left)
        found = jnp.searchsorted(below, level, side="right")
        return jnp.clip(found, lowest, highest).astype(jnp.int32)

    level = jax.random.uniform(key, row.shape)
    over_problems = jax.vmap(of_problem, in_axes=(0, 0, 0, 1, 1, 1), out_axes=1)
    return over_problems(tree.node, tree.count, probability, row, at, level)


def rollout_of(tree: Tree, truth: Truth, batch: Batch) -> Rollout:
    """The rollout [N, K, T] of one batch."""
    whole = tree.rollout._replace(log_prob=truth.log_prob)
    rollout = jax.tree.map(lambda leaf: taken(leaf, batch.row), whole._replace(problem=None))
    kept = batch.present[..., None]
    return rollout._replace(
        mask=rollout.mask & kept,
        reward=jnp.where(kept, rollout.reward, 0),
        step=jnp.where(kept, rollout.step, -1),
        turn=jnp.where(kept, rollout.turn, -1),
        problem=whole.problem,
        parent=batch.parent,
        branch_at=batch.branch_at,
    )


def evidence_of(evidence: Mapping[str, Array], row: Array) -> dict[str, Array]:
    """Evidence about rows [N, K] out of that about all [N, M]; that of a problem as it is."""
    return {
        name: taken(array, row) if array.ndim > 1 else array for name, array in evidence.items()
    }


def taken(leaf: Array, row: Array) -> Array:
    """[N, M, ...] at rows [N, K]: [N, K, ...]."""
    return jax.vmap(lambda values, at: values[at])(leaf, row)
