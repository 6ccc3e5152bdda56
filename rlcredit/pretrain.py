"""The warm start: supervised learning on worked solutions of an imperfect teacher.

Reinforcement learning from nothing would never see a reward; from perfect demonstrations it would
have nothing to do. The teacher's slips (see `Task.demonstrate`) make a policy that is plausible and
wrong in known ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlcredit import masked
from rlcredit.episode import Position, play_one
from rlcredit.score import score
from rlcredit.sharding import spread
from rlcredit.types import Array, InputError, Policy, PyTree, Sampling, Task, TrainState
from rlcredit.update import guarded


class Demonstrations(NamedTuple):
    """D rows of a prompt and a solution."""

    tokens: Array  # [D, T] int32
    mask: Array  # [D, T] bool, True on the solution and its end token


def demonstrations(
    task: Task, wrong: float, skipped: float = 0.0, *, count: int = 20_000, seed: int = 0
) -> Demonstrations:
    """Episodes of a teacher on `count` training problems, the same for the same seed.

    The teacher is the task's `demonstrate`, or its `expert` who takes another legal token with
    chance `wrong` at every choice.

    Args:
      wrong, skipped: chance per step of a slip, and of a step that is not written down.
    Raises: InputError for a chance outside [0, 1] or no demonstrations.
    """
    if count < 1 or not (0 <= wrong <= 1 and 0 <= skipped <= 1):
        raise InputError(f"demonstrations: {count=} >= 1, {wrong=} and {skipped=} in [0, 1] needed")
    key = jax.random.key(seed)
    problems = jax.jit(jax.vmap(task.draw))(jax.random.split(key, count))
    keys = jax.random.split(jax.random.fold_in(key, count), count)
    if task.demonstrate is None:
        rows = jax.jit(functools.partial(_slipping_expert, task, wrong))(problems, keys)
    else:
        solutions = task.demonstrate(problems, np.random.default_rng(seed), wrong, skipped)
        rows = jax.jit(functools.partial(_written, task))(problems, keys, _padded(task, solutions))
    return Demonstrations(rows.token, rows.mask & (rows.token != 0))


def warm_start_optimizer(steps: int) -> optax.GradientTransformation:
    """A short rise to a high rate, then a cosine to a tenth of it: small networks bear much."""
    rise = min(50, steps // 2)
    return guarded(optax.warmup_cosine_decay_schedule(0, 5e-3, rise, max(steps, 1), 5e-4))


def make_pretrain_step(
    policy: Policy, optimizer: optax.GradientTransformation, *, batch: int = 48
) -> Callable[[TrainState, Demonstrations], tuple[TrainState, dict[str, Array]]]:
    """A pure step `(state, data) -> (state, metrics)` on a batch drawn from the state's key.

    Minimises the mean negative log-probability of the demonstrated tokens.

    Args:
      optimizer: `update.guarded`, whose count of steps that were not finite is reported.
    """

    def loss(params, rows: Demonstrations) -> Array:
        log_prob = score(policy, params, rows.tokens, sampling=Sampling()).log_prob
        return -masked.mean(log_prob, rows.mask)

    def step(state: TrainState, data: Demonstrations):
        batch_key = jax.random.fold_in(state.key, state.step)
        chosen = jax.random.randint(batch_key, (batch,), 0, data.tokens.shape[0])
        rows = spread(jax.tree.map(lambda leaf: leaf[chosen], data))
        value, gradient = jax.value_and_grad(loss)(state.params, rows)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": value,
            "grad_norm": optax.global_norm(gradient),
            "tokens": masked.count(rows.mask),
            "skipped_updates": opt_state.notfinite_count,
        }
        return state._replace(params=params, opt_state=opt_state, step=state.step + 1), metrics

    return step


def _slipping_expert(task: Task, wrong: float, problems: PyTree, keys: Array) -> Position:
    """The task's expert, who takes another legal token with chance `wrong`."""

    def choose(problem: PyTree, state: PyTree, number: Array, key: Array) -> Array:
        del number
        slip_key, other_key = jax.random.split(key)
        right = task.expert(problem, state)
        others = task.legal(problem, state).at[right].set(False)
        other = jax.random.categorical(other_key, jnp.where(others, 0.0, -jnp.inf))
        slips = jax.random.bernoulli(slip_key, wrong) & jnp.any(others)
        return jnp.where(slips, other, right)

    return jax.vmap(lambda *episode: play_one(task, *episode, choose)[1])(problems, keys)


def _written(task: Task, problems: PyTree, keys: Array, solutions: Array) -> Position:
    """Solutions [D, horizon] that a teacher wrote in advance."""

    def one(problem: PyTree, key: Array, solution: Array) -> Position:
        def choose(problem: PyTree, state: PyTree, number: Array, key: Array) -> Array:
            return solution[number]

        return play_one(task, problem, key, choose)[1]

    return jax.vmap(one)(problems, keys, solutions)


def _padded(task: Task, solutions: list[list[int]]) -> Array:
    """[D, horizon]; a slip can make a solution longer than any right one, its tail is dropped."""
    rows = np.zeros((len(solutions), task.horizon), np.int32)
    for row, solution in zip(rows, solutions, strict=True):
        kept = solution[: task.horizon]
        row[: len(kept)] = kept
    return jnp.asarray(rows)
