"""Is a task what it says? Wrong shapes, episodes that never end, rewards that are no number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.episode import play
from rlcredit.types import Array, InputError, PyTree, Task


def check_shapes(task: Task, problem: PyTree) -> None:
    """Trace every function of a task once.

    Args:
      problem: one problem, arrays or their shapes.
    Raises: InputError naming the task, the function and what it returned.
    """
    token, key = jax.ShapeDtypeStruct((), jnp.int32), jax.eval_shape(lambda: jax.random.key(0))
    integer, flag = token, jax.ShapeDtypeStruct((), bool)
    number = jax.ShapeDtypeStruct((), jnp.float32)
    state = _traced(task, "start", problem)
    after = _traced(task, "step", problem, state, token, key)

    prompt = jax.ShapeDtypeStruct((task.prompt_capacity,), jnp.int32)
    _expect(task, "prompt", _traced(task, "prompt", problem), (prompt, integer))
    legal = jax.ShapeDtypeStruct((len(task.vocabulary),), bool)
    _expect(task, "legal", _traced(task, "legal", problem, state), legal)
    fingerprint = jax.ShapeDtypeStruct((), jnp.uint32)
    _expect(task, "fingerprint", _traced(task, "fingerprint", problem, state), fingerprint)
    expected = {
        "state": state,
        "reward": number,
        **dict.fromkeys(("terminated", "truncated", "step_ended", "turn_ended"), flag),
        "observation": _vector(task.observation_capacity, jnp.int32),
        "feedback": _vector(len(task.feedback), jnp.float32),
    }
    for name, wanted in expected.items():
        _expect(task, f"step: {name}", getattr(after, name, None), wanted)
    if task.horizon < 1 + task.observation_capacity:
        raise InputError(
            f"task {task.name!r}: horizon={task.horizon} has no room for a choice and an "
            f"observation of {task.observation_capacity}"
        )


def check_play(task: Task, key: Array, *, episodes: int = 64) -> None:
    """Play random legal tokens and look at what comes back; on the host.

    Raises: InputError naming the task and the episode: a reward that is not finite, a state without
      a legal token, or no episode that the task itself ended before its row was full.
    """
    draw_key, play_key = jax.random.split(key)
    problems = jax.vmap(task.draw)(jax.random.split(draw_key, episodes))
    check_shapes(task, jax.tree.map(lambda leaf: leaf[0], problems))

    def choose(problem: PyTree, state: PyTree, number: Array, key: Array) -> Array:
        legal = task.legal(problem, state)
        # 0 is never legal and shows up below.
        drawn = jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))
        return jnp.where(jnp.any(legal), drawn, 0)

    keys = jax.random.split(play_key, episodes)
    rollout = jax.jit(lambda *drawn: play(task, *drawn, choose))(problems, keys)
    rollout = jax.tree.map(
        lambda leaf: np.asarray(leaf)[:, 0], rollout._replace(problem=(), key=())
    )
    unscored = ~np.isfinite(rollout.reward)
    _refuse_first(task, "a reward that is not finite", rollout.reward, unscored)
    _refuse_first(task, "no legal token", rollout.tokens, rollout.mask & (rollout.tokens == 0))
    prompt_length = jax.vmap(task.prompt)(problems)[1]
    room = np.asarray(prompt_length) + task.horizon - rollout.length
    if not np.any(rollout.terminated | (room >= 1 + task.observation_capacity)):
        raise InputError(
            f"task {task.name!r} never ends: none of {episodes} random episodes ended in "
            f"{task.horizon} tokens, the first one {task.text(rollout.tokens[0])!r}"
        )


def _vector(size: int, dtype: Any) -> jax.ShapeDtypeStruct | None:
    return jax.ShapeDtypeStruct((size,), dtype) if size else None


def _traced(task: Task, name: str, *arguments: PyTree) -> PyTree:
    try:
        return jax.eval_shape(getattr(task, name), *arguments)
    except (TypeError, ValueError, IndexError) as error:
        first_line = str(error).partition("\n")[0]
        raise InputError(f"task {task.name!r}: {name} cannot be traced: {first_line}") from error


def _expect(task: Task, name: str, got: PyTree, wanted: PyTree) -> None:
    shown, asked = (
        [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)]
        for tree in (got, wanted)
    )
    if shown != asked or jax.tree.structure(got) != jax.tree.structure(wanted):
        raise InputError(
            f"task {task.name!r}: {name} returned {', '.join(shown) or None}, expected "
            f"{', '.join(asked) or None}"
        )


def _refuse_first(task: Task, what: str, values: np.ndarray, where: np.ndarray) -> None:
    if where.any():
        episode, position = np.argwhere(where)[0]
        raise InputError(
            f"task {task.name!r}: {what} ({values[episode, position]}) in episode {episode} at "
            f"position {position}"
        )
