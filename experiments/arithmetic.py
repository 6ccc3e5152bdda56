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

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax

from rlcredit import evaluate, figures, run, sharding, train
from rlcredit.pretrain import demonstrations
from rlcredit.stage import Stage, timings
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import Task


@dataclass(frozen=True)
class Config:
    """Settings of a run; a run folder belongs to one of them."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    run_dir: Path | None = None  # default: runs/arithmetic-ADVANTAGE-SEED
    seed: int = 0
    fresh: bool = False  # remove the run that the folder holds

    digits: int = 1
    operands: int = 3
    operators: str = "+-*"
    worked_steps: bool = True  # False: answers only
    skipped: float = 0.0  # chance that a step of a demonstration is not written down

    training: Training = field(default_factory=Training)


PRESETS = {
    "cpu": Config(),
    "accelerator": Config(
        preset="accelerator", digits=2, operands=2,
        training=Training(
            width=256, layers=4, dtype="bfloat16", problems=512, samples=16, minibatches=4,
            accumulate=1, warm_steps=10_000, steps=500, lanes=1024,
        ),
    ),
}  # fmt: skip


def main(config: Config) -> None:
    training, mesh = config.training, sharding.make_mesh()
    task = make_task(config)
    parts = train.build(training, task)
    layout = train.layout(training, mesh)
    judge = evaluate.make_judge(parts.policy, task, parts.sampling, layout)
    collect = jax.jit(train.make_collect(training, parts, mesh))
    init_key, warm_key, rl_key, show_key = jax.random.split(jax.random.key(config.seed), 4)
    state = train.untrained(parts, mesh, init_key)
    data = demonstrations(task, training.wrong, config.skipped, seed=config.seed)
    train.check_fit(training, parts, collect, state, rl_key)

    folder = config.run_dir or Path(f"runs/arithmetic-{training.advantage}-{config.seed}")
    warm = Stage("warm start", folder / "warm", training.warm_steps, log_every=50)
    rl = Stage("rl", folder, training.steps, training.evaluate_every, training.checkpoint_every)
    with run.open_run(folder, config, fresh=config.fresh), run.stop_on_signal() as stop_requested:
        results = {"start": judge(state)}
        state = train.warm_start(warm, parts, mesh, state, warm_key, data, stop_requested)
        results["warm"] = judge(state)
        state = train.reinforce(rl, training, parts, mesh, state, rl_key, stop_requested, judge)
        results |= {"rl": judge(state)} | timings({"warm": warm, "rl": rl})

        rollout, _, assigned, _ = collect(state, show_key)
        episodes = figures.episodes_with_credit(task, rollout, assigned.advantage)
        title = f"arithmetic, {training.advantage}"
        figures.conclude(folder, results, episodes, title, {"rl": folder})


def make_task(config: Config) -> Task:
    return TASKS["arithmetic"](
        digits=config.digits,
        operands=config.operands,
        operators=config.operators,
        worked_steps=config.worked_steps,
    )


if __name__ == "__main__":
    run.command_line(main, PRESETS)
