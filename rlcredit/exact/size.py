"""How large the trees of a task are, before any of them is grown or read by a network; on the host.

A count needs no histories: what comes of two rows in the same state is the same, so states are
merged and carry how many rows lead to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.episode import Episode, advance, begin, is_read
from rlcredit.exact.tree import answered, answers
from rlcredit.types import Array, InputError, PyTree, Task

# States that are followed at a time, and the most of one level before the count gives up.
_BLOCK = 256
_MOST_STATES = 2**15

# Problems that are counted to know what is enough for all of a task. A tree that turns out larger
# all the same is known not to be whole.
_COUNTED = 64


class Size(NamedTuple):
    """How many episodes can come of a problem."""

    rows: int
    exact: bool  # otherwise there are more

    def __str__(self) -> str:
        return f"{'' if self.exact else 'more than '}{self.rows:,}"


def tree_size(task: Task, problem: PyTree, *, legal: bool) -> Size:
    """The number of rows of a problem's tree, counted over merged states.

    Args:
      problem: one; legal: only the task's legal tokens may be chosen.
    Raises: InputError for a task that leaves something to chance and does not say what.
    """
    return _count(_follower(task, legal), task, problem)


def row_capacity(task: Task, *, legal: bool, budget: int) -> int:
    """Rows that are enough for the trees of the task's problems: the most of 64 drawn ones.

    Raises: InputError if it is above the budget, with the size and what can be done instead; and as
      `tree_size`.
    """
    keys = jax.random.split(jax.random.key(0), _COUNTED)
    problems = jax.jit(jax.vmap(task.draw))(keys)
    follow, most = _follower(task, legal), 0
    for number in range(_COUNTED):
        size = _count(follow, task, jax.tree.map(lambda leaf, n=number: leaf[n], problems))
        most = max(most, size.rows)
        if most > budget or not size.exact:
            tokens = "legal tokens" if legal else "any tokens (legal=True leaves fewer)"
            raise InputError(
                f"a problem of task {task.name!r} has {size} episodes of {tokens}, too many for "
                f"the budget of {budget:,}; estimate by Monte Carlo: oracle.monte_carlo_value"
            )
    return most


def _count(follow: Callable, task: Task, problem: PyTree) -> Size:
    length = task.prompt(problem)[1]
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[None], begin(task, problem, length))
    ways, ended = np.ones(1, object), 0  # of Python integers: no count overflows
    while ways.size:
        if ways.size > _MOST_STATES:
            return Size(ended + int(ways.sum()), False)
        blocks = [
            follow(problem, jax.tree.map(lambda leaf, s=start: leaf[s : s + _BLOCK], states))
            for start in range(0, ways.size, _BLOCK)
        ]
        states = jax.tree.map(lambda *parts: np.concatenate(parts), *(b[0] for b in blocks))
        ways = np.concatenate([ways[_BLOCK * n + b[1]] for n, b in enumerate(blocks)])
        states, ways = _merged(states, ways)
        going = ~_over(states)
        ended += int(ways[~going].sum())
        states, ways = jax.tree.map(lambda leaf, g=going: leaf[g], states), ways[going]
    return Size(ended, True)


def _merged(states: Episode, ways: np.ndarray) -> tuple[Episode, np.ndarray]:
    """Each different state once, and in how many ways it is reached."""
    leaves, count = jax.tree.leaves(states), ways.size
    parts = [np.frombuffer(leaf.tobytes(), np.uint8).reshape(count, -1) for leaf in leaves]
    packed = np.ascontiguousarray(np.concatenate(parts, axis=1))
    rows = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    total = np.zeros(first.size, object)
    np.add.at(total, inverse, ways)
    return jax.tree.map(lambda leaf: leaf[first], states), total


def _over(episodes: Episode) -> np.ndarray:
    ended = episodes.terminated | episodes.truncated
    return ended & ~np.any(episodes.waiting > 0, axis=1)


@functools.lru_cache(maxsize=64)
def _follower(task: Task, legal: bool) -> Callable:
    """`(problem, episodes [B]) -> (episodes after every possible token and answer, source row)`."""
    one = jax.jit(jax.vmap(functools.partial(_followers, task, legal), in_axes=(None, 0)))

    def follow(problem: PyTree, episodes: Episode) -> tuple[Episode, np.ndarray]:
        count = episodes.position.shape[0]
        padded = jax.tree.map(lambda leaf: np.resize(leaf, (_BLOCK, *leaf.shape[1:])), episodes)
        after, possible, certain = jax.tree.map(np.asarray, one(problem, padded))
        if not certain.all():
            raise InputError(
                f"task {task.name!r} leaves something to chance: its `outcomes` have to say what"
            )
        possible = possible & (np.arange(_BLOCK) < count)[:, None, None]
        return jax.tree.map(lambda leaf: leaf[possible], after), np.nonzero(possible)[0]

    return follow


def _followers(task: Task, legal: bool, problem: PyTree, episode: Episode):
    """(episodes [V, C], possible [V, C], certain): one row followed by all that may come next."""
    tokens = jnp.arange(len(task.vocabulary))
    allowed = task.legal(problem, episode.state) if legal else jnp.ones(tokens.shape, bool)
    allowed = jnp.where(is_read(episode), allowed, tokens == 0)
    if task.outcomes is not None:
        chances = jax.vmap(lambda token: answers(task, problem, episode.state, token)[0])(tokens)
        alone = jnp.arange(chances.shape[1])[None] == 0
        possible = jnp.where(is_read(episode), chances > 0, alone)
        numbers = jnp.arange(chances.shape[1])
        over_answers = jax.vmap(
            lambda token, n: answered(task, problem, episode, token, n)[0], (None, 0)
        )
        after = jax.vmap(over_answers, (0, None))(tokens, numbers)
        return after, allowed[:, None] & possible, jnp.bool_(True)

    def with_key(key: Array) -> tuple:
        return jax.vmap(lambda token: advance(task, problem, episode, token, key))(tokens)

    (after, written), other = with_key(jax.random.key(0)), with_key(jax.random.key(1))
    pairs = zip(jax.tree.leaves((after, written)), jax.tree.leaves(other), strict=True)
    certain = jnp.all(jnp.stack([jnp.array_equal(a, b, equal_nan=True) for a, b in pairs]))
    return jax.tree.map(lambda leaf: leaf[:, None], after), allowed[:, None], certain
