"""Implementations of one operation side by side: their rows, and the ceiling they run under.

What an operation must do is counted by hand, in bytes or floating-point operations, and set against
a copy or a matrix product that runs in turn with it: neither of them is the same twice on a machine
that others use. A program that is given no place for its results would be timed with the page
faults of new memory, so each writes over the results of its last run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import Program, interleaved, ratio, row

from rlcredit.types import InputError, PyTree

OWN, CEILING = "rlcredit", "ceiling"


class Way(NamedTuple):
    """One implementation; without a program it says what is missing."""

    name: str
    program: Program | None
    packages: tuple[str, ...] = ("jax", "jaxlib")
    temporary: int | None = None  # bytes beside arguments and results
    check: Callable[[Any], float] | None = None  # results -> error against float64
    threads: int | None = None  # of those with the same name the fastest is kept
    missing: str | None = None


class Work(NamedTuple):
    """What one run must do at least, and a program that does nothing else."""

    amount: float
    unit: Literal["GB/s", "GFLOP/s"]
    ceiling: Program
    ceiling_amount: float


def compare(
    what: dict[str, str],
    ways: Iterable[Way],
    repeats: int,
    work: Work | None = None,
    own: str = OWN,
) -> list[dict]:
    """A row of each way, all timed in turn; `ratio` is its time over that of the way `own`.

    Args: what: op, shape, dtype and mode.
    """
    ways = list(ways)
    there = {(way.name, way.threads): way for way in ways if way.program is not None}
    errors = {key: way.check(way.program()) for key, way in there.items() if way.check}
    programs = {} if work is None else {CEILING: work.ceiling}
    programs |= {key: way.program for key, way in there.items()}
    seconds = interleaved(programs, repeats)
    rows = rows_of(what, there, seconds, errors, work, own)
    return rows + [absent_row(what, way) for way in ways if way.program is None]


def rows_of(
    what: dict[str, str],
    there: dict[tuple, Way],
    seconds: dict[Any, np.ndarray],
    errors: dict[tuple, float],
    work: Work | None,
    own: str,
) -> list[dict]:
    """The rows of what was timed in turn; `there` and `errors` by name and number of threads."""
    measured = next(seconds[key] for key in there if key[0] == own)
    rows = []
    for key in _fastest(there, seconds):
        more = {} if work is None else _rate(work, seconds[key], seconds[CEILING])
        if there[key].temporary is not None:
            more["temporary"] = there[key].temporary
        if key[0] != own:
            more["ratio"] = ratio(seconds[key], measured)
        if key in errors:
            more["error"] = float(f"{errors[key]:.3g}")
        rows.append(_row(what, there[key], seconds[key], more))
    return rows


def absent(name: str, packages: tuple[str, ...], missing: str | None = None) -> Way | None:
    """The way that says which package is missing, or what else is; None where nothing is."""
    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            return Way(name, None, packages, missing=f"{package} is not installed")
    return None if missing is None else Way(name, None, packages, missing=missing)


def compiled(function: Callable, *arguments: PyTree) -> tuple[Program, int]:
    """(a program that writes over its last results, bytes of its temporaries)."""
    shapes = jax.eval_shape(function, *arguments)
    last = [jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)]
    into = jax.jit(lambda last, *given: function(*given), donate_argnums=0, keep_unused=True)
    program = into.lower(last[0], *arguments).compile()

    def run() -> PyTree:
        last[0] = program(last[0], *arguments)
        return last[0]

    return run, program.memory_analysis().temp_size_in_bytes


def copying(size: int) -> tuple[Program, float]:
    """(a copy of `size` float32, the bytes that it moves)."""
    return compiled(lambda x: x + 1, jnp.zeros(size, jnp.float32))[0], 8.0 * size


def multiplying(rows: int, inner: int, columns: int, dtype: str) -> tuple[Program, float]:
    """(a matrix product, its floating-point operations)."""
    left, right = jnp.ones((rows, inner), dtype), jnp.ones((inner, columns), dtype)
    product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
    return compiled(product, left, right)[0], 2.0 * rows * inner * columns


def distance(results: PyTree, truth: Iterable[np.ndarray]) -> float:
    """The largest relative L2 distance of an array to what it should be."""
    pairs = zip(jax.tree.leaves(results), truth, strict=True)
    arrays = ((np.asarray(a, np.float64), np.asarray(b)) for a, b in pairs)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in arrays)


def chosen(names: tuple[str, ...], preset: tuple[str, ...], shapes: dict[str, Any]) -> dict:
    """The shapes that were named, or those of the preset.

    Raises: InputError naming the one that is not there.
    """
    for name in names:
        if name not in shapes:
            raise InputError(f"no shape {name!r}; there are {', '.join(shapes)}")
    return {name: shapes[name] for name in names or preset}


def value_row(what: dict[str, str], implementation: str, value: float, unit: str) -> dict:
    """A row of something that is counted and not timed."""
    return {**what, "implementation": implementation, "value": value, "unit": unit} | stamp(
        ("jax", "jaxlib")
    )


def absent_row(what: dict[str, str], way: Way) -> dict:
    """The row of a way that could not be measured."""
    return {**what, "implementation": way.name, "not_measured": way.missing} | stamp(())


def stamp(packages: tuple[str, ...]) -> dict:
    """The device that a row was measured on, and the versions of its packages."""
    device = jax.devices()[0].device_kind if "jax" in packages else "cpu"
    return {"device": device, "versions": {name: version(name) for name in packages}}


def _fastest(there: dict, seconds: dict) -> list:
    """Of each name the key with the least median, in the order of the names."""
    best = {}
    for key in there:
        held = best.get(key[0])
        if held is None or np.median(seconds[key]) < np.median(seconds[held]):
            best[key[0]] = key
    return list(best.values())


def _rate(work: Work, seconds: np.ndarray, ceiling: np.ndarray) -> dict:
    share = np.median(work.amount / seconds * ceiling / work.ceiling_amount)
    rate = work.amount / float(np.median(seconds)) / 1e9
    return {"rate": float(f"{rate:.4g}"), "unit": work.unit, "of_ceiling": round(float(share), 3)}


def _row(what: dict[str, str], way: Way, seconds: np.ndarray, more: dict) -> dict:
    if way.threads is not None:
        more = {"threads": way.threads, **more}
    timed = row(what["op"], what["shape"], way.name, seconds, **more)
    return {**what, **timed, **stamp(way.packages)}
