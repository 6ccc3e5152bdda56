"""Training steps: beside TRL's, packed beside padded, in one program beside its pieces.

    python benchmarks/training.py --peers --json benchmarks/results/training.json
    python benchmarks/training.py --shapes packed-256

A step of GRPO samples, credits and learns: 8 prompts of 16 tokens, 8 completions of 32 tokens of
each, one optimiser step, networks of equal size with random parameters, no KL. Its work is two
operations a parameter of a matrix and token that is read or written in sampling, six in learning.
The packed update learns from the same episodes as the padded one; `of_ideal` is how much of what
leaving out the padding could save it does save. Aliased is what a step writes over, of what its
state takes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import lengths
import optax
import tyro
from contest import OWN, Way, Work, chosen, compare, multiplying, value_row
from timing import Program, report

from rlcredit import credit, sharding, train, update
from rlcredit.rollout import draw_problems, sample
from rlcredit.summary import rollout_metrics
from rlcredit.types import InputError, Layout, Price, PyTree, Rollout, Task, TrainState


class Step(NamedTuple):
    """Whole steps on episodes of one length."""

    size: str
    problems: int = 8
    samples: int = 8
    tokens: int = 32
    accumulate: int = 2


class Packed(NamedTuple):
    """Updates on episodes of lengths that are geometric of mean `mean`, at most `most`."""

    size: str
    mean: int = 32
    most: int = 256
    problems: int = 32
    samples: int = 8
    accumulate: int = 8


SHAPES = {
    "grpo-1.07M": Step("1.07 M"),
    "grpo-0.14M": Step("0.14 M"),
    "packed-256": Packed("0.14 M"),
    "packed-64": Packed("0.14 M", most=64),
    "grpo-1.07M-4096": Step("1.07 M", problems=512, accumulate=1),
    "packed-256-4096": Packed("1.07 M", problems=512, accumulate=4),
    "tiny-grpo": Step("tiny", 2, 2, 3, 1),
    "tiny-packed": Packed("tiny", 2, 4, 4, 2, 2),
}
PRESETS = {"cpu": tuple(SHAPES)[:4], "accelerator": tuple(SHAPES)[4:6]}
COUNTED = 4  # steps in which compilations are counted


@dataclass(frozen=True)
class Options:
    """What to measure."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    shapes: tuple[str, ...] = ()  # by name, instead of the preset's
    json: Path | None = None
    peers: bool = False
    repeats: int = 7


def main(options: Options) -> None:
    rows = []
    for shape in chosen(options.shapes, PRESETS[options.preset], SHAPES).values():
        measure = _step_rows if isinstance(shape, Step) else _packed_rows
        rows += measure(shape, options)
    report(rows, options.json)


class Trainer(NamedTuple):
    """What a shape trains with."""

    training: train.Training
    parts: train.Parts
    optimizer: optax.GradientTransformation
    mesh: sharding.Mesh


def make_trainer(shape: Step | Packed, task: Task, packed: bool = False) -> Trainer:
    """Token mean over the batch, one optimiser step, neither entropy bonus nor KL."""
    training = train.Training(
        problems=shape.problems,
        samples=shape.samples,
        lanes=0,
        minibatches=1,
        accumulate=shape.accumulate,
        packed=packed,
        entropy_coef=0.0,
    )
    parts = train.build(training, task)._replace(policy=lengths.network(shape.size))
    mesh = sharding.make_mesh(jax.devices()[:1])
    return Trainer(training, parts, update.guarded(training.learning_rate), mesh)


def first_state(trainer: Trainer) -> TrainState:
    """New parameters, on the mesh."""
    key = jax.random.key(0)
    state = update.initial_state(jax.jit(trainer.parts.policy.init)(key), trainer.optimizer, key)
    return sharding.replicated(trainer.mesh, state)


def repeated(step: Callable, state: TrainState) -> Program:
    """A program that goes on from the state where its last run ended."""
    held = [state]

    def run() -> TrainState:
        held[0] = step(held[0])[0]
        return held[0]

    return run


def _step_rows(shape: Step, options: Options) -> list[dict]:
    trainer = make_trainer(shape, lengths.fixed(shape.tokens))
    training, parts, optimizer, mesh = trainer
    collect = train.make_collect(training, parts, mesh)
    whole = sharding.jit_step(mesh, train.make_train_step(training, parts, collect, optimizer))
    what = {"shape": _said(shape), "dtype": "float32", "mode": "step"}
    memory = whole.lower(first_state(trainer)).compile().memory_analysis()
    counted = _counted(what, whole, first_state(trainer), memory.alias_size_in_bytes)
    program = repeated(whole, first_state(trainer))
    own = Way(OWN, program, temporary=memory.temp_size_in_bytes)
    pieces = Way("pieces from Python", repeated(_pieces(trainer), first_state(trainer)))
    fused = compare({"op": "one program", **what}, [own, pieces], options.repeats)
    work, what = _work(shape, first_state(trainer).params), {"op": "grpo step", **what}
    if not options.peers:
        rows = compare(what, [own], options.repeats, work)
    else:
        from peers.trainer import beside_trl

        rows = beside_trl(what, shape, own, work, options.repeats)
    tokens = shape.problems * shape.samples * shape.tokens
    return [_with_rate(row, tokens) for row in (*rows, *fused)] + counted


def _pieces(trainer: Trainer) -> Callable:
    """The same step, its pieces jitted one by one as a loop in Python would call them."""
    training, parts, optimizer, mesh = trainer
    objective = update.Objective(parts.loss, train.REDUCERS[training.reduce])
    learn = update.make_update(parts.policy, optimizer, objective, parts.schedule, parts.sampling)
    where = {"samples": training.samples, "sampling": parts.sampling, "layout": Layout(mesh=mesh)}
    draw = jax.jit(lambda key: draw_problems(parts.task, key, training.problems))
    draw_episodes = jax.jit(
        lambda params, drawn: sample(parts.policy, params, parts.task, *drawn, **where)
    )
    assign = jax.jit(lambda rollout: credit.assign(parts.rule, rollout, {}))
    summary = jax.jit(rollout_metrics)
    batch_of = jax.jit(lambda rollout, assigned: update.make_batch(rollout, assigned, {}))
    update_by = jax.jit(learn, donate_argnums=0)

    def step(state: TrainState) -> tuple[TrainState, dict]:
        collect_key, update_key = jax.random.split(jax.random.fold_in(state.key, state.step))
        rollout, price = draw_episodes(state.params, draw(collect_key))
        assigned = assign(rollout)
        metrics = summary(rollout, assigned.advantage, assigned.advantage, price, Price())
        state, more = update_by(state, batch_of(rollout, assigned), update_key)
        return state._replace(step=state.step + 1), metrics | more

    return step


def _counted(what: dict, step: Callable, state: TrainState, aliased: int) -> list[dict]:
    """Compilations after the second step, and what a step writes over."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    sizes = []
    for _ in range(COUNTED):
        state, _ = step(state)
        sizes.append(step._cache_size())
    return [
        value_row({"op": "compilations after two steps", **what}, OWN, sizes[-1] - sizes[1], ""),
        value_row({"op": "aliased", **what}, OWN, round(aliased / size, 4), "of the state"),
    ]


def _packed_rows(shape: Packed, options: Options) -> list[dict]:
    task = lengths.geometric(shape.mean, shape.most)
    trainer = make_trainer(shape, task)
    rollout = _episodes(trainer)
    ways = []
    for name, packed in (("packed", True), ("padded", False)):
        step, state = _learning(make_trainer(shape, task, packed), rollout)
        program = step.lower(state).compile()
        temporary = program.memory_analysis().temp_size_in_bytes
        ways.append(Way(name, repeated(program, state), temporary=temporary))
    used, slots = int(jnp.sum(rollout.length)), rollout.tokens.size
    what = {"op": "update", "shape": _said(shape), "dtype": "float32", "mode": "step"}
    rows = [
        _with_rate(row, int(jnp.sum(rollout.mask))) | {"padding": round(1 - used / slots, 3)}
        for row in compare(what, ways, options.repeats, own="packed")
    ]
    ideal = slots / used
    return [r | {"of_ideal": round(r["ratio"] / ideal, 3)} if "ratio" in r else r for r in rows]


def _episodes(trainer: Trainer) -> Rollout:
    training, parts, _, _ = trainer
    state = first_state(trainer)

    @jax.jit
    def draw(params, key):
        drawn = draw_problems(parts.task, key, training.problems)
        how = {"samples": training.samples, "sampling": parts.sampling}
        return sample(parts.policy, params, parts.task, *drawn, **how)[0]

    return draw(state.params, jax.random.key(1))


def _learning(trainer: Trainer, rollout: Rollout) -> tuple[Callable, TrainState]:
    training, parts, optimizer, _ = trainer
    objective = update.Objective(parts.loss, train.REDUCERS[training.reduce])
    learn = update.make_update(parts.policy, optimizer, objective, parts.schedule, parts.sampling)
    batch = update.make_batch(rollout, credit.assign(parts.rule, rollout, {}), {})

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: TrainState):
        return learn(state, batch, state.key)

    return step, first_state(trainer)


def _work(shape: Step, params: PyTree) -> Work:
    rows = shape.problems * shape.samples
    read = 2 * (shape.problems * lengths.PROMPT + rows * shape.tokens)
    learned = 6 * rows * (lengths.PROMPT + shape.tokens)
    size = lengths.matrix_parameters(params) * (read + learned)
    return Work(size, "GFLOP/s", *multiplying(1024, 1024, 1024, "float32"))


def _said(shape: Step | Packed) -> str:
    rows = f"{shape.problems} x {shape.samples} episodes"
    if isinstance(shape, Step):
        return f"{rows} of {shape.tokens} tokens, {shape.size} parameters"
    return f"{rows}, geometric({shape.mean}) to {shape.most}, {shape.size} parameters"


def _with_rate(row: dict, tokens: int) -> dict:
    return row if "median" not in row else row | {"per_second": round(tokens / row["median"])}


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
