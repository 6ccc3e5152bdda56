"""Sampling episodes: N problems, K samples of each, in one jitted loop with a KV cache.

Prompts are prefilled once per problem, right-aligned in the cache, and shared by its samples; every
lane then writes the same slot, and the loop stops when all lanes have ended. Rows leave this file
left-aligned (see `types`). Every random draw is keyed by (episode, position), so the same tokens
come out whatever the batch is split into.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.kernels.token_log_prob import log_prob_and_entropy, logits
from rlcredit.types import Array, InputError, Policy, PyTree, Rollout, Sampling, Task


class _Lanes(NamedTuple):
    """B episodes in progress."""

    position: Array  # int32 number of tokens chosen so far, the same for every lane
    hidden: Array  # [B, H] the state that predicts the next token
    cache: PyTree
    state: PyTree  # leaves [B, ...] of the task
    step: Array  # [B] int32 number of the reasoning step
    turn: Array  # [B] int32
    done: Array  # [B] bool
    columns: _Columns


class _Columns(NamedTuple):
    """What was written, [B, horizon]; False and 0 after an episode's end."""

    tokens: Array
    mask: Array
    reward: Array
    log_prob: Array
    step: Array
    turn: Array
    terminated: Array
    truncated: Array
    legal: Array | None  # [B, horizon, V], None where every token is allowed


def draw_problems(task: Task, key: Array, count: int) -> tuple[PyTree, Array]:
    """(problems, problem_keys): new training problems, leaves [N, ...], and the key of each."""
    draw_key, sample_key = jax.random.split(key)
    problems = jax.vmap(task.draw)(jax.random.split(draw_key, count))
    return problems, jax.random.split(sample_key, count)


def episode_keys(problem_keys: Array, samples: int) -> Array:
    """[N, K] keys: sample k of a problem depends on the problem's key and on k alone."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(fold, (0, None))(problem_keys, jnp.arange(samples))


def sample(
    policy: Policy,
    params: PyTree,
    task: Task,
    problems: PyTree,
    problem_keys: Array,
    *,
    samples: int,
    sampling: Sampling,
) -> Rollout:
    """Sample `samples` episodes of each problem.

    Args:
      problems: leaves [N, ...]; problem_keys: [N] keys, one per problem.
    Returns: a Rollout with T = task.prompt_capacity + task.horizon. An episode that reaches the
      horizon without an end is truncated there and keeps the reward it earned.
    Raises: InputError if the policy's vocabulary is not the task's, there is nothing to sample, or
      the temperature is not positive.
    """
    _check(policy, task, problem_keys, samples, sampling)
    keys = episode_keys(problem_keys, samples)
    flat_keys = keys.reshape(-1)
    flat_problems = jax.tree.map(lambda leaf: jnp.repeat(leaf, samples, axis=0), problems)
    prompts, lengths = jax.vmap(task.prompt)(problems)
    lanes, start = _prefill(
        policy, params, task, prompts, lengths, flat_problems, samples, sampling.legal
    )

    def running(lanes: _Lanes) -> Array:
        return (lanes.position < task.horizon) & ~jnp.all(lanes.done)

    def advance(lanes: _Lanes) -> _Lanes:
        slot = task.prompt_capacity + lanes.position
        chosen = _choose(policy, params, task, flat_problems, flat_keys, lanes, sampling)
        lanes, token = _apply(task, flat_problems, flat_keys, lanes, *chosen)
        hidden, cache = policy.extend(params, lanes.cache, token[:, None], slot, start)
        return lanes._replace(hidden=hidden[:, 0], cache=cache)

    columns = jax.lax.while_loop(running, advance, lanes).columns
    return _rows(task, prompts, lengths, columns, problems, keys)


def drop_unscored(rollout: Rollout) -> Rollout:
    """Episodes with a reward that is not finite lose all of their mask, and what was under it.

    They then count in no group, loss or metric, rather than poisoning or dragging them down.
    """
    reward = jnp.where(rollout.mask, rollout.reward, 0)
    mask = rollout.mask & jnp.all(jnp.isfinite(reward), axis=-1, keepdims=True)
    return rollout._replace(
        mask=mask,
        reward=jnp.where(mask, rollout.reward, 0),
        log_prob=jnp.where(mask, rollout.log_prob, 0),
        step=jnp.where(mask, rollout.step, -1),
        turn=jnp.where(mask, rollout.turn, -1),
        legal=None if rollout.legal is None else rollout.legal & mask[..., None],
    )


def _check(
    policy: Policy, task: Task, problem_keys: Array, samples: int, sampling: Sampling
) -> None:
    if policy.vocabulary != len(task.vocabulary):
        raise InputError(
            f"the policy has {policy.vocabulary} tokens, task {task.name} has "
            f"{len(task.vocabulary)}"
        )
    if problem_keys.shape[0] < 1 or samples < 1:
        raise InputError(
            f"nothing to sample: {problem_keys.shape[0]} problems, {samples} samples of each"
        )
    if not sampling.temperature > 0:
        raise InputError(
            f"temperature={sampling.temperature} must be above 0; the likeliest token is greedy"
        )


def _prefill(policy, params, task, prompts, lengths, flat_problems, samples, legal):
    """Lanes that have read their prompts, and the slot in which each lane starts."""
    capacity = task.prompt_capacity
    start = capacity - lengths
    slots = jnp.arange(capacity)[None] - start[:, None]
    aligned = jnp.take_along_axis(prompts, jnp.maximum(slots, 0), axis=1)
    cache = policy.init_cache(prompts.shape[0], capacity + task.horizon)
    hidden, cache = policy.extend(params, cache, aligned, 0, start)
    hidden, cache, start = jax.tree.map(
        lambda leaf: jnp.repeat(leaf, samples, axis=0), (hidden[:, -1], cache, start)
    )
    batch = start.shape[0]
    lanes = _Lanes(
        position=jnp.int32(0),
        hidden=hidden,
        cache=cache,
        state=jax.vmap(task.start)(flat_problems),
        step=jnp.zeros(batch, jnp.int32),
        turn=jnp.zeros(batch, jnp.int32),
        done=jnp.zeros(batch, bool),
        columns=_empty_columns(batch, task, legal),
    )
    return lanes, start


def _empty_columns(batch: int, task: Task, legal: bool) -> _Columns:
    shape = (batch, task.horizon)
    false, number = jnp.zeros(shape, bool), jnp.zeros(shape, jnp.float32)
    integer = jnp.zeros(shape, jnp.int32)
    return _Columns(
        tokens=integer,
        mask=false,
        reward=number,
        log_prob=number,
        step=integer - 1,
        turn=integer - 1,
        terminated=false,
        truncated=false,
        legal=jnp.zeros((*shape, len(task.vocabulary)), bool) if legal else None,
    )


def _choose(policy, params, task, problems, keys, lanes, sampling):
    """(token, log_prob, legal) of every lane."""
    legal = jax.vmap(task.legal)(problems, lanes.state) if sampling.legal else None
    z = logits(lanes.hidden, policy.head(params), sampling.temperature, legal)

    def noise(key: Array) -> Array:
        return jax.random.gumbel(jax.random.fold_in(key, 2 * lanes.position), z.shape[1:])

    drawn = z if sampling.greedy else z + jax.vmap(noise)(keys)
    token = jnp.argmax(drawn, axis=-1).astype(jnp.int32)
    return token, log_prob_and_entropy(z, token)[0], legal


def _apply(task, problems, keys, lanes, token, log_prob, legal):
    """Let the task answer, and write the column; ended lanes write False and 0."""
    # Odd numbers, where the policy's own draws have the even ones.
    step_keys = jax.vmap(lambda key: jax.random.fold_in(key, 2 * lanes.position + 1))(keys)
    outcome = jax.vmap(task.step)(problems, lanes.state, token, step_keys)
    alive = ~lanes.done
    token = jnp.where(alive, token, 0)
    column = _Columns(
        tokens=token,
        mask=alive,
        reward=jnp.where(alive, outcome.reward, 0),
        log_prob=jnp.where(alive, log_prob, 0),
        step=jnp.where(alive, lanes.step, -1),
        turn=jnp.where(alive, lanes.turn, -1),
        terminated=alive & outcome.terminated,
        truncated=alive & outcome.truncated,
        legal=None if legal is None else legal & alive[:, None],
    )
    columns = jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new, lanes.position, 1),
        lanes.columns,
        column,
    )
    lanes = lanes._replace(
        position=lanes.position + 1,
        state=_where(alive, outcome.state, lanes.state),
        step=lanes.step + outcome.step_ended,
        turn=lanes.turn + outcome.turn_ended,
        done=lanes.done | outcome.terminated | outcome.truncated,
        columns=columns,
    )
    return lanes, token


def _rows(task, prompts, lengths, columns, problems, keys) -> Rollout:
    """Left-align: token t of a row is its t-th prompt token, or what was chosen after it."""
    samples = keys.shape[1]
    lengths = jnp.repeat(lengths, samples)
    total = task.prompt_capacity + task.horizon
    response = (
        jnp.arange(total)[None] - lengths[:, None]
    )  # column of each position, < 0 in the prompt
    inside = (response >= 0) & (response < task.horizon)
    column = jnp.clip(response, 0, task.horizon - 1)

    def row(values: Array, empty: Array | int | bool) -> Array:
        index = column.reshape(column.shape + (1,) * (values.ndim - 2))
        kept = inside.reshape(index.shape)
        return jnp.where(kept, jnp.take_along_axis(values, index, axis=1), empty)

    prompt_rows = jnp.repeat(jnp.pad(prompts, ((0, 0), (0, task.horizon))), samples, axis=0)
    terminated = jnp.any(columns.terminated, axis=1)
    chosen = jnp.sum(columns.mask, axis=1, dtype=jnp.int32)
    rows = Rollout(
        tokens=jnp.where(response < 0, prompt_rows, row(columns.tokens, 0)),
        mask=row(columns.mask, False),
        reward=row(columns.reward, 0.0),
        log_prob=row(columns.log_prob, 0.0),
        step=row(columns.step, -1),
        turn=row(columns.turn, -1),
        length=lengths + chosen,
        terminated=terminated,
        truncated=~terminated,
        legal=None if columns.legal is None else row(columns.legal, False),
        problem=None,
        key=None,
    )
    grouped = jax.tree.map(lambda leaf: leaf.reshape(*keys.shape, *leaf.shape[1:]), rows)
    return grouped._replace(problem=problems, key=keys)


def _where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    def select(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(select, new, old)
