"""A small transformer learns arithmetic from a reward that says only whether the answer is right.

Three stages. Before: a new network. Warm start: supervised learning on worked solutions of a
teacher who slips at 40% of the steps, so that the policy is plausible and wrong. Then reinforcement
learning with a credit rule and a loss of your choice. Each stage is judged on held-out problems.

    python experiments/arithmetic.py                          # GRPO
    python experiments/arithmetic.py --advantage gae          # PPO with a critic
    python experiments/arithmetic.py --advantage my_module:my_rule --advantage-kwargs beta=0.2

Differs from GRPO as published: the loss is a token mean with a small entropy bonus, and nothing
pulls to the reference unless `--kl-coef`, or `--loss grpo --reduce sequence_mean`, asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import optax

from rlcredit import credit, evaluate, figures, masked, run, sharding, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Context
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.policy import Architecture, transformer
from rlcredit.pretrain import demonstrations, make_pretrain_step, warm_start_optimizer
from rlcredit.rollout import draw_problems, drop_unscored, sample
from rlcredit.stage import Stage, Step, run_stage, timings
from rlcredit.summary import rollout_metrics
from rlcredit.tasks import TASKS
from rlcredit.types import Array, Policy, Sampling, Task, TrainState


@dataclass(frozen=True)
class Config:
    """Settings of a run; a run folder belongs to one of them."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    advantage: str = "grpo"  # a rule of `python -m rlcredit list`, or module:function
    advantage_kwargs: tuple[str, ...] = ()  # its hyperparameters, NAME=VALUE ...
    loss: str = "ppo"  # a loss of `python -m rlcredit list`, or module:function
    loss_kwargs: tuple[str, ...] = ()
    reduce: Literal["token_mean", "sequence_mean", "prompt_mean", "constant_length"] = "token_mean"
    whiten: bool = False  # the advantage, over the batch
    steps: int = 150  # of RL; more than before extends a finished run
    run_dir: Path | None = None  # default: runs/arithmetic-ADVANTAGE-SEED
    seed: int = 0
    fresh: bool = False  # remove the run that the folder holds
    evaluate_every: int = 50
    checkpoint_every: int = 50

    digits: int = 1
    operands: int = 3
    operators: str = "+-*"
    worked_steps: bool = True  # False: answers only
    width: int = 64
    layers: int = 3
    dtype: Literal["float32", "bfloat16"] = "float32"
    critic: Literal["shared", "separate"] = "shared"  # for rules that ask for `value`

    warm_steps: int = 3000
    wrong: float = 0.4  # chance that a step of a demonstration is wrong
    skipped: float = 0.0  # chance that one is not written down
    problems: int = 64
    samples: int = 8  # of each problem
    temperature: float = 1.0
    legal: bool = False  # let the policy choose among well-formed characters only
    learning_rate: float = 1e-3  # its peak
    epochs: int = 1
    minibatches: int = 2
    accumulate: int = 8  # micro-batches; on a CPU small ones stay in the cache
    entropy_coef: float = 0.002
    kl_coef: float = 0.0  # pull to the warm-started policy, in the loss


PRESETS = {
    "cpu": Config(),
    "accelerator": Config(
        preset="accelerator", digits=2, operands=2, width=256, layers=4, dtype="bfloat16",
        problems=512, samples=16, minibatches=4, accumulate=1, warm_steps=10_000, steps=500,
    ),
}  # fmt: skip


class Parts(NamedTuple):
    """The functions that the settings name."""

    task: Task
    policy: Policy
    rule: credit.Bound
    loss: credit.Bound
    evidence: tuple[str, ...]
    sampling: Sampling
    schedule: update.Schedule


def main(config: Config) -> None:
    parts, mesh = build(config), sharding.make_mesh()
    place = functools.partial(sharding.over_problems, mesh)
    judge = evaluate.make_judge(parts.policy, parts.task, parts.sampling, place)
    collect = make_collect(config, parts, place)
    init_key, warm_key, rl_key, show_key = jax.random.split(jax.random.key(config.seed), 4)
    optimizer = warm_start_optimizer(config.warm_steps)
    params = jax.jit(parts.policy.init)(init_key)
    state = sharding.replicated(mesh, update.initial_state(params, optimizer, warm_key))
    data = demonstrations(parts.task, config.wrong, config.skipped, seed=config.seed)
    jax.eval_shape(collect, state, rl_key)  # a rule that does not fit fails here, not after minutes
    once = jax.jit(collect)
    credit.check_group_size(parts.rule, config.samples, lambda: once(state, rl_key)[:2])

    folder = config.run_dir or Path(f"runs/arithmetic-{config.advantage}-{config.seed}")
    with run.open_run(folder, config, fresh=config.fresh), run.stop_on_signal() as stop_requested:
        results = {"start": judge(state)}
        warm = Stage("warm start", folder / "warm", config.warm_steps, log_every=50)
        pretrain = sharding.jit_step(mesh, make_pretrain_step(parts.policy, optimizer))
        state = run_stage(warm, lambda state: pretrain(state, data), state, stop_requested)
        results["warm"] = judge(state)

        optimizer = update.guarded(update.inverse_sqrt(config.learning_rate))
        state = sharding.replicated(mesh, update.initial_state(state.params, optimizer, rl_key))
        step = sharding.jit_step(mesh, make_train_step(config, parts, collect, optimizer))
        rl = Stage("rl", folder, config.steps, config.evaluate_every, config.checkpoint_every)
        state = run_stage(rl, step, state, stop_requested, judge)
        results |= {"rl": judge(state)} | timings({"warm": warm, "rl": rl})

        rollout, _, assigned, _ = once(state, show_key)
        episodes = figures.episodes_with_credit(parts.task, rollout, assigned.advantage)
        figures.conclude(folder, results, episodes, f"arithmetic, {config.advantage}")


def build(config: Config) -> Parts:
    """Wrong settings are refused here, before anything is computed or written."""
    rule = credit.from_flags(config.advantage, ADVANTAGES, "advantage", config.advantage_kwargs)
    loss = credit.from_flags(config.loss, LOSSES, "loss", config.loss_kwargs)
    kl = ("ref_log_prob",) if config.kl_coef else ()
    evidence = (*rule.evidence, *loss.evidence, *kl)
    task = TASKS["arithmetic"](
        digits=config.digits,
        operands=config.operands,
        operators=config.operators,
        worked_steps=config.worked_steps,
    )
    critic = config.critic if "value" in evidence else "none"
    architecture = Architecture(
        len(task.vocabulary), config.width, config.layers, dtype=config.dtype, value_head=critic
    )
    sampling = Sampling(temperature=config.temperature, legal=config.legal)
    schedule = update.Schedule(config.epochs, config.minibatches, config.accumulate)
    update.check_schedule(schedule, config.problems)
    return Parts(task, transformer(architecture), rule, loss, evidence, sampling, schedule)


def make_collect(config: Config, parts: Parts, place: Callable) -> Callable:
    """collect -> measure -> credit: `(state, key) -> (rollout, evidence, credit, metrics)`."""
    task, sampling = parts.task, parts.sampling

    def collect(state: TrainState, key: Array):
        sample_key, measure_key = jax.random.split(key)
        drawn = place(draw_problems(task, sample_key, config.problems))
        context = Context(parts.policy, state.params, state.ref_params, task, sampling)
        rollout = sample(
            parts.policy, state.params, task, *drawn, samples=config.samples, sampling=sampling
        )
        rollout = drop_unscored(rollout)
        evidence, price = credit.measure(parts.evidence, context, rollout, measure_key)
        assigned = credit.assign(parts.rule, rollout, evidence)
        raw = assigned.advantage
        final = masked.whiten(raw, rollout.mask) if config.whiten else raw
        metrics = rollout_metrics(rollout, raw, final, price)
        return rollout, evidence, assigned._replace(advantage=final), metrics

    return collect


def make_train_step(
    config: Config, parts: Parts, collect: Callable, optimizer: optax.GradientTransformation
) -> Step:
    """collect -> measure -> credit -> learn, one pure function of the state."""
    objective = update.Objective(
        parts.loss, REDUCERS[config.reduce], config.entropy_coef, config.kl_coef
    )
    learn = update.make_update(parts.policy, optimizer, objective, parts.schedule, parts.sampling)

    def train_step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        collect_key, update_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        rollout, evidence, assigned, metrics = collect(state, collect_key)
        batch = update.make_batch(rollout, assigned, evidence)
        state, update_metrics = learn(state, batch, update_key)
        return state._replace(step=state.step + 1), metrics | update_metrics

    return train_step


if __name__ == "__main__":
    run.command_line(main, PRESETS)
