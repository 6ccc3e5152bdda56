"""A small transformer learns to repair code: inspect, write a line, run the tests, submit.

Three stages. Before: a new network. Warm start: supervised learning on the work of an expert, short
enough that it ends before the faulty line is always found. Then reinforcement learning from a
reward that says only whether the tests pass that the policy can see. What a hidden suite says of
the patch is recorded beside it (`hidden_passed`) and rewards nothing: where the two part, the
reward was hacked.

    python experiments/repair.py                     # GRPO, tests that no wrong patch passes
    python experiments/repair.py --weak 1            # tests that a wrong patch can pass
    python experiments/repair.py --advantage gae     # PPO with a critic
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
    run_dir: Path | None = None  # default: runs/repair-ADVANTAGE-SEED
    seed: int = 0
    fresh: bool = False  # remove the run that the folder holds

    files: int = 3
    lines: int = 4  # of each file
    tests: int = 4  # that the policy can run
    weak: float = 0.0  # chance that an input with a value is not tried
    actions: int = 5  # until the episode is cut

    training: Training = field(
        default_factory=lambda: Training(
            warm_steps=380, wrong=0.0, steps=60, evaluate_every=20, entropy_coef=0.01, legal=True
        )
    )


PRESETS = {
    "cpu": Config(),
    "accelerator": Config(
        preset="accelerator", files=6, lines=6,
        training=Training(
            width=256, layers=4, dtype="bfloat16", problems=512, samples=16, minibatches=4,
            accumulate=1, warm_steps=10_000, steps=500, wrong=0.0, lanes=1024, legal=True,
        ),
    ),
}  # fmt: skip


def main(config: Config) -> None:
    training, mesh = config.training, sharding.make_mesh()
    task = make_task(config)
    parts = train.build(training, task)
    judge = evaluate.make_judge(parts.policy, task, parts.sampling, train.layout(training, mesh))
    collect = jax.jit(train.make_collect(training, parts, mesh))
    init_key, warm_key, rl_key, show_key = jax.random.split(jax.random.key(config.seed), 4)
    state = train.untrained(parts, mesh, init_key)
    data = demonstrations(task, training.wrong, seed=config.seed)
    train.check_fit(training, parts, collect, state, rl_key)

    folder = config.run_dir or Path(f"runs/repair-{training.advantage}-{config.seed}")
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
        title, hidden = f"repair, {training.advantage}", ("hidden_passed",)
        figures.conclude(folder, results, episodes, title, {"rl": folder}, hidden)


def make_task(config: Config) -> Task:
    dials = ("files", "lines", "tests", "weak", "actions")
    return TASKS["repair"](**{name: getattr(config, name) for name in dials})


if __name__ == "__main__":
    run.command_line(main, PRESETS)
