"""Sampling episodes: N problems, K samples of each, in one jitted loop.

Prompts are read once per problem and shared by its samples. Every draw is keyed by (episode,
position), so the same tokens come out whatever the number of lanes and devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import masked
from rlcredit.episode import begin
from rlcredit.keys import episode_keys
from rlcredit.lanes import Queue, Read, finished, prompt_rows, spent, work_off
from rlcredit.sharding import each_device
from rlcredit.task_check import check_shapes
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
)

ALL_AT_ONCE = Layout()


def draw_problems(task: Task, key: Array, count: int) -> tuple[PyTree, Array]:
    """(problems, problem_keys): new training problems, leaves [N, ...], and the key of each."""
    draw_key, sample_key = jax.random.split(key)
    problems = jax.vmap(task.draw)(jax.random.split(draw_key, count))
    return problems, jax.random.split(sample_key, count)


def sample(
    policy: Policy,
    params: PyTree,
    task: Task,
    problems: PyTree,
    problem_keys: Array,
    *,
    samples: int,
    sampling: Sampling,
    layout: Layout = ALL_AT_ONCE,
) -> tuple[Rollout, Price]:
    """Sample `samples` episodes of each problem.

    A row has T = task.prompt_capacity + task.horizon positions. The length cap truncates: an
    episode ends, truncated and with the reward it earned, after a choice that leaves no room for
    another one and the longest observation.

    Args:
      problems: leaves [N, ...]; problem_keys: [N] keys, one per problem.
    Raises: InputError if the policy's vocabulary is not the task's, a function of the task returns
      a wrong shape, there is nothing to sample, or the temperature is not positive.
    """
    check_request(policy, task, problems, samples, sampling)

    def on_device(params: PyTree, problems: PyTree, keys: Array) -> tuple[Rollout, Price]:
        prompts, lengths = jax.vmap(task.prompt)(problems)
        read = Read(*policy.extend(params, None, prompts, jnp.zeros(1, jnp.int32)))
        queue = _every_sample(task, problems, prompts, lengths, keys, sampling)
        lanes = work_off(
            policy, params, task, problems, queue, read, lanes=layout.lanes, sampling=sampling
        )
        rollout = finished(lanes, problems, keys)
        return rollout, spent(lanes, rollout.mask, lengths)

    keys = episode_keys(problem_keys, samples)
    return each_device(layout.mesh, on_device, params, problems, keys)


def drop_unscored(rollout: Rollout) -> Rollout:
    """Episodes with a reward that is not finite lose all of their mask, and what was under it.

    They then count in no group, loss or metric, rather than poisoning or dragging them down.
    """
    reward = jnp.where(rollout.mask, rollout.reward, 0)
    return _keep(rollout, jnp.all(jnp.isfinite(reward), axis=-1))


def drop_equal(rollout: Rollout) -> Rollout:
    """Problems whose episodes all earned the same lose all of their mask, and what was under it.

    They say nothing of which episode was better, but would count in the mean of a loss. DAPO, Yu et
    al., 2025, arXiv 2503.14476, samples until a batch is full of others; here it stays smaller.
    """
    total = masked.sum(rollout.reward, rollout.mask, axis=-1)
    present = jnp.any(rollout.mask, axis=-1)
    most, least = (f(total, present, axis=1, keepdims=True) for f in (masked.max, masked.min))
    return _keep(rollout, jnp.broadcast_to(most > least, total.shape))


def _keep(rollout: Rollout, episodes: Array) -> Rollout:
    """The rollout without the mask of all but these episodes [N, K], and what was under it."""
    mask = rollout.mask & episodes[..., None]

    def kept(values: Array | None, empty: float) -> Array | None:
        if values is None:
            return None
        where = mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim))
        return jnp.where(where, values, jnp.asarray(empty, values.dtype))

    return rollout._replace(
        mask=mask,
        reward=kept(rollout.reward, 0),
        log_prob=kept(rollout.log_prob, 0),
        step=kept(rollout.step, -1),
        turn=kept(rollout.turn, -1),
        legal=kept(rollout.legal, 0),
        feedback=kept(rollout.feedback, 0),
    )


def check_request(
    policy: Policy, task: Task, problems: PyTree, samples: int, sampling: Sampling
) -> None:
    """InputError, naming it, for anything that cannot be sampled."""
    if policy.vocabulary != len(task.vocabulary):
        raise InputError(
            f"the policy has {policy.vocabulary} tokens, task {task.name} has "
            f"{len(task.vocabulary)}"
        )
    count = jax.tree.leaves(problems)[0].shape[0]
    if count < 1 or samples < 1:
        raise InputError(f"nothing to sample: {count} problems, {samples} samples of each")
    if not sampling.temperature > 0:
        raise InputError(
            f"temperature={sampling.temperature} must be above 0; the likeliest token is greedy"
        )
    check_shapes(task, jax.tree.map(lambda leaf: leaf[0], problems))


def _every_sample(task, problems, prompts, lengths, keys, sampling) -> Queue:
    """The queue of N * K episodes that have read their prompts; keys: [N, K]."""
    count, samples = keys.shape
    problem = jnp.repeat(jnp.arange(count, dtype=jnp.int32), samples)
    start = jax.vmap(lambda *one: begin(task, *one))(problems, lengths)
    return Queue(
        episode=jax.tree.map(lambda leaf: leaf[problem], start),
        rows=prompt_rows(task, prompts[problem], sampling.legal),
        key=keys.reshape(-1),
        problem=problem,
        source=problem,
        order=jnp.arange(problem.size, dtype=jnp.int32),
        count=jnp.int32(problem.size),
    )
