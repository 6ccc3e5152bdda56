"""Credit rules compared at the same price: seeds trained together, and what can be said of them.

All seeds of a rule learn in one jitted call, a vmapped training step. Seed s of every rule starts
from the same policy and the same key, and a rule learns until its seeds have been charged a budget
of tokens, so that one with dear evidence takes fewer steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from rlcredit import masked, sharding, train, update
from rlcredit.rollout import sample
from rlcredit.stage import MAX_SKIPPED_UPDATES, Step
from rlcredit.train import Collect, Parts, Training
from rlcredit.types import (
    Array,
    InputError,
    Layout,
    PyTree,
    Task,
    TrainState,
)


class Entrant(NamedTuple):
    """A rule that takes part."""

    name: str
    parts: Parts
    optimizer: optax.GradientTransformation
    step: Step  # of one seed; its metrics hold `charged`


class Budget(NamedTuple):
    """How long a rule learns."""

    tokens: float  # charged tokens, the mean over the seeds
    points: int  # evaluations on the way, evenly spaced in charged tokens


class Curve(NamedTuple):
    """A rule's course; entry 0 of the P + 1 points is the start, before any step."""

    steps: list[int]  # [P + 1]
    seconds: list[float]  # [P + 1] of learning, without compiling and without evaluating
    charged: list[list[float]]  # [P + 1, S] tokens
    success: list[list[float]]  # [P + 1, S]
    compile_seconds: float


class _Progress(NamedTuple):
    """What one call of a block did."""

    charged: Array  # [S] float32
    steps: Array  # int32
    skipped_updates: Array  # [S] the last steps in a row that were not finite


def enter(training: Training, task: Task, mesh: Mesh, key: Array) -> Entrant:
    """The rule `training.advantage`, with the optimiser of `train.reinforce`, tried before it runs.

    Raises: InputError as `train.build` and `train.check_fit`.
    """
    parts = train.build(training, task)
    collect = charging(train.make_collect(training, parts, mesh))
    train.check_fit(training, parts, jax.jit(collect), train.untrained(parts, mesh, key), key)
    optimizer = update.guarded(update.inverse_sqrt(training.learning_rate))
    step = train.make_train_step(training, parts, collect, optimizer)
    return Entrant(training.advantage, parts, optimizer, step)


def charging(collect: Collect) -> Collect:
    """The same `collect` with one more metric, `charged`, the price of a step in tokens.

    charged = tokens sampled + tokens scored, of rollout and evidence together.

    A rollout scores its prompts, each once however many samples share it (`Price`). What the
    learner spends on its own passes is the same for all rules and is not charged; nor are the
    tokens of an episode without a finite reward.
    """

    def charged_collect(state: TrainState, key: Array):
        rollout, evidence, assigned, metrics = collect(state, key)
        for_rollout = metrics["tokens"] + metrics["tokens_read"]
        for_evidence = metrics["price/tokens_sampled"] + metrics["price/tokens_scored"]
        return rollout, evidence, assigned, metrics | {"charged": for_rollout + for_evidence}

    return charged_collect


def seed_keys(seed: int, seeds: int) -> Array:
    """[S] keys; key s does not depend on how many there are."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(seed), s))(jnp.arange(seeds))


def first_states(entrant: Entrant, keys: Array, trained: PyTree | None = None) -> TrainState:
    """The first state of every seed, leaves [S, ...]; state s is a function of `keys[s]`. Pure.

    The policy of a seed is the same whether the rule's network has a critic or not.

    Args:
      keys: [S]; trained: parameters of the policy without a critic, from which all seeds start
        instead of from new ones of their own. A critic is new in any case.
    """

    def first(key: Array, trained: PyTree) -> TrainState:
        init_key, own_key = jax.random.split(key)
        params = entrant.parts.policy.init(init_key) | trained
        return update.initial_state(params, entrant.optimizer, own_key)

    return jax.vmap(first, in_axes=(0, None))(keys, trained or {})


def make_block(step: Step) -> Callable[[TrainState, Array], tuple[TrainState, _Progress]]:
    """`block(states, tokens)`: all seeds take steps until they were charged so many in the mean.

    `tokens` is traced, so that blocks of other lengths do not compile anew. No more than the last
    step goes beyond it.

    Args: step: of one seed, see `Entrant`.
    """
    together = jax.vmap(step)

    def block(states: TrainState, tokens: Array) -> tuple[TrainState, _Progress]:
        def one(carry: tuple[TrainState, _Progress]) -> tuple[TrainState, _Progress]:
            states, before = carry
            states, metrics = together(states)
            charged = before.charged + metrics["charged"]
            return states, _Progress(charged, before.steps + 1, metrics["skipped_updates"])

        def short(carry: tuple[TrainState, _Progress]) -> Array:
            return jnp.mean(carry[1].charged) < tokens

        seeds = states.step.shape
        nothing = _Progress(jnp.zeros(seeds), jnp.int32(0), jnp.zeros(seeds, jnp.int32))
        return jax.lax.while_loop(short, one, (states, nothing))

    return block


def make_success(
    parts: Parts, task: Task, layout: Layout, *, problems: int, samples: int = 4, seed: int = 0
) -> Callable[[PyTree], Array]:
    """`success(params [S, ...]) -> [S]`: the mean return of sampled held-out episodes.

    It is pass@1 where the reward is 1 for success and 0 otherwise. Problems and draws are the same
    for all seeds, all rules and all times, fixed by `seed`: an interval over the seeds does not
    cover their choice.

    Raises: InputError if there are not that many held-out problems.
    """
    held_out = task.held_out(problems, seed)
    keys = jax.random.split(jax.random.key(seed), problems)

    def success(params: PyTree) -> Array:
        how = {"samples": samples, "sampling": parts.sampling, "layout": layout}
        rollout, _ = sample(parts.policy, params, task, held_out, keys, **how)
        return jnp.mean(masked.sum(rollout.reward, rollout.mask, axis=-1))

    return jax.vmap(success)


def learn(
    entrant: Entrant,
    mesh: Mesh,
    states: TrainState,
    success: Callable[[PyTree], Array],
    budget: Budget,
    after_point: Callable[[int, float], None],
) -> Curve:
    """All seeds of a rule learn for the budget; they write over `states`.

    Both functions are compiled first, with nothing run; the seconds for that stand apart.

    Args:
      states: leaves [S, ...]; success: of their parameters, [S].
      after_point: called with the number of each point and the mean success; may raise.
    Raises: InputError after `MAX_SKIPPED_UPDATES` updates of a seed in a row that were not finite.
    """
    states, nothing = sharding.replicated(mesh, (states, jnp.float32(0)))
    started = time.monotonic()
    block = sharding.jit_step(mesh, make_block(entrant.step)).lower(states, nothing).compile()
    judge = jax.jit(success).lower(states.params).compile()
    compiled = time.monotonic()

    steps, seconds = [0], [0.0]
    charged = [np.zeros(states.step.shape)]
    judged = [np.asarray(judge(states.params))]
    for point in range(1, budget.points + 1):
        missing = budget.tokens * point / budget.points - charged[-1].mean()
        missing = sharding.replicated(mesh, jnp.float32(missing))
        begun = time.monotonic()
        states, progress = jax.block_until_ready(block(states, missing))
        seconds.append(seconds[-1] + time.monotonic() - begun)
        _refuse_divergence(entrant.name, progress)
        steps.append(steps[-1] + int(progress.steps))
        charged.append(charged[-1] + np.asarray(progress.charged))
        judged.append(np.asarray(judge(states.params)))
        after_point(point, float(judged[-1].mean()))
    numbers = (np.stack(charged).tolist(), np.stack(judged).tolist())
    return Curve(steps, seconds, *numbers, compile_seconds=compiled - started)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """[...] mean of the middle half of the last axis, float64. Agarwal et al., 2021, arXiv
    2108.13264.

    The average of the empirical quantiles from 1/4 to 3/4. The value of rank i of n stands for the
    quantiles from i / n to (i + 1) / n and weighs as much of them as lies in between:

    weight[i] = 2 * max(0, min((i + 1) / n, 3/4) - max(i / n, 1/4))

    Where 4 divides n this is scipy's `trim_mean(values, 0.25)`, which drops n // 4 values at either
    end; for other n it drops a fraction of a value too, where `trim_mean` keeps all of it.

    Args: values: [..., n], n >= 1.
    """
    ranked = np.sort(np.asarray(values, np.float64), axis=-1)
    edge = np.clip(np.arange(ranked.shape[-1] + 1) / ranked.shape[-1], 0.25, 0.75)
    return ranked @ (2 * np.diff(edge))


def bootstrap_interval(
    values: np.ndarray, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) [...] of the interquartile mean of the last axis, a percentile bootstrap.

    The n runs are drawn with replacement, which for a single task is the stratified bootstrap of
    Agarwal et al., 2021, arXiv 2108.13264; for few runs it is somewhat too narrow. The same draws
    serve all leading axes.

    Args: values: [..., n]; level: share of the resampled means inside; seed: fixes the draws.
    """
    values = np.asarray(values, np.float64)
    runs = values.shape[-1]
    drawn = np.random.default_rng(seed).integers(runs, size=(resamples, runs))
    means = interquartile_mean(values[..., drawn])  # [..., resamples]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=-1)
    return low, high


def rows(rule: str, curve: Curve) -> list[dict]:
    """A row for each point: what is in the curve, and `iqm`, `low` and `high` of the success."""
    middle = interquartile_mean(curve.success)
    low, high = bootstrap_interval(curve.success)
    names = ("rule", "block", "steps", "charged", "seconds", "success", "iqm", "low", "high")
    columns = (curve.steps, np.mean(curve.charged, axis=1).tolist(), curve.seconds, curve.success)
    points = zip(*columns, middle.tolist(), low.tolist(), high.tolist(), strict=True)
    return [dict(zip(names, (rule, i, *own), strict=True)) for i, own in enumerate(points)]


def summary(rule: str, curve: Curve) -> dict:
    """The last row of a curve, the seconds that compiling took, and the area under the curve.

    area = interquartile mean over the seeds of the mean success over charged tokens, by trapezoids
    """
    charged, success = np.asarray(curve.charged), np.asarray(curve.success)
    mean = np.trapezoid(success, charged, axis=0) / charged[-1]
    area = float(interquartile_mean(mean))
    return rows(rule, curve)[-1] | {"compile_seconds": curve.compile_seconds, "area": area}


def _refuse_divergence(name: str, progress: _Progress) -> None:
    skipped = int(np.max(progress.skipped_updates))
    if skipped >= MAX_SKIPPED_UPDATES:
        raise InputError(
            f"{name}: the last {skipped} updates of a seed were not finite and were left out; "
            "lower the learning rate, or look at the reward and the advantage"
        )
