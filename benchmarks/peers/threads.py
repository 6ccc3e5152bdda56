"""Programs of torch: with one and with two threads, since two are not always faster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from contest import Way
from timing import Program

THREADS = (1, 2)


def torch_ways(
    name: str,
    program: Program,
    packages: tuple[str, ...],
    check: Callable[[Any], float] | None = None,
) -> list[Way]:
    """The same program with each number of threads; `contest.compare` keeps the faster one."""
    packages = ("torch", *packages)
    return [
        Way(name, functools.partial(_run, program, count), packages, check=check, threads=count)
        for count in THREADS
    ]


def _run(program: Program, count: int) -> Any:
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    return program()
