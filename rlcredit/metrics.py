"""The metrics of a run: their record, its view in TensorBoard, and what the terminal shows.

`metrics.jsonl` is the record, one JSON object a line. The event file is a view of it that is made
anew when a run resumes, so that no reader ever sees two values for one step.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import jax
import rich.progress
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from rlcredit.types import InputError

RECORD = "metrics.jsonl"
SECONDS_BETWEEN_LINES = 5

Update = Callable[[int, dict[str, float]], None]


class MetricWriter:
    """Writes scalars to `metrics.jsonl` and to an event file, each line at once.

    Opened on a folder with a record, it keeps the rows up to `resume_step` (-1 keeps none), drops
    the later ones, and writes the event file anew from those kept. Process 0 alone writes; on any
    other every method does nothing.

    Raises: InputError from every method where the record cannot be written; it names the file.
    """

    def __init__(self, folder: Path, resume_step: int) -> None:
        self._path = folder / RECORD
        self._writes = jax.process_index() == 0
        if not self._writes:
            return
        rows = [row for row in read_rows(folder) if row["step"] <= resume_step]
        with _write_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            _rewrite(self._path, rows)
            for view in folder.glob("events.out.tfevents.*"):
                view.unlink()
            self._record = self._path.open("a")
            # Not SummaryWriter: its thread dies on a full disk, and the run then waits for it.
            self._events = EventsWriter(str(folder / "events"))
            for row in rows:
                self._events.write_event(_event(row))
            self._events.flush()

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Appends one row; numbers that are not finite are kept as "nan", "inf" and "-inf"."""
        if not self._writes:
            return
        numbers = {name: float(value) for name, value in scalars.items()}
        row = {"step": int(step), "time": time.time(), **numbers}
        with _write_errors(self._path):
            self._record.write(_line(row))
            self._record.flush()
            self._events.write_event(_event(row))
            self._events.flush()

    def close(self) -> None:
        """Closes both files."""
        if not self._writes:
            return
        with _write_errors(self._path):
            try:
                self._record.close()
            finally:
                self._events.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_rows(folder: Path) -> list[dict]:
    """The rows of `metrics.jsonl` in order, all values as numbers; none where there is no file.

    A last line that a killed process left half-written is left out.
    Raises: InputError where any other line is not a row.
    """
    path = folder / RECORD
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({name: float(v) if isinstance(v, str) else v for name, v in row.items()})
        except (ValueError, AttributeError) as error:
            if number < len(lines):
                raise InputError(f"{path}, line {number}, is not a row of metrics") from error
    return rows


@contextlib.contextmanager
def progress(total: int, initial: int, description: str) -> Iterator[Update]:
    """Shows how far a run is; yields `update(step, scalars)`, `step` being the steps done.

    A bar on a terminal, else plain lines: the first, the last, and one for each tenth of the run
    or every five seconds. `reward`, `pass@1` and `time/tokens_per_second` are shown where given.

    Args:
      total: steps of the whole run. initial: steps done before this process started.
    """
    if jax.process_index() != 0:
        yield lambda step, scalars: None
    elif sys.stdout.isatty():
        with _bar() as bar:
            task = bar.add_task(description, total=total, completed=initial, numbers="")
            yield lambda step, scalars: bar.update(task, completed=step, numbers=_numbers(scalars))
    else:
        yield _plain(max(total, 1), initial, description)


def _bar() -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[numbers]}", markup=False),
        rich.progress.TimeRemainingColumn(),
    )


def _plain(total: int, initial: int, description: str) -> Update:
    started = time.monotonic()
    shown_at, shown_tenth = -math.inf, initial * 10 // total

    def update(step: int, scalars: dict[str, float]) -> None:
        nonlocal shown_at, shown_tenth
        now, tenth = time.monotonic(), step * 10 // total
        if now - shown_at < SECONDS_BETWEEN_LINES and tenth == shown_tenth:
            return
        shown_at, shown_tenth = now, tenth
        parts = [f"{description} {step}/{total}", _numbers(scalars)]
        if step > initial:
            parts.append(f"{_clock((now - started) / (step - initial) * (total - step))} left")
        print(" ".join(part for part in parts if part), flush=True)

    return update


def _numbers(scalars: dict[str, float]) -> str:
    parts = [f"{name} {scalars[name]:.3f}" for name in ("reward", "pass@1") if name in scalars]
    if "time/tokens_per_second" in scalars:
        parts.append(f"{scalars['time/tokens_per_second']:.0f} tokens/s")
    return " ".join(parts)


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def _line(row: dict) -> str:
    """JSON has no nan and no infinity; a strict reader must be able to read every line."""
    valid = {name: v if math.isfinite(v) else str(v) for name, v in row.items()}
    return json.dumps(valid, allow_nan=False) + "\n"


def _event(row: dict) -> Event:
    values = [
        Summary.Value(tag=name, simple_value=value)
        for name, value in row.items()
        if name not in ("step", "time")
    ]
    return Event(step=row["step"], wall_time=row["time"], summary=Summary(value=values))


def _rewrite(path: Path, rows: list[dict]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(_line(row) for row in rows))
    os.replace(temporary, path)


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
