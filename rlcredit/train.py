"""From settings to a training step: collect -> measure -> credit -> learn, as experiments do it.

A stage, `warm_start` or `reinforce`, takes the parameters of the state that it is given and leaves
that state as it is, so that several stages can start from the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from rlcredit import credit, cuts, masked, sharding, units, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.branching import grow
from rlcredit.evidence import Context, Probing
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.policy import Architecture, transformer
from rlcredit.pretrain import Demonstrations, make_pretrain_step, warm_start_optimizer
from rlcredit.rollout import draw_problems, drop_equal, drop_unscored, sample
from rlcredit.stage import Evaluate, Stage, Step, run_stage
from rlcredit.summary import rollout_metrics
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
    TrainState,
    owned,
)

Collect = Callable[[TrainState, Array], tuple[Rollout, dict, credit.Credit, dict]]


@dataclass(frozen=True)
class Training:
    """The settings that do not belong to a task."""

    advantage: str = "grpo"  # a rule of `python -m rlcredit list`, or module:function
    advantage_kwargs: tuple[str, ...] = ()  # its hyperparameters, NAME=VALUE ...
    loss: str = "ppo"  # a loss of `python -m rlcredit list`, or module:function
    loss_kwargs: tuple[str, ...] = ()
    reduce: Literal["token_mean", "sequence_mean", "prompt_mean", "constant_length"] = "token_mean"
    whiten: bool = False  # the advantage, over the batch
    steps: int = 150  # of RL; more than before extends a finished run
    evaluate_every: int = 50
    checkpoint_every: int = 50

    width: int = 64
    layers: int = 3
    dtype: Literal["float32", "bfloat16"] = "float32"
    critic: Literal["shared", "separate"] = "shared"  # for rules that ask for `value`

    warm_steps: int = 3000
    wrong: float = 0.4  # chance that a step of a demonstration is wrong
    problems: int = 64
    samples: int = 8  # of each problem
    branching: tuple[int, ...] = ()  # trees: in so many ways each row goes on, a number a stage
    cut: str = "every:8"  # where it does, of `rlcredit.cuts`
    lanes: int = 64  # episodes in progress on each device; 0: all at once
    temperature: float = 1.0
    legal: bool = False  # restrict the policy to the task's legal tokens
    drop_equal: bool = False  # do not learn from problems whose episodes all earned the same
    learning_rate: float = 1e-3  # its peak
    epochs: int = 1
    minibatches: int = 2
    accumulate: int = 8  # micro-batches; on a CPU small ones stay in the cache
    packed: bool = False  # several episodes in a row for the update
    entropy_coef: float = 0.002
    kl_coef: float = 0.0  # pull to the warm-started policy, in the loss

    probing: Probing = field(default_factory=Probing)


class Parts(NamedTuple):
    """The functions that the settings name."""

    task: Task
    policy: Policy
    rule: credit.Bound
    loss: credit.Bound
    evidence: tuple[str, ...]
    sampling: Sampling
    schedule: update.Schedule


def build(training: Training, task: Task) -> Parts:
    """Wrong settings are refused here, before anything is computed or written.

    Raises: InputError naming the setting.
    """
    rule = credit.from_flags(training.advantage, ADVANTAGES, "advantage", training.advantage_kwargs)
    loss = credit.from_flags(training.loss, LOSSES, "loss", training.loss_kwargs)
    kl = ("ref_log_prob",) if training.kl_coef else ()
    evidence = (*rule.evidence, *loss.evidence, *kl)
    critic = training.critic if "value" in evidence else "none"
    sizes = (len(task.vocabulary), training.width, training.layers)
    policy = transformer(Architecture(*sizes, dtype=training.dtype, value_head=critic))
    sampling = Sampling(temperature=training.temperature, legal=training.legal)
    schedule = update.Schedule(
        training.epochs, training.minibatches, training.accumulate, training.packed
    )
    update.check_schedule(schedule, training.problems)
    _check_probing(training.probing)
    cuts.find(training.cut)
    if training.lanes < 0:
        raise InputError(f"lanes={training.lanes} must be above 0, or 0 for all episodes at once")
    return Parts(task, policy, rule, loss, evidence, sampling, schedule)


def _check_probing(probing: Probing) -> None:
    units.find(probing.unit)
    for name in ("most_units", "continuations", "players", "orders"):
        if getattr(probing, name) < 1:
            raise InputError(f"{name}={getattr(probing, name)} must be 1 or more")
    if probing.noise < 0:
        raise InputError(f"noise={probing.noise} must be 0 or more")


def layout(training: Training, mesh: Mesh) -> Layout:
    """The problems over all devices, `lanes` episodes at a time on each."""
    return Layout(training.lanes or None, mesh)


def make_collect(training: Training, parts: Parts, mesh: Mesh) -> Collect:
    """collect -> measure -> credit: `(state, key) -> (rollout, evidence, credit, metrics)`."""
    policy, task, sampling = parts.policy, parts.task, parts.sampling
    where = layout(training, mesh)
    draw_episodes = _make_sampler(training, parts, where)

    def collect(state: TrainState, key: Array):
        sample_key, measure_key = jax.random.split(key)
        drawn = sharding.over_problems(mesh, draw_problems(task, sample_key, training.problems))
        rollout, sampled = draw_episodes(state.params, *drawn)
        rollout = drop_unscored(rollout)
        context = Context(
            policy, state.params, state.ref_params, task, sampling, where, training.probing
        )
        evidence, measured = credit.measure(parts.evidence, context, rollout, measure_key)
        assigned = credit.assign(parts.rule, rollout, evidence)
        raw = assigned.advantage
        learned = drop_equal(rollout) if training.drop_equal else rollout
        final = masked.whiten(raw, owned(learned)) if training.whiten else raw
        metrics = rollout_metrics(rollout, raw, final, sampled, measured)
        return learned, evidence, assigned._replace(advantage=final), metrics

    return collect


def _make_sampler(training: Training, parts: Parts, where: Layout) -> Callable:
    """`(params, problems, keys) -> (rollout, price)`: episodes apart, or trees."""
    draw, how = sample, {"samples": training.samples}
    if training.branching:
        stages = (training.samples, *training.branching)
        draw, how = grow, {"branching": stages, "cut": cuts.find(training.cut)}

    def draw_episodes(params: PyTree, problems: PyTree, keys: Array) -> tuple[Rollout, Price]:
        return draw(
            parts.policy, params, parts.task, problems, keys,
            sampling=parts.sampling, layout=where, **how,
        )  # fmt: skip

    return draw_episodes


def make_train_step(
    training: Training, parts: Parts, collect: Collect, optimizer: optax.GradientTransformation
) -> Step:
    """collect -> measure -> credit -> learn, one pure function of the state."""
    objective = update.Objective(
        parts.loss, REDUCERS[training.reduce], training.entropy_coef, training.kl_coef
    )
    learn = update.make_update(parts.policy, optimizer, objective, parts.schedule, parts.sampling)
    kept = {"value", *parts.loss.evidence, *(("ref_log_prob",) if training.kl_coef else ())}

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        collect_key, update_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        rollout, evidence, assigned, metrics = collect(state, collect_key)
        for_loss = {name: evidence[name] for name in evidence if name in kept}
        batch = update.make_batch(rollout, assigned, for_loss)
        state, update_metrics = learn(state, batch, update_key)
        return state._replace(step=state.step + 1), metrics | update_metrics

    return train_step


def untrained(parts: Parts, mesh: Mesh, key: Array) -> TrainState:
    """A new network, to be judged and to start from; it has no optimiser yet."""
    params = jax.jit(parts.policy.init)(key)
    return _first_state(mesh, params, optax.identity(), key)


def check_fit(
    training: Training, parts: Parts, collect: Collect, state: TrainState, key: Array
) -> None:
    """A rule that does not fit the rollout fails here, not after the minutes of a warm start.

    Args: collect: jitted; it is traced, and run for samples=1 only.
    Raises: InputError naming the rule.
    """
    jax.eval_shape(collect, state, key)
    credit.check_group_size(parts.rule, training.samples, lambda: collect(state, key)[:2])


def warm_start(
    stage: Stage,
    parts: Parts,
    mesh: Mesh,
    state: TrainState,
    key: Array,
    data: Demonstrations,
    stop_requested: Callable[[], bool],
) -> TrainState:
    """Supervised learning from the state's parameters; raises as `run_stage`."""
    optimizer = warm_start_optimizer(stage.steps)
    step = sharding.jit_step(mesh, make_pretrain_step(parts.policy, optimizer))
    first = _first_state(mesh, state.params, optimizer, key)
    return run_stage(stage, lambda state: step(state, data), first, stop_requested)


def reinforce(
    stage: Stage,
    training: Training,
    parts: Parts,
    mesh: Mesh,
    state: TrainState,
    key: Array,
    stop_requested: Callable[[], bool],
    judge: Evaluate | None = None,
) -> TrainState:
    """Reinforcement learning from the state's parameters, its reference; raises as `run_stage`."""
    optimizer = update.guarded(update.inverse_sqrt(training.learning_rate))
    collect = make_collect(training, parts, mesh)
    step = sharding.jit_step(mesh, make_train_step(training, parts, collect, optimizer))
    first = _first_state(mesh, state.params, optimizer, key)
    return run_stage(stage, step, first, stop_requested, judge)


def _first_state(mesh, params, optimizer, key) -> TrainState:
    """Of copies, because a stage writes over the arrays of its state."""
    own_params, own_key = jax.tree.map(jnp.copy, (params, key))
    return sharding.replicated(mesh, update.initial_state(own_params, optimizer, own_key))
