"""How likely the policy finds the right answer, after each unit of an episode."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import units
from rlcredit.episode import play_one
from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import starts
from rlcredit.evidence.unit import unit as unit_of
from rlcredit.score import score
from rlcredit.types import Array, InputError, Price, PyTree, Rollout, Task


def answer_log_prob(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: mean log-probability per token of the right answer, read right after the
    prefix before the token's unit; the same on all tokens of a unit, 0 off the mask.

    The answer is that of the task, or else what its expert writes from the start. It is scored
    without the legal mask, since it stands where the task would not have it. One forward pass a
    unit.

    Raises: InputError if the task has neither an answer nor an expert.
    """
    unit, price = unit_of(context, rollout, key)
    answer, size = jax.vmap(lambda problem: _answer(context.task, problem))(rollout.problem)
    at = starts(context, unit)  # [N, K, P]
    span = jnp.arange(rollout.tokens.shape[-1] + answer.shape[-1])[None, None]
    tokens = jnp.pad(rollout.tokens, ((0, 0), (0, 0), (0, answer.shape[-1])))
    sampling = context.sampling._replace(legal=False)

    def after(start: Array) -> Array:
        """[N, K] of the answer put at `start` [N, K]."""
        place = span - start[..., None]
        inside = (place >= 0) & (place < size[:, None, None])
        own = jnp.take_along_axis(answer[:, None], jnp.clip(place, 0, answer.shape[-1] - 1), axis=2)
        row = jnp.where(inside, own, jnp.where(place < 0, tokens, 0))
        log_prob = score(context.policy, context.params, row, sampling=sampling).log_prob
        return jnp.sum(jnp.where(inside, log_prob, 0), axis=-1) / size[:, None]

    found = jnp.moveaxis(jax.lax.map(after, jnp.moveaxis(at, -1, 0)), 0, -1)  # [N, K, P]
    read = jnp.sum(jnp.where(at >= 0, at + size[:, None, None], 0))
    return units.of_unit(found, unit), price._replace(tokens_scored=price.tokens_scored + read)


def _answer(task: Task, problem: PyTree) -> tuple[Array, Array]:
    """(tokens [A], length) of one problem."""
    if task.answer is not None:
        return task.answer(problem)
    if task.expert is None:
        raise InputError(f"task {task.name!r} has neither an answer nor an expert to tell it")

    def choose(problem: PyTree, state: PyTree, number: Array, key: Array) -> Array:
        del number, key
        return task.expert(problem, state)

    _, row = play_one(task, problem, jax.random.key(0), choose)
    place = jnp.where(row.mask, jnp.cumsum(row.mask) - 1, task.horizon)
    tokens = jnp.zeros(task.horizon, jnp.int32).at[place].set(row.token, mode="drop")
    return tokens, jnp.sum(row.mask, dtype=jnp.int32)
