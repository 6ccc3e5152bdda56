"""Which credit rule learns most from a given number of tokens?

Every rule learns the same task with eight seeds at once, from the same start and with the same
settings, until a seed has been charged the budget: the tokens sampled and scored for its rollouts
and for the evidence that the rule asks for. So a rule with dear evidence takes fewer steps. What
is shown is the interquartile mean of the success of the seeds on held-out problems, with a 95 %
bootstrap interval (Agarwal et al., 2021, arXiv 2108.13264), over charged tokens and over seconds.

    python experiments/learning.py                           # a chain with one decision that counts
    python experiments/learning.py --preset maze             # walks, told `warmer` at every step
    python experiments/learning.py --preset arithmetic       # from one warm start for all
    python experiments/learning.py --rules grpo my_module:my_rule

A preset is a task. Rules that are done are kept: the same command goes on with the next one, and a
longer list of `--rules` adds to the comparison. `--budget` is in thousands of tokens. The settings
of the training that name one rule or count steps have no use here and are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from rlcredit import comparison, figures, run, sharding, train
from rlcredit.comparison import Budget, Curve, Entrant
from rlcredit.metrics import progress
from rlcredit.pretrain import demonstrations
from rlcredit.stage import Stage
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import Array, InputError, PyTree, Task

COLUMNS = ("steps", "charged tokens", "seconds", "compiling", "success", "area under curve")
NO_USE = ("advantage", "advantage_kwargs", "steps", "evaluate_every", "checkpoint_every")


@dataclass(frozen=True)
class Config:
    """Settings of a comparison; a run folder belongs to one of them, whatever the rules."""

    preset: Literal["bifurcation", "maze", "arithmetic"] = "bifurcation"  # the task
    run_dir: Path | None = None  # default: runs/learning-PRESET-SEED
    seed: int = 0
    fresh: bool = False  # remove the comparison that the folder holds

    # Of `python -m rlcredit list`, or module:function.
    rules: tuple[str, ...] = (
        *("reinforce", "reinforce_baseline", "reinforce_pp", "grpo", "dr_grpo", "rloo", "gigpo"),
        *("turn_loo", "remax", "gae", "td_lambda"),
    )
    seeds: int = 8  # that learn at once
    budget: float = 400  # thousands of tokens charged to each seed of a rule
    points: int = 20  # evaluations on the way
    held_out: int = 64  # problems of an evaluation, four samples of each

    training: Training = field(
        default_factory=lambda: Training(
            width=32, layers=1, warm_steps=0, problems=32, lanes=0, minibatches=1, accumulate=1,
            learning_rate=5e-3, legal=True,
        )
    )  # fmt: skip


PRESETS = {
    "bifurcation": Config(),
    "maze": Config(
        preset="maze", budget=1000,
        training=Training(
            width=32, layers=2, warm_steps=0, problems=32, lanes=0, minibatches=1, accumulate=1,
            learning_rate=3e-3, legal=True, entropy_coef=0.01,
        ),
    ),
    "arithmetic": Config(
        preset="arithmetic", budget=1000,
        training=Training(warm_steps=1000, problems=32, lanes=0, accumulate=1),
    ),
}  # fmt: skip


def main(config: Config) -> None:
    check_settings(config)
    mesh, (task, judged) = sharding.make_mesh(), make_tasks(config.preset)
    warm_key, check_key = jax.random.split(jax.random.key(config.seed))
    layout = train.layout(config.training, mesh)
    entrants, success = {}, {}
    for rule in config.rules:
        training = dataclasses.replace(config.training, advantage=rule)
        entrants[rule] = comparison.enter(training, task, mesh, check_key)
        where = (entrants[rule].parts, judged, layout)
        success[rule] = comparison.make_success(*where, problems=config.held_out)

    folder = config.run_dir or Path(f"runs/learning-{config.preset}-{config.seed}")
    files = {rule: folder / f"rule-{rule.replace(':', '-')}.json" for rule in config.rules}
    ignore = ("fresh", "run_dir", "rules")
    opened = run.open_run(folder, config, fresh=config.fresh, ignore=ignore)
    with opened, run.stop_on_signal() as stop_requested:
        start = warm_start(config, task, mesh, warm_key, folder, stop_requested)
        for rule, entrant in entrants.items():
            if not files[rule].exists():
                if stop_requested():
                    raise run.Stopped(f"stopped before {rule}")
                curve = learn(config, entrant, mesh, start, success[rule], stop_requested)
                run.write_json(files[rule], curve._asdict())
        curves = {rule: Curve(**json.loads(file.read_text())) for rule, file in files.items()}
        conclude(folder, config.preset, curves)


def check_settings(config: Config) -> None:
    if not config.rules:
        raise InputError("rules is empty: give one or more")
    for name in ("seeds", "budget", "points"):
        if not 0 < getattr(config, name) < math.inf:
            raise InputError(f"{name}={getattr(config, name)} must be above 0 and finite")
    for name in NO_USE:
        if getattr(config.training, name) != getattr(Training(), name):
            raise InputError(f"{name} has no use in a comparison: see rules, budget and points")


def make_tasks(preset: str) -> tuple[Task, Task]:
    """The task that is learned and the one that success is measured on."""
    if preset == "bifurcation":
        # Rewards are drawn, 0 or 1; success is their chance, which the second decision sets.
        chain = {"gaps": (0.0, 0.8, 0.0), "base": 0.1, "branches": 4, "filler": 2, "delay": 2}
        make = functools.partial(TASKS[preset], **chain)
        return make(chance=True), make()
    if preset == "maze":
        # Success is the exit, whatever else is paid on the way.
        make = functools.partial(TASKS[preset], size=3, braid=1.0, limit=8)
        return make(reward="warmer"), make(reward="ding")
    task = TASKS[preset](digits=1, operands=2)
    return task, task


def warm_start(
    config: Config, task: Task, mesh: Mesh, key: Array, folder: Path, stop: Callable[[], bool]
) -> PyTree | None:
    """Parameters of a policy without a critic, for all rules and seeds; None for new ones."""
    if not config.training.warm_steps:
        return None
    training = dataclasses.replace(config.training, advantage="reinforce")
    parts = train.build(training, task)
    init_key, own_key = jax.random.split(key)
    stage = Stage("warm start", folder / "warm", training.warm_steps, log_every=50)
    data = demonstrations(task, training.wrong, seed=config.seed)
    new = train.untrained(parts, mesh, init_key)
    return train.warm_start(stage, parts, mesh, new, own_key, data, stop).params


def learn(
    config: Config,
    entrant: Entrant,
    mesh: Mesh,
    start: PyTree | None,
    success: Callable[[PyTree], Array],
    stop_requested: Callable[[], bool],
) -> Curve:
    keys = comparison.seed_keys(config.seed, config.seeds)
    states = jax.jit(functools.partial(comparison.first_states, entrant))(keys, start)
    budget = Budget(1000 * config.budget, config.points)
    with progress(budget.points, 0, entrant.name) as show:

        def after_point(point: int, mean: float) -> None:
            show(point, {"pass@1": mean})
            if stop_requested() and point < budget.points:
                raise run.Stopped(f"stopped before {entrant.name} was done")

        return comparison.learn(entrant, mesh, states, success, budget, after_point)


def conclude(folder: Path, task: str, curves: dict[str, Curve]) -> None:
    """Writes `learning.json` and `learning.png`, and prints the table."""
    rows = [row for rule, curve in curves.items() for row in comparison.rows(rule, curve)]
    rules = [comparison.summary(rule, curve) for rule, curve in curves.items()]
    recorded = (folder / run.CONFIG, folder / run.VERSIONS)
    record = {path.stem: json.loads(path.read_text()) for path in recorded}
    run.write_json(folder / "learning.json", record | {"rules": rules, "rows": rows})
    table = Table("rule", *COLUMNS)
    for own in rules:
        success = f"{own['iqm']:.3f} [{own['low']:.3f}, {own['high']:.3f}]"
        cost = [f"{own[name]:,.0f}" for name in ("steps", "charged", "seconds", "compile_seconds")]
        table.add_row(own["rule"], *cost, success, f"{own['area']:.3f}")
    # Wider than a pipe's 80 columns, so that a log keeps whole numbers.
    Console(width=None if Console().is_terminal else 120).print(table)
    title = f"{task}: interquartile mean of the seeds, 95 % bootstrap interval"
    print(figures.success_curves(rows, folder / "learning.png", title))


if __name__ == "__main__":
    run.command_line(main, PRESETS)
