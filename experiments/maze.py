"""A small transformer learns to walk mazes: does it help to be told `warmer` at every step?

Three stages. Before: a new network. Warm start: supervised learning on the walks of an expert who
takes a wrong move half of the time. Then reinforcement learning twice from the same start,
once with the reward `ding` (1 at the exit, nothing else) and once with `warmer` (the same, and what
every move brought the walker nearer). Success is always the exit, on held-out mazes.

    python experiments/maze.py                           # both rewards, GRPO
    python experiments/maze.py --advantage gae           # PPO with a critic
    python experiments/maze.py --regime plan             # the map is in the prompt, nothing is seen
    python experiments/maze.py --aliased --think 2       # cells look alike; thoughts between moves
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
from rlcredit.types import InputError, Task


@dataclass(frozen=True)
class Config:
    """Settings of a run; a run folder belongs to one of them."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    run_dir: Path | None = None  # default: runs/maze-ADVANTAGE-SEED
    seed: int = 0
    fresh: bool = False  # remove the run that the folder holds

    rewards: tuple[Literal["ding", "warmer"], ...] = ("ding", "warmer")
    size: int = 4  # rows and columns
    regime: Literal["walk", "plan"] = "walk"
    braid: float = 1.0  # chance that a dead end is opened
    slip: float = 0.0  # chance that a move goes elsewhere
    aliased: bool = False  # cells do not say where they are
    door: bool = False  # a key has to be fetched first
    traps: float = 0.0  # chance that a dead end cannot be left
    think: int = 0  # most thoughts before a move
    limit: int = 12  # of moves; 0: size * size

    training: Training = field(
        default_factory=lambda: Training(
            warm_steps=400, wrong=0.5, steps=100, evaluate_every=25, entropy_coef=0.01, legal=True
        )
    )


PRESETS = {
    "cpu": Config(),
    "accelerator": Config(
        preset="accelerator", size=6, limit=0,
        training=Training(
            width=256, layers=4, dtype="bfloat16", problems=512, samples=16, minibatches=4,
            accumulate=1, warm_steps=10_000, wrong=0.5, steps=500, lanes=1024, legal=True,
        ),
    ),
}  # fmt: skip


def main(config: Config) -> None:
    if not config.rewards:
        raise InputError("rewards is empty: give ding, warmer or both")
    training, mesh = config.training, sharding.make_mesh()
    parts = {name: train.build(training, make_task(config, name)) for name in config.rewards}
    any_parts = next(iter(parts.values()))
    # Success is the exit, whatever else is paid on the way.
    task, layout = make_task(config, "ding"), train.layout(training, mesh)
    judge = evaluate.make_judge(any_parts.policy, task, any_parts.sampling, layout)
    init_key, warm_key, rl_key, show_key = jax.random.split(jax.random.key(config.seed), 4)
    state = train.untrained(any_parts, mesh, init_key)
    data = demonstrations(task, training.wrong, seed=config.seed)
    collect = {
        name: jax.jit(train.make_collect(training, own, mesh)) for name, own in parts.items()
    }
    for name, own in parts.items():
        train.check_fit(training, own, collect[name], state, rl_key)

    folder = config.run_dir or Path(f"runs/maze-{training.advantage}-{config.seed}")
    warm = Stage("warm start", folder / "warm", training.warm_steps, log_every=50)
    every = (training.evaluate_every, training.checkpoint_every)
    rl = {name: Stage(f"rl, {name}", folder / name, training.steps, *every) for name in parts}
    with run.open_run(folder, config, fresh=config.fresh), run.stop_on_signal() as stop_requested:
        results = {"start": judge(state)}
        state = train.warm_start(warm, any_parts, mesh, state, warm_key, data, stop_requested)
        results["warm"] = judge(state)
        for name, own in parts.items():
            after = train.reinforce(
                rl[name], training, own, mesh, state, rl_key, stop_requested, judge
            )
            results[name] = judge(after)
        results |= timings({"warm": warm, **rl})

        last = next(reversed(parts))
        rollout, _, assigned, _ = collect[last](after, show_key)
        episodes = figures.episodes_with_credit(task, rollout, assigned.advantage)
        folders = {name: stage.folder for name, stage in rl.items()}
        figures.conclude(folder, results, episodes, f"maze, {training.advantage}", folders)


def make_task(config: Config, reward: str) -> Task:
    dials = ("size", "regime", "braid", "slip", "aliased", "door", "traps", "think", "limit")
    return TASKS["maze"](reward=reward, **{name: getattr(config, name) for name in dials})


if __name__ == "__main__":
    run.command_line(main, PRESETS)
