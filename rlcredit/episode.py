"""One episode in progress: what every position of a row does, whoever chooses the tokens.

At each position an episode takes the next token of an observation that waits to be read, or one
that is chosen: by a policy in `rollout`, by any function in `play`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.keys import chance_key, choice_key
from rlcredit.types import Array, PyTree, Rollout, Task


class Episode(NamedTuple):
    """Where an episode is."""

    position: Array  # int32 of the row that is written next
    limit: Array  # int32 positions that the row may fill: the prompt's length and the horizon
    state: PyTree  # of the task
    step: Array  # int32 number of the reasoning step
    turn: Array  # int32
    waiting: Array  # [observation_capacity] int32 tokens not read yet, then 0s
    terminated: Array  # bool
    truncated: Array  # bool


class Position(NamedTuple):
    """What a row holds at one position; 0, False or -1 where nothing was chosen."""

    token: Array  # int32
    mask: Array  # bool
    reward: Array  # float32
    step: Array  # int32
    turn: Array  # int32
    feedback: Array | None  # [F] float32


def begin(task: Task, problem: PyTree, length: Array) -> Episode:
    """One episode that has read its prompt of `length` tokens."""
    zero, false = jnp.int32(0), jnp.bool_(False)
    return Episode(
        position=length,
        limit=length + task.horizon,
        state=task.start(problem),
        step=zero,
        turn=zero,
        waiting=jnp.zeros(task.observation_capacity, jnp.int32),
        terminated=false,
        truncated=false,
    )


def is_read(episode: Episode) -> Array:
    """bool: no token of an observation waits."""
    return ~jnp.any(episode.waiting > 0)


def is_over(episode: Episode) -> Array:
    """bool: it has ended and the last observation is read."""
    return (episode.terminated | episode.truncated) & is_read(episode)


def advance(
    task: Task, problem: PyTree, episode: Episode, choice: Array, key: Array
) -> tuple[Episode, Position]:
    """Write one position of one episode: the next waiting token, else `choice`; nothing once it is
    over.

    After a choice the episode is truncated where another one and its observation might not fit.

    Args:
      choice: int32 token; key: what the task's chance is drawn with.
    """
    over, chosen = is_over(episode), is_read(episode) & ~is_over(episode)
    outcome = task.step(problem, episode.state, choice, key)
    waiting = jnp.roll(episode.waiting, -1).at[-1:].set(0)
    if outcome.observation is not None:
        heard = jnp.where(outcome.terminated, 0, outcome.observation)
        waiting = jnp.where(chosen, heard, waiting)
    position = episode.position + ~over
    room = episode.limit - position - jnp.sum(waiting > 0)
    full = room < 1 + task.observation_capacity
    following = Episode(
        position=position,
        limit=episode.limit,
        state=_where(chosen, outcome.state, episode.state),
        step=episode.step + (chosen & outcome.step_ended),
        turn=episode.turn + (chosen & outcome.turn_ended),
        waiting=waiting,
        terminated=episode.terminated | (chosen & outcome.terminated),
        truncated=episode.truncated | (chosen & ~outcome.terminated & (outcome.truncated | full)),
    )
    token = choice
    if task.observation_capacity:
        token = jnp.where(chosen, choice, episode.waiting[0])
    written = Position(
        token=jnp.where(over, 0, token),
        mask=chosen,
        reward=jnp.where(chosen, outcome.reward, 0),
        step=jnp.where(chosen, episode.step, -1),
        turn=jnp.where(chosen, episode.turn, -1),
        feedback=None if outcome.feedback is None else jnp.where(chosen, outcome.feedback, 0),
    )
    return following, written


def play_one(task: Task, problem: PyTree, key: Array, choose: Callable) -> tuple[Episode, Position]:
    """One whole episode without a network: how it ended, and its row, leaves [T, ...].

    Args:
      choose: `(problem, state, number, key) -> token`, where `number` counts the tokens chosen so
        far.
    """
    prompt, length = task.prompt(problem)

    def write(carry: tuple[Episode, Array], _: None):
        episode, number = carry
        own = choice_key(key, episode.position)
        choice = choose(problem, episode.state, number, own).astype(jnp.int32)
        chance = chance_key(key, episode.position)
        episode, written = advance(task, problem, episode, choice, chance)
        return (episode, number + written.mask), written

    start = (begin(task, problem, length), jnp.int32(0))
    (episode, _), columns = jax.lax.scan(write, start, length=task.horizon)
    return episode, row_of(prompt, length, columns)


def play(task: Task, problems: PyTree, keys: Array, choose: Callable) -> Rollout:
    """`play_one` of every problem, as a Rollout of one sample each whose log_prob is 0.

    Args: problems: leaves [N, ...]; keys: [N] episode keys.
    """
    one = jax.vmap(lambda problem, key: play_one(task, problem, key, choose))
    episodes, rows = jax.tree.map(lambda leaf: leaf[:, None], one(problems, keys))
    return as_rollout(
        rows,
        log_prob=jnp.zeros(rows.token.shape, jnp.float32),
        length=episodes.position,
        terminated=episodes.terminated,
        legal=None,
        problems=problems,
        keys=keys[:, None],
    )


def as_rollout(
    rows: Position,
    *,
    log_prob: Array,
    length: Array,
    terminated: Array,
    legal: Array | None,
    problems: PyTree,
    keys: Array,
) -> Rollout:
    """Finished rows [N, K, T] as a Rollout of roots; length, terminated and keys: [N, K]."""
    parent = jnp.broadcast_to(jnp.arange(keys.shape[1], dtype=jnp.int32)[None], keys.shape)
    return Rollout(
        tokens=rows.token,
        mask=rows.mask,
        reward=rows.reward,
        log_prob=log_prob,
        step=rows.step,
        turn=rows.turn,
        length=length,
        terminated=terminated,
        truncated=~terminated,
        legal=legal,
        feedback=rows.feedback,
        parent=parent,
        branch_at=jnp.zeros_like(parent),
        problem=problems,
        key=keys,
    )


def states(task: Task, problem: PyTree, keys: Array, tokens: Array, mask: Array) -> PyTree:
    """The state before each position of a row, and the one after the last: leaves [T + 1, ...].

    Args: keys: [T] the episode key that each position was drawn with; tokens, mask: [T].
    """

    def fold(state: PyTree, inputs: tuple) -> tuple[PyTree, PyTree]:
        position, key, token, chosen = inputs
        after = task.step(problem, state, token, chance_key(key, position)).state
        return _where(chosen, after, state), state

    inputs = (jnp.arange(tokens.shape[0]), keys, tokens, mask)
    last, before = jax.lax.scan(fold, task.start(problem), inputs)
    return jax.tree.map(lambda b, a: jnp.concatenate([b, a[None]]), before, last)


def row_of(prompt: Array, length: Array, columns: Position) -> Position:
    """[horizon] columns after a prompt of `length` tokens -> [T] positions of a row."""
    size = prompt.shape[0] + columns.mask.shape[0]
    empty = Position(0, 0, 0, -1, -1, None if columns.feedback is None else 0)
    row = jax.tree.map(lambda leaf, e: after_prompt(leaf, length, size, e), columns, empty)
    prompt_row = jnp.pad(prompt, (0, columns.mask.shape[0]))
    return row._replace(token=jnp.where(jnp.arange(size) < length, prompt_row, row.token))


def after_prompt(values: Array, length: Array, size: int, empty: float) -> Array:
    """[horizon, ...] values of the positions after a prompt -> [size, ...], `empty` elsewhere."""
    column = jnp.arange(size) - length
    inside = (column >= 0) & (column < values.shape[0])
    taken = values[jnp.clip(column, 0, values.shape[0] - 1)]
    kept = inside.reshape(-1, *[1] * (values.ndim - 1))
    return jnp.where(kept, taken, jnp.asarray(empty, values.dtype))


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
