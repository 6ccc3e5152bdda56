"""One stage of a run: the host's loop around a jitted step.

A stage has a folder of its own with its metrics and checkpoints. Started again, it goes on from the
last complete checkpoint, and ends with the numbers of an unbroken run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rlcredit import checkpoint
from rlcredit.metrics import MetricWriter, progress, read_rows
from rlcredit.run import Stopped
from rlcredit.types import Array, InputError, TrainState

Step = Callable[[TrainState], tuple[TrainState, dict[str, Array]]]
Evaluate = Callable[[TrainState], dict[str, float]]

MAX_SKIPPED_UPDATES = 10


class Stage(NamedTuple):
    """How long a stage runs and how often it does what."""

    name: str
    folder: Path
    steps: int
    evaluate_every: int = 50
    checkpoint_every: int = 50
    log_every: int = 1


def run_stage(
    stage: Stage,
    step: Step,
    state: TrainState,
    stop_requested: Callable[[], bool],
    evaluate: Evaluate | None = None,
) -> TrainState:
    """Step until `state.step` is `stage.steps`, from the last checkpoint where there is one.

    The metrics of a logged step are fetched at once. A row holds what the step returned, `eval/*`
    where it was evaluated, and `time/seconds` (of the whole stage so far, restarts included) and
    `time/tokens_per_second`, the rate of the steps' metric `tokens` since the last row.

    Raises: Stopped after saving, where asked to. InputError after `MAX_SKIPPED_UPDATES` updates in
      a row that were not finite, or where the folder cannot be used.
    """
    checkpoints = stage.folder / "checkpoints"
    restored = checkpoint.restore_latest(checkpoints, state)
    first, state = restored or (0, state)
    if restored:
        print(f"{stage.name}: goes on from step {first} of {stage.steps}")
    with (
        MetricWriter(stage.folder, first if restored else -1) as writer,
        progress(stage.steps, first, stage.name) as show,
    ):
        clock = _Clock(read_rows(stage.folder))
        tokens, evaluated = 0, {}
        for number in range(first + 1, stage.steps + 1):
            state, metrics = step(state)
            tokens += metrics["tokens"]
            if number % stage.log_every == 0 or number == stage.steps:
                row = _row(metrics, tokens, clock)
                tokens = 0
                if evaluate and number % stage.evaluate_every == 0:
                    evaluated = evaluate(state)
                    row |= {f"eval/{name}": value for name, value in evaluated.items()}
                writer.write(number, row)
                show(number, evaluated | row)
                _refuse_divergence(stage, number, row)
            stopping = stop_requested()
            if stopping or number == stage.steps or number % stage.checkpoint_every == 0:
                checkpoint.save(checkpoints, number, state)
            if stopping and number < stage.steps:
                raise Stopped(f"{stage.name}: stopped and saved at step {number}")
    return state


def timings(stages: dict[str, Stage]) -> dict[str, dict[str, float]]:
    """{"seconds": ..., "tokens_per_second": ...} of each stage: its total, and its median rate."""
    rows = {name: read_rows(stage.folder) for name, stage in stages.items()}
    return {
        "seconds": {name: own[-1]["time/seconds"] for name, own in rows.items() if own},
        "tokens_per_second": {
            name: float(np.median([row["time/tokens_per_second"] for row in own]))
            for name, own in rows.items()
            if own
        },
    }


class _Clock:
    """Seconds that a stage has taken, carried over from the rows of earlier processes."""

    def __init__(self, rows: list[dict]) -> None:
        self.total = rows[-1]["time/seconds"] if rows else 0.0
        self.last = time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        seconds, self.last = now - self.last, now
        self.total += seconds
        return seconds


def _row(metrics: dict[str, Array], tokens: Array, clock: _Clock) -> dict[str, float]:
    fetched, tokens = jax.device_get((metrics, tokens))
    rate = float(tokens) / clock.lap()
    row = {name: float(value) for name, value in fetched.items()}
    return row | {"time/seconds": clock.total, "time/tokens_per_second": rate}


def _refuse_divergence(stage: Stage, number: int, row: dict[str, float]) -> None:
    skipped = row["skipped_updates"]
    if skipped >= MAX_SKIPPED_UPDATES:
        raise InputError(
            f"{stage.name}: the last {skipped:.0f} updates up to step {number} were not finite and "
            "were left out; lower the learning rate, or look at the reward and the advantage"
        )
