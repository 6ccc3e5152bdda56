"""Timing of programs against each other in one process: interleaved, and compared pair by pair."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

Program = Callable[[], Any]  # runs once and returns arrays
HIDDEN = ("versions", "device")  # written, and not printed
PAUSE = 0.01  # seconds between runs; idle threads of torch spin for a while


def interleaved(programs: dict[Any, Program], repeats: int) -> dict[Any, np.ndarray]:
    """Seconds [repeats] of each program, run A B A B ... after one run each to compile and warm."""
    for program in programs.values():
        jax.block_until_ready(program())
    seconds = {name: np.zeros(repeats) for name in programs}
    for repeat in range(repeats):
        for name, program in programs.items():
            time.sleep(PAUSE)
            seconds[name][repeat] = clocked(program)
    return seconds


def clocked(program: Program) -> float:
    """Seconds of one run, results included."""
    start = time.perf_counter()
    jax.block_until_ready(program())
    return time.perf_counter() - start


def row(op: str, shape: str, implementation: str, seconds: np.ndarray, **more: Any) -> dict:
    """One line of a benchmark: what ran, its quantiles in seconds, and what follows from them."""
    p20, median, p80 = np.quantile(seconds, (0.2, 0.5, 0.8))
    times = {"median": median, "p20": p20, "p80": p80}
    times = {name: round(float(value), 6) for name, value in times.items()}
    return {"op": op, "shape": shape, "implementation": implementation, **times} | {
        "n": seconds.size,
        **more,
    }


def ratio(slower: np.ndarray, faster: np.ndarray) -> float:
    """Median of the paired ratios: how many times as long the first takes."""
    return round(float(np.median(slower / faster)), 3)


def report(rows: list[dict], path: Path | None) -> None:
    """Print the rows as a table; with `path` also write them, and where they ran, as JSON."""
    columns = [c for c in dict.fromkeys(name for row in rows for name in row) if c not in HIDDEN]
    table = Table()
    for name in columns:
        table.add_column(name, justify="left" if isinstance(rows[0].get(name), str) else "right")
    for each in rows:
        table.add_row(*(_shown(each.get(name, "")) for name in columns))
    Console(width=None if Console().is_terminal else 200).print(table)
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
        print(path)


def machine() -> dict[str, str]:
    """Where it ran."""
    packages = {name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    return {
        "processor": _processor(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        **packages,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
