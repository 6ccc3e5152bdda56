"""Every episode that can come of a problem, as the rows of a rollout, inside one jitted program.

The tree of token sequences is grown level by level: each row that is not over is followed by one
row for every token it may choose, and each of those by one for every answer of the task that can
be told apart. Rows stay in the order of their tokens, so the rows below any prefix stand together,
and a prefix is named by the first of them.

Networks read whole histories, so two prefixes that lead to the same state are not merged: a tree
has branching^choices rows. `tree_size` counts them beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.episode import (
    Episode,
    Position,
    advance,
    after_prompt,
    as_rollout,
    begin,
    is_over,
    is_read,
    row_of,
)
from rlcredit.types import Array, PyTree, Rollout, Task


class Tree(NamedTuple):
    """All episodes of N problems, at most M of each; rows beyond `count` are empty."""

    rollout: Rollout  # [N, M, T]; log_prob 0, no key replays a row
    chance: Array  # [N, M, T] float32 that the task answers token t as it did
    answer: Array  # [N, M, T] int32 the number of that answer, see `answers`
    node: Array  # [N, M, T + 1] int32: the first row with all that came before t
    edge: Array  # [N, M, T] int32: the first row with that and the token at t
    count: Array  # [N] int32 rows; above M they did not fit, and the tree is not whole


class _Level(NamedTuple):
    """What one turn of the growth adds; leaves [M, ...]."""

    parent: Array  # int32 into the rows of the level before
    choice: Array  # int32 into those rows, each with a token
    position: Position
    chance: Array  # float32
    answer: Array  # int32
    legal: Array | None  # [M, V] bool


def enumerate_episodes(task: Task, problems: PyTree, *, legal: bool, capacity: int) -> Tree:
    """The trees of N problems.

    Args:
      problems: leaves [N, ...].
      legal: only the task's legal tokens may be chosen; otherwise any of the vocabulary.
      capacity: M, the most rows of one problem.
    """
    return jax.vmap(lambda problem: _enumerate(task, problem, legal, capacity))(problems)


def present(tree: Tree) -> Array:
    """[N, M] bool: the row is an episode."""
    return jnp.arange(tree.chance.shape[1])[None] < tree.count[:, None]


def answers(task: Task, problem: PyTree, state: PyTree, token: Array):
    """(chances [C], transitions): `task.outcomes`, where those that are alike are one.

    The chance of equal ones stands at the first, the others have 0.
    """
    chances, transitions = task.outcomes(problem, state, token)
    alike = _alike(transitions, transitions)  # [C, C]
    first = jnp.argmax(alike, axis=1)
    return jnp.zeros_like(chances).at[first].add(chances), transitions


def which_answer(task: Task, problem: PyTree, state: PyTree, token: Array, key: Array) -> Array:
    """int32: which of `answers` the task gave with this key; 0 where it has but one."""
    if task.outcomes is None:
        return jnp.int32(0)
    _, transitions = answers(task, problem, state, token)
    given = jax.tree.map(lambda leaf: leaf[None], task.step(problem, state, token, key))
    return jnp.argmax(_alike(given, transitions)[0]).astype(jnp.int32)


def _alike(left: PyTree, right: PyTree) -> Array:
    """[A, B] bool: entry a of the one equals entry b of the other, in every leaf."""

    def equal(a: Array, b: Array) -> Array:
        a, b = (leaf.reshape(leaf.shape[0], -1) for leaf in (a, b))
        return jnp.all(a[:, None] == b[None], axis=-1)

    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jnp.all(jnp.stack([equal(a, b) for a, b in pairs]), axis=0)


def _enumerate(task: Task, problem: PyTree, legal: bool, capacity: int) -> Tree:
    prompt, length = task.prompt(problem)
    first = begin(task, problem, length)
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (capacity, *leaf.shape)), first)

    def grow(carry: tuple, _: None) -> tuple[tuple, _Level]:
        rows, count, most = carry
        rows, count, level = _grow(task, problem, legal, rows, count)
        return (rows, count, jnp.maximum(most, count)), level

    start = (rows, jnp.int32(1), jnp.int32(1))
    (rows, _, count), levels = jax.lax.scan(grow, start, length=task.horizon)
    return _as_tree(problem, prompt, length, rows, count, levels)


def _grow(task: Task, problem: PyTree, legal: bool, rows: Episode, count: Array):
    """(rows, count, level): every row followed by all that may come next."""
    capacity, vocabulary = rows.position.shape[0], len(task.vocabulary)
    exists = jnp.arange(capacity) < count
    chooses = jax.vmap(is_read)(rows) & ~jax.vmap(is_over)(rows)
    allowed = jnp.ones((capacity, vocabulary), bool)
    if legal:
        allowed = jax.vmap(lambda state: task.legal(problem, state))(rows.state)
    stays = jnp.arange(vocabulary)[None] == 0
    options = jnp.where(chooses[:, None], allowed, stays)
    (parent, token), count = _select(options & exists[:, None])

    chosen = chooses[parent]
    choice, answer = jnp.arange(capacity), jnp.zeros(capacity, jnp.int32)
    chance = jnp.ones(capacity, jnp.float32)
    if task.outcomes is not None:
        state = jax.tree.map(lambda leaf: leaf[parent], rows.state)
        chances = jax.vmap(lambda s, t: answers(task, problem, s, t)[0])(state, token)
        alone = jnp.arange(chances.shape[1])[None] == 0
        chances = jnp.where(chosen[:, None], chances, alone)
        exists = jnp.arange(capacity) < count
        (choice, answer), count = _select((chances > 0) & exists[:, None])
        chance = chances[choice, answer]
        parent, token = parent[choice], token[choice]
    before = jax.tree.map(lambda leaf: leaf[parent], rows)
    after, position = jax.vmap(
        lambda episode, token, answer: answered(task, problem, episode, token, answer)
    )(before, token, answer)
    level = _Level(parent, choice, position, chance, answer, allowed[parent] if legal else None)
    return after, count, level


def answered(task: Task, problem: PyTree, episode: Episode, token: Array, answer: Array):
    """`episode.advance` where the task gives this answer."""
    if task.outcomes is None:
        return advance(task, problem, episode, token, jax.random.key(0))

    def step(problem: PyTree, state: PyTree, token: Array, answer: Array):
        transitions = task.outcomes(problem, state, token)[1]
        return jax.tree.map(lambda leaf: leaf[answer], transitions)

    return advance(task._replace(step=step), problem, episode, token, answer)


def _select(options: Array) -> tuple[tuple[Array, Array], Array]:
    """((row, column), count) of the True entries of [M, X] in order, at most M; int32."""
    rows, columns = options.shape
    (flat,) = jnp.nonzero(options.reshape(-1), size=rows, fill_value=0)
    row, column = jnp.divmod(flat.astype(jnp.int32), columns)
    return (row, column), jnp.sum(options, dtype=jnp.int32)


def _as_tree(problem, prompt, length, rows: Episode, count: Array, levels: _Level) -> Tree:
    capacity, horizon = rows.position.shape[0], levels.parent.shape[0]
    size = prompt.shape[0] + horizon
    exists = jnp.arange(capacity) < count

    def ancestors(below: Array, level: tuple[Array, Array]) -> tuple[Array, tuple]:
        parent, choice = level
        return parent[below], (below, choice[below])

    last = jnp.arange(capacity)
    root, (after, chosen) = jax.lax.scan(
        ancestors, last, (levels.parent, levels.choice), reverse=True
    )
    # The row that each row was at each level: [horizon, M, ...] -> [M, horizon, ...].
    columns = jax.tree.map(
        lambda leaf: jnp.moveaxis(jax.vmap(lambda values, at: values[at])(leaf, after), 0, 1),
        (levels.position, levels.chance, levels.answer, levels.legal),
    )
    position, chance, answer, legal = columns

    def placed(values: Array, empty: float) -> Array:
        return jax.vmap(lambda row: after_prompt(row, length, size, empty))(values)

    first = jax.vmap(_first_of)
    nodes = first(jnp.concatenate([root[None], after])).T  # [M, horizon + 1]
    level = jnp.clip(jnp.arange(size + 1) - length, 0, horizon)
    node = jnp.where(exists[:, None], nodes[:, level], last[:, None])
    inside = (jnp.arange(size) >= length) & (jnp.arange(size) < length + horizon)
    edges = placed(first(chosen).T, 0)
    edge = jnp.where(exists[:, None] & inside[None], edges, node[:, :-1])
    rollout = _rollout(problem, jax.vmap(lambda c: row_of(prompt, length, c))(position), rows)
    if legal is not None:
        legal = placed(legal, 0) & rollout.mask[..., None]
    rollout = _emptied(rollout._replace(legal=legal), exists)
    return Tree(rollout, placed(chance, 1), placed(answer, 0), node, edge, count)


def _first_of(names: Array) -> Array:
    """[M]: the first index with the same name; names in [0, M)."""
    index = jnp.arange(names.shape[0])
    return jax.ops.segment_min(index, names, names.shape[0])[names]


def _rollout(problem: PyTree, rows: Position, ends: Episode) -> Rollout:
    """One problem's rows [M, T] as a Rollout without its axis of problems."""
    keys = jnp.broadcast_to(jax.random.key(0), ends.position.shape)
    batched = as_rollout(
        jax.tree.map(lambda leaf: leaf[None], rows),
        log_prob=jnp.zeros((1, *rows.mask.shape), jnp.float32),
        length=ends.position[None],
        terminated=ends.terminated[None],
        legal=None,
        problems=None,
        keys=keys[None],
    )
    return jax.tree.map(lambda leaf: leaf[0], batched)._replace(problem=problem)


def _emptied(rollout: Rollout, exists: Array) -> Rollout:
    """Rows that do not exist hold nothing."""

    def kept(values: Array, empty: float) -> Array:
        return jnp.where(exists[:, None], values, jnp.asarray(empty, values.dtype))

    return rollout._replace(
        tokens=kept(rollout.tokens, 0),
        mask=kept(rollout.mask, 0),
        reward=kept(rollout.reward, 0),
        step=kept(rollout.step, -1),
        turn=kept(rollout.turn, -1),
        length=jnp.where(exists, rollout.length, 0),
        terminated=exists & rollout.terminated,
        truncated=exists & rollout.truncated,
        legal=None if rollout.legal is None else rollout.legal & exists[:, None, None],
    )
