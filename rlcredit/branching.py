"""Continuing prefixes: new episodes from any position of a row, and trees grown from them.

A prefix is restored by replaying it through the task, its chances included, and read in one forward
pass that all continuations of its row share.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlcredit.episode import Episode, states
from rlcredit.keys import branch_keys, position_keys
from rlcredit.lanes import Queue, Read, finished, prefix_rows, spent, work_off
from rlcredit.rollout import ALL_AT_ONCE, check_request, sample
from rlcredit.sharding import each_device
from rlcredit.types import (
    Array,
    InputError,
    Layout,
    Policy,
    Price,
    PyTree,
    Rollout,
    Sampling,
    Task,
    owned,
)

Cut = Callable[[Rollout, int], Array]  # (rollout, stage) -> [N, K] int32 positions


def branch(
    policy: Policy,
    params: PyTree,
    task: Task,
    rollout: Rollout,
    positions: Array,
    continuations: int,
    key: Array,
    *,
    sampling: Sampling,
    layout: Layout = ALL_AT_ONCE,
) -> tuple[Rollout, Price]:
    """Continue prefixes of a rollout's rows: `continuations` new episodes from each.

    A new row holds a copy of the prefix `tokens[:t]`; `branch_at` is t, and `parent` the row in the
    given rollout (see `join`).

    Args:
      rollout: of roots, or a whole tree: rows are replayed with the keys of their ancestors.
      positions: [N, K, P] int32 positions t of chosen tokens, whose choice is made anew. Where no
        token was chosen at t, and for t < 0, there is nothing to continue and the new rows are
        empty: no token, length 0.
      key: another key gives other continuations; the rows' own keys enter too.
    Returns: (Rollout, Price) with K * P * continuations rows a problem, in this order.
    Raises: InputError as `sample`.
    """
    check_request(policy, task, rollout.problem, continuations, sampling)
    keys = branch_keys(rollout.key, key, positions, continuations)

    def on_device(params: PyTree, rollout: Rollout, positions: Array, keys: Array):
        tokens = rollout.tokens.reshape(-1, rollout.tokens.shape[2])
        read = Read(*policy.extend(params, None, tokens, jnp.zeros(1, jnp.int32)))
        queue, group = _continuations(task, rollout, positions, keys)
        lanes = work_off(
            policy, params, task, rollout.problem, queue, read,
            lanes=layout.lanes, sampling=sampling,
        )  # fmt: skip
        rows = finished(lanes, rollout.problem, keys.reshape(keys.shape[0], -1))
        rows = rows._replace(**group)
        furthest = jnp.max(jnp.maximum(positions, 0), axis=2)
        before = jnp.arange(tokens.shape[1])[None, None] < furthest[..., None]
        price = spent(lanes, owned(rows), furthest)
        replayed = jnp.sum(rollout.mask & before, dtype=jnp.int32)
        return rows, price._replace(environment_steps=price.environment_steps + replayed)

    return each_device(layout.mesh, on_device, params, rollout, positions, keys)


def join(rollout: Rollout, branched: Rollout) -> Rollout:
    """A rollout and the rows that branch off it as one tree, the given rows first."""
    together = jax.tree.map(
        lambda a, b: jnp.concatenate([a, b], axis=1),
        rollout._replace(problem=None),
        branched._replace(problem=None),
    )
    return together._replace(problem=rollout.problem)


def grow(
    policy: Policy,
    params: PyTree,
    task: Task,
    problems: PyTree,
    problem_keys: Array,
    *,
    branching: tuple[int, ...],
    cut: Cut,
    sampling: Sampling,
    layout: Layout = ALL_AT_ONCE,
) -> tuple[Rollout, Price]:
    """Trees in stages: (6, 6, 6) gives 216 rows a problem that share the prefixes of 6 and of 36.

    Every row is a whole episode. In stage s each row there is goes on as it did from `cut` on, and
    in branching[s] - 1 other ways. Rows that end before their cut stay single, and the rows that
    would have come of them are empty.

    Args:
      cut: `(rollout, stage) -> [N, K]` positions, -1 for none; see `rlcredit.cuts`.
    Raises: InputError for a branching below 1, and as `sample`.
    """
    if not branching or min(branching) < 1:
        raise InputError(f"{branching=}: a tree needs one stage or more, each of 1 or more")
    rollout, price = sample(
        policy, params, task, problems, problem_keys,
        samples=branching[0], sampling=sampling, layout=layout,
    )  # fmt: skip
    for stage, children in enumerate(branching[1:], start=1):
        if children == 1:
            continue
        positions = cut(rollout, stage)[..., None]
        # The rows' keys hold the chance; what a stage adds to them is fixed.
        branched, cost = branch(
            policy, params, task, rollout, positions, children - 1, jax.random.key(stage),
            sampling=sampling, layout=layout,
        )  # fmt: skip
        rollout, price = join(rollout, branched), price + cost
    return rollout, price


def _continuations(task, rollout, positions, keys) -> tuple[Queue, dict[str, Array]]:
    """The queue of the new rows [N * K * P * continuations], and where they come from."""
    count, samples, length = rollout.tokens.shape
    at = jnp.clip(positions, 0, length - 1)
    exists = (positions >= 0) & jnp.take_along_axis(rollout.mask, at, axis=2)
    at = jnp.where(exists, at, 0)
    start = _episodes(task, rollout, at)._replace(terminated=~exists)
    row = jnp.arange(count * samples, dtype=jnp.int32).reshape(count, samples, 1)

    def each(leaf: Array) -> Array:
        spread = jnp.broadcast_to(leaf[:, :, :, None], (*keys.shape, *leaf.shape[3:]))
        return spread.reshape(keys.size, *leaf.shape[3:])

    source, exists, at = (each(jnp.broadcast_to(a, positions.shape)) for a in (row, exists, at))
    queue = Queue(
        episode=jax.tree.map(each, start),
        rows=prefix_rows(rollout, source, at),
        key=keys.reshape(-1),
        problem=source // samples,
        source=source,
        order=jnp.argsort(~exists, stable=True).astype(jnp.int32),
        count=jnp.sum(exists, dtype=jnp.int32),
    )
    group = {"parent": source % samples, "branch_at": at}
    return queue, {name: leaf.reshape(count, -1) for name, leaf in group.items()}


def _episodes(task: Task, rollout: Rollout, at: Array) -> Episode:
    """Every row's episode as it was before position `at` [N, K, P]; leaves [N, K, P, ...]."""

    def one(problem: PyTree, keys: Array, tokens: Array, mask: Array, at: Array) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[at], states(task, problem, keys, tokens, mask))

    in_group = jax.vmap(one, (None, 0, 0, 0, 0))
    keys = position_keys(rollout)
    state = jax.vmap(in_group)(rollout.problem, keys, rollout.tokens, rollout.mask, at)
    prompt_length = jax.vmap(task.prompt)(rollout.problem)[1][:, None, None]
    no = jnp.zeros(at.shape, bool)
    return Episode(
        position=at,
        limit=jnp.broadcast_to(prompt_length + task.horizon, at.shape),
        state=state,
        step=jnp.take_along_axis(rollout.step, at, axis=2),
        turn=jnp.take_along_axis(rollout.turn, at, axis=2),
        waiting=jnp.zeros((*at.shape, task.observation_capacity), jnp.int32),
        terminated=no,
        truncated=no,
    )
