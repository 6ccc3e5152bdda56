"""Sampling: decoding beside others, refilled lanes beside padded batches, environments alone.

    python benchmarks/rollout.py --peers --json benchmarks/results/rollout.json
    python benchmarks/rollout.py --shapes maze-16 maze-64 --figure docs/occupancy.png

`decode`: 64 new tokens after 16 of a prompt, by networks of equal size with random parameters; ours
also records the log-probabilities. The work is two operations a parameter of a matrix and token.
`padded`: as many episodes at a time as the refilled engine has lanes, waiting for the longest of
them. Both sample the same episodes: walks of a new network that chooses among the legal moves, and
episodes whose lengths are geometric of mean 32, at most 256. `steps`: random play.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import lengths
import numpy as np
import tyro
from contest import OWN, Way, Work, chosen, compare, compiled, multiplying
from stepping import environments
from timing import report

from rlcredit.policy import Architecture, transformer
from rlcredit.rollout import draw_problems, sample
from rlcredit.tasks import TASKS
from rlcredit.types import Array, InputError, Layout, Policy, Price, Sampling, Task


class Decode(NamedTuple):
    """`rows` episodes of `tokens` tokens each, all at once."""

    size: str
    rows: int = 64
    tokens: int = 64


class Engines(NamedTuple):
    """Episodes of some task, `each` a lane."""

    make: Callable[[], tuple[Task, Policy]]
    lanes: int
    each: int
    samples: int = 1
    legal: bool = False


class Steps(NamedTuple):
    """Environments side by side, and how often each is stepped."""

    count: int
    steps: int = 200


def _maze(limit: int | None, width: int, layers: int) -> Callable[[], tuple[Task, Policy]]:
    def make() -> tuple[Task, Policy]:
        task = TASKS["maze"](size=4, **({} if limit is None else {"limit": limit}))
        return task, transformer(Architecture(len(task.vocabulary), width, layers))

    return make


def _geometric(size: str, mean: int = 32, most: int = 256) -> Callable[[], tuple[Task, Policy]]:
    return lambda: (lengths.geometric(mean, most), lengths.network(size))


SHAPES = {
    "decode-1.07M": Decode("1.07 M"),
    "decode-0.14M": Decode("0.14 M"),
    "geometric": Engines(_geometric("0.14 M"), 64, 16),
    "maze-16": Engines(_maze(None, 64, 3), 64, 8, samples=8, legal=True),
    "maze-64": Engines(_maze(64, 64, 3), 64, 8, samples=8, legal=True),
    "steps": Steps(1024),
    "decode-1.07M-4096": Decode("1.07 M", 4096),
    "geometric-1024": Engines(_geometric("1.07 M"), 1024, 16),
    "maze-64-1024": Engines(_maze(64, 256, 4), 1024, 8, samples=8, legal=True),
    "steps-16384": Steps(16_384),
    "tiny-decode": Decode("tiny", 2, 3),
    "tiny-geometric": Engines(_geometric("tiny", 2, 4), 2, 2),
    "tiny-steps": Steps(2, 3),
}
PRESETS = {"cpu": tuple(SHAPES)[:6], "accelerator": tuple(SHAPES)[6:10]}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    shapes: tuple[str, ...] = ()  # by name, instead of the preset's
    json: Path | None = None
    figure: Path | None = None  # writes the occupancy of the walks here
    peers: bool = False
    repeats: int = 7


def main(options: Options) -> None:
    rows, busy = [], {}
    for name, shape in chosen(options.shapes, PRESETS[options.preset], SHAPES).items():
        match shape:
            case Decode():
                rows += _decode_rows(shape, options)
            case Engines():
                more, busy[name] = _engine_rows(name, shape, options.repeats)
                rows += more
            case Steps():
                rows += environments(*shape, options.peers, options.repeats)
    report(rows, options.json)
    if options.figure is not None:
        _draw(busy, options.figure)


def _decode_rows(shape: Decode, options: Options) -> list[dict]:
    task, policy = lengths.fixed(shape.tokens), lengths.network(shape.size)
    params = jax.jit(policy.init)(jax.random.key(0))
    drawn = draw_problems(task, jax.random.key(1), shape.rows)

    def decode(params, drawn):
        return sample(policy, params, task, *drawn, samples=1, sampling=Sampling())[0].tokens

    program, temporary = compiled(decode, params, drawn)
    ways = [Way(OWN, program, temporary=temporary)]
    if options.peers:
        from peers.generation import generators

        ways += generators(shape, np.asarray(drawn[0].prompt))
    tokens = shape.rows * shape.tokens
    size = 2 * lengths.matrix_parameters(params) * tokens
    work = Work(size, "GFLOP/s", *multiplying(1024, 1024, 1024, "float32"))
    said = f"B={shape.rows} {lengths.PROMPT}+{shape.tokens} tokens, {shape.size} parameters"
    rows = compare({"op": "decode", "shape": said, "dtype": "float32"}, ways, options.repeats, work)
    return [_with_rate(row, tokens) for row in rows]


def _with_rate(row: dict, tokens: int) -> dict:
    return row if "median" not in row else row | {"per_second": round(tokens / row["median"])}


def _engine_rows(name: str, shape: Engines, repeats: int) -> tuple[list[dict], tuple]:
    """Rows of both engines, and the episodes' lengths and shares of useful lane-steps."""
    task, policy = shape.make()
    params = jax.jit(policy.init)(jax.random.key(0))
    drawn = draw_problems(task, jax.random.key(1), shape.lanes * shape.each // shape.samples)

    def run(params, drawn, layout: Layout) -> tuple[Array, Array, Price]:
        where = {"sampling": Sampling(legal=shape.legal), "layout": layout}
        rollout, price = sample(policy, params, task, *drawn, samples=shape.samples, **where)
        return rollout.length, rollout.tokens, price

    def padded(params, drawn):
        batches = jax.tree.map(lambda a: a.reshape(shape.each, -1, *a.shape[1:]), drawn)
        return jax.lax.map(lambda batch: run(params, batch, Layout()), batches)

    def refilled(params, drawn):
        return run(params, drawn, Layout(shape.lanes))

    engines = {f.__name__: compiled(f, params, drawn) for f in (refilled, padded)}
    counted = {name: jax.device_get(program()) for name, (program, _) in engines.items()}
    length = np.ravel(counted["refilled"][0])
    assert np.array_equal(length, np.ravel(counted["padded"][0]))
    ways = [Way(name, *engine[:1], temporary=engine[1]) for name, engine in engines.items()]
    what = {"op": "sample", "shape": f"{name}, {shape.lanes} lanes", "dtype": "float32"}
    rows, busy = compare(what, ways, repeats, own="refilled"), {}
    for row in rows:
        price = counted[row["implementation"]][2]
        steps, idle = np.sum(price.lane_steps), np.sum(price.idle_lane_steps)
        busy[row["implementation"]] = float(1 - idle / steps)
        row["occupancy"] = round(float(1 - idle / steps), 3)
        row["per_second"] = round(float((steps - idle) / row["median"]))
    return rows, (length, busy)


def _draw(busy: dict, path: Path) -> None:
    """Lengths of the episodes, and what share of the lane-steps wrote a token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(busy), 3), layout="constrained")
    panels = np.ravel(figure.subplots(1, len(busy)))
    for axes, (name, (length, shares)) in zip(panels, busy.items(), strict=True):
        axes.hist(length, bins=24, color="0.75")
        said = ", ".join(f"{engine} {share:.2f}" for engine, share in shares.items())
        axes.set_title(f"{name}\nuseful lane-steps: {said}", fontsize=9)
        axes.set_xlabel("tokens of an episode")
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
