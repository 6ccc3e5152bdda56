"""Which credit rules find the tokens that earned the reward, and which give the right gradient?

Three tasks are small enough that the exact credit of every token under the network itself is known:
a chain with one early decision that counts, walks in a small maze told `warmer` at every step, and
sums of two digits. A small transformer is looked at three times: new, after imitating a teacher who
slips, and half trained. Every rule is judged on the same problems and the same drawn batches.

    python experiments/credit_report.py
    python experiments/credit_report.py --tasks maze --rules grpo rloo my_module:my_rule
    python experiments/credit_report.py --samples 4 --draws 256

`docs/extending.md` says what the figures mean. Rows of finished tasks and stages are kept: the same
command goes on with the next ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import jax

from rlcredit import credit, credit_view, cuts, oracle, run, sharding, train
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Context
from rlcredit.metrics import progress
from rlcredit.oracle.exam import CRITICS, Contestant, as_rows, make_exams
from rlcredit.pretrain import demonstrations
from rlcredit.stage import Stage
from rlcredit.tasks import TASKS
from rlcredit.train import Parts, Training
from rlcredit.types import InputError, Task, TrainState

Stop = Callable[[], bool]
STAGES = ("fresh", "warm", "half-trained")


class Setting(NamedTuple):
    """A task, and how long the network learns it."""

    task: dict[str, object]
    wrong: float  # chance that the teacher slips
    warm_steps: int
    rl_steps: int  # to about half of what can be learned
    unit: str  # what credit is given to as one
    cut: str  # where trees branch


SETTINGS = {
    "bifurcation": Setting({"preset": "delayed_effect"}, 0.3, 200, 20, "step", "every:2"),
    "maze": Setting(
        {"size": 3, "limit": 4, "braid": 1.0, "reward": "warmer"}, 0.5, 150, 15, "step", "every:1"
    ),
    "arithmetic": Setting(
        {"digits": 1, "operators": "+", "worked_steps": False, "spare": 0},
        *(0.5, 300, 15, "token", "every:1"),
    ),
}
NO_USE = ("steps", "warm_steps", "wrong", "evaluate_every", "checkpoint_every")


@dataclass(frozen=True)
class Config:
    """Settings of a report; a run folder belongs to one of them."""

    preset: Literal["cpu"] = "cpu"
    run_dir: Path | None = None  # default: runs/credit-report-SEED
    seed: int = 0
    fresh: bool = False  # remove the report that the folder holds

    tasks: tuple[Literal["bifurcation", "maze", "arithmetic"], ...] = tuple(SETTINGS)
    stages: tuple[Literal["fresh", "warm", "half-trained"], ...] = STAGES
    rules: tuple[str, ...] = tuple(ADVANTAGES)  # or module:function
    judged: int = 4  # held-out problems, the same for every rule and stage
    draws: int = 64  # batches of `samples` episodes of each

    training: Training = field(
        default_factory=lambda: Training(
            advantage="gae", width=32, layers=1, problems=32, samples=8, lanes=0, minibatches=1,
            accumulate=1, learning_rate=3e-3, legal=True,
        )
    )  # fmt: skip


VARIANTS = (
    Contestant("gae", ("lambda_=0",)),
    Contestant("gae", ("lambda_=0",), "trained"),
    Contestant("grpo", reduce="sequence_mean"),
    Contestant("gigpo", ("statistics=episodes",)),
)
BASELINE = Contestant("reinforce")
# Rules of trees: as many episodes as the others sample, that share prefixes.
OF_TREES = ("spo_tree", "treerl", "treerpo", "tree_grpo", "carl", "c3")
BRANCHING = (2, 2)


def main(config: Config) -> None:
    check_settings(config)
    contestants = list(dict.fromkeys([BASELINE, *enter(config.rules)]))
    folder = config.run_dir or Path(f"runs/credit-report-{config.seed}")
    opened = run.open_run(folder, config, fresh=config.fresh, ignore=("fresh", "run_dir"))
    with opened, run.stop_on_signal() as stop_requested:
        rows = []
        for name in config.tasks:
            rows += examine(config, name, contestants, folder, stop_requested)
        run.write_json(folder / "credit_report.json", rows)
        run.write_text(folder / "credit_report.md", credit_view.markdown(rows) + "\n")
        credit_view.print_tables(rows)
        print(credit_view.fidelity_against_price(rows, folder / "credit_report.png"))


def check_settings(config: Config) -> None:
    for name in ("tasks", "stages", "rules"):
        if not getattr(config, name):
            raise InputError(f"{name} is empty: give one or more")
    for name, least in (("judged", 1), ("draws", 2)):
        if getattr(config, name) < least:
            raise InputError(f"{name}={getattr(config, name)} must be {least} or more")
    for name in NO_USE:
        if getattr(config.training, name) != getattr(Training(), name):
            raise InputError(f"{name} has no use in a report: each task has its own setting")
    learner = config.training.advantage
    if "value" not in credit.signature(credit.resolve(learner, ADVANTAGES, "advantage"))[0]:
        raise InputError(f"advantage={learner!r} trains no critic, and rules are judged with it")


def enter(rules: tuple[str, ...]) -> Iterator[Contestant]:
    """Every rule, with each critic where it has one, and the variants."""
    for name in rules:
        evidence, _ = credit.signature(credit.resolve(name, ADVANTAGES, "advantage"))
        critics = CRITICS if "value" in evidence else CRITICS[:1]
        trees = BRANCHING if name in OF_TREES else ()
        yield from (Contestant(name, critic=critic, branching=trees) for critic in critics)
        yield from (variant for variant in VARIANTS if variant.name == name)


def examine(
    config: Config, name: str, contestants: list[Contestant], folder: Path, stop: Stop
) -> list[dict]:
    """Rows of one task: every contestant at every stage."""
    task = TASKS[name](**SETTINGS[name].task)
    parts = train.build(config.training, task)
    problems = task.held_out(config.judged, config.seed)
    probing = dataclasses.replace(config.training.probing, unit=SETTINGS[name].unit, scorer="exact")
    context = Context(parts.policy, None, None, task, parts.sampling, probing=probing)
    key, rows = jax.random.key(config.seed), []
    prepare = oracle.make_prepare(context, problems)
    sizes = {"samples": config.training.samples, "draws": config.draws}
    cut = cuts.find(SETTINGS[name].cut)
    exams = make_exams(contestants, context, problems, key, cut=cut, **sizes)
    states = train_stages(config, name, task, parts, folder / name, stop)
    for stage, state in zip(STAGES, states, strict=False):
        if stage not in config.stages:
            continue
        file = folder / f"rows-{name}-{stage}.json"
        if not file.exists():
            ground, results = prepare(state.params, state.ref_params), {}
            with progress(len(exams), 0, f"{name}, {stage}") as show:
                for contestant, exam in exams.items():
                    if stop():
                        raise run.Stopped(f"stopped before {name}, {stage} was done")
                    results[contestant] = exam(ground, key)
                    show(len(results), {})
            about = {"task": name, "stage": stage, "unit": probing.unit, **sizes}
            run.write_json(file, [about | row for row in as_rows(results, BASELINE)])
        rows += json.loads(file.read_text())
    return rows


def train_stages(
    config: Config, name: str, task: Task, parts: Parts, folder: Path, stop: Stop
) -> Iterator[TrainState]:
    """The network when it is new, after imitation, and half trained."""
    training, setting, mesh = config.training, SETTINGS[name], sharding.make_mesh()
    init_key, warm_key, rl_key = jax.random.split(jax.random.key(config.seed), 3)
    state = train.untrained(parts, mesh, init_key)
    yield state
    if config.stages == STAGES[:1]:
        return
    data = demonstrations(task, setting.wrong, seed=config.seed)
    warm = Stage(f"{name}, warm start", folder / "warm", setting.warm_steps)
    state = train.warm_start(warm, parts, mesh, state, warm_key, data, stop)
    yield state
    if STAGES[2] not in config.stages:
        return
    half = Stage(f"{name}, rl", folder / "rl", setting.rl_steps)
    yield train.reinforce(half, training, parts, mesh, state, rl_key, stop)


if __name__ == "__main__":
    run.command_line(main, {"cpu": Config()})
