"""Sampling with refilled lanes against padded batches, and steps per second of the environments.

    python benchmarks/rollout.py                      # a table
    python benchmarks/rollout.py --json rollout.json --figure docs/occupancy.png
    python benchmarks/rollout.py --peers              # needs the extra `peers`: jumanji

The padded engine takes as many episodes at a time as the refilled one has lanes, and waits for the
longest of them. Both sample the same episodes, eight a lane, with a new network that chooses among
the legal moves at random, which is how long the walks of an untrained policy are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from timing import Program, interleaved, ratio, report, row

from rlcredit.policy import Architecture, transformer
from rlcredit.rollout import draw_problems, sample
from rlcredit.tasks import TASKS
from rlcredit.types import Array, InputError, Layout, Price, Rollout, Sampling, Task

EPISODES_A_LANE, SAMPLES = 8, 8
# How far apart the lengths are: walks of at most 16 moves, and of at most 64.
SPREADS = {"maze 4x4, 16 moves": {"size": 4}, "maze 4x4, 64 moves": {"size": 4, "limit": 64}}
STEPPED = {"maze": {"size": 10, "limit": 100}, "bifurcation": {}, "repair": {}, "arithmetic": {}}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    json: Path | None = None
    figure: Path | None = None  # writes the occupancy figure here
    peers: bool = False  # also step jumanji's Maze
    repeats: int = 7


SIZES = {  # lanes, width, layers; environments and their steps
    "cpu": ((64, 64, 3), (1024, 200)),
    "accelerator": ((1024, 256, 4), (16384, 200)),
}


def main(options: Options) -> None:
    (lanes, width, layers), stepping = SIZES[options.preset]
    rows, busy = [], {}
    for name, dials in SPREADS.items():
        task = TASKS["maze"](**dials)
        more, busy[name] = _engines(name, task, lanes, width, layers, options.repeats)
        rows += more
    rows += _environments(*stepping, options)
    report(rows, options.json)
    if options.figure is not None:
        _draw(busy, options.figure)


def _engines(name: str, task: Task, lanes: int, width: int, layers: int, repeats: int):
    """Rows of both engines, and the episodes' lengths and shares of useful lane-steps."""
    policy = transformer(Architecture(len(task.vocabulary), width, layers))
    params = jax.jit(policy.init)(jax.random.key(0))
    count = lanes * EPISODES_A_LANE // SAMPLES
    drawn = draw_problems(task, jax.random.key(1), count)

    def run(params, drawn, layout) -> tuple[Rollout, Price]:
        where = {"samples": SAMPLES, "sampling": Sampling(legal=True), "layout": layout}
        return sample(policy, params, task, *drawn, **where)

    @jax.jit
    def padded(params, drawn):
        batches = jax.tree.map(lambda a: a.reshape(EPISODES_A_LANE, -1, *a.shape[1:]), drawn)
        return jax.lax.map(lambda batch: run(params, batch, Layout()), batches)

    refilled = jax.jit(lambda params, drawn: run(params, drawn, Layout(lanes)))
    programs: dict[str, Program] = {
        "padded": lambda: padded(params, drawn),
        "refilled": lambda: refilled(params, drawn),
    }
    seconds = interleaved(programs, repeats)
    rows, busy = [], {}
    for engine, program in programs.items():
        rollout, price = jax.device_get(program()[:2])
        assert np.array_equal(np.ravel(rollout.length), np.ravel(programs["padded"]()[0].length))
        steps, idle = np.sum(price.lane_steps), np.sum(price.idle_lane_steps)
        busy[engine] = float(1 - idle / steps)
        rate = (steps - idle) / np.median(seconds[engine])
        against = (
            {} if engine == "padded" else {"x padded": ratio(seconds["padded"], seconds[engine])}
        )
        rows.append(
            row(
                "sample", f"{name}, {lanes} lanes, width {width}", engine, seconds[engine],
                occupancy=round(busy[engine], 3), per_second=round(float(rate)), **against,
            )
        )  # fmt: skip
    return rows, (np.ravel(rollout.length), busy)


def _environments(count: int, steps: int, options: Options) -> list[dict]:
    """Rows of random play, `count` environments side by side."""
    programs = {}
    for name, dials in STEPPED.items():
        task = TASKS[name](**dials)
        programs[f"rlcredit {name}"] = _random_play(task, count, steps)
    if options.peers:
        programs["jumanji Maze-v0"] = _random_jumanji(count, steps)
    seconds = interleaved(programs, options.repeats)
    peer = seconds.get("jumanji Maze-v0")
    rows = []
    for name, own in seconds.items():
        rate = {"per_second": round(count * steps / float(np.median(own)))}
        against = {} if peer is None else {"x jumanji": ratio(peer, own)}
        rows.append(row("step", f"{count} x {steps}", name, own, **rate, **against))
    return rows


def _random_play(task: Task, count: int, steps: int) -> Program:
    """Random legal tokens; an episode that ended starts again with the same problem."""
    problems = jax.jit(jax.vmap(task.draw))(jax.random.split(jax.random.key(0), count))

    def move(problem, state, key):
        choice_key, chance_key = jax.random.split(key)
        token = _any_of(task.legal(problem, state), choice_key)
        after = task.step(problem, state, token, chance_key)
        over = after.terminated | after.truncated
        again = jax.tree.map(
            lambda new, old: jnp.where(over, new, old), task.start(problem), after.state
        )
        return again, after.reward

    return _scanned(move, problems, jax.vmap(task.start)(problems), count, steps)


def _random_jumanji(count: int, steps: int) -> Program:
    """jumanji's 10 x 10 maze stepped in the same way: random moves that its mask allows."""
    try:
        import jumanji
    except ImportError as error:
        raise InputError("--peers needs jumanji: install the extra rlcredit[peers]") from error
    environment = jumanji.make("Maze-v0")
    first, timestep = jax.jit(jax.vmap(environment.reset))(
        jax.random.split(jax.random.key(0), count)
    )

    def move(start, carry, key):
        state, mask = carry
        state, timestep = environment.step(state, _any_of(mask, key))
        after = (state, timestep.observation.action_mask)
        again = jax.tree.map(lambda new, old: jnp.where(timestep.last(), new, old), start, after)
        return again, timestep.reward

    start = (first, timestep.observation.action_mask)
    return _scanned(move, start, start, count, steps)


def _any_of(allowed: Array, key: Array) -> Array:
    """int32 index of one of the True entries, each as likely, from a single random number."""
    number = jnp.cumsum(allowed)
    return jnp.argmax(number > jax.random.uniform(key) * number[-1]).astype(jnp.int32)


def _scanned(move: Callable, fixed, start, count: int, steps: int) -> Program:
    """`move(fixed, state, key) -> (state, reward)` of all environments, `steps` times."""

    @jax.jit
    def play(fixed, state, key):
        def step(state, step_key):
            keys = jax.random.split(step_key, count)
            state, reward = jax.vmap(move)(fixed, state, keys)
            return state, jnp.sum(reward)

        return jax.lax.scan(step, state, jax.random.split(key, steps))

    return lambda: play(fixed, start, jax.random.key(2))


def _draw(busy: dict, path: Path) -> None:
    """Lengths of the episodes, and what share of the lane-steps wrote a token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(busy), 3), layout="constrained")
    for axes, (name, (lengths, shares)) in zip(
        figure.subplots(1, len(busy)), busy.items(), strict=True
    ):
        axes.hist(lengths, bins=24, color="0.75")
        said = ", ".join(f"{engine} {share:.2f}" for engine, share in shares.items())
        axes.set_title(f"{name}\nuseful lane-steps: {said}", fontsize=9)
        axes.set_xlabel("tokens of an episode")
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
