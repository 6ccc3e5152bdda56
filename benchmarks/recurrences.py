"""Recursions backwards in time, beside what others offer.

    python benchmarks/recurrences.py --peers --json benchmarks/results/recurrences.json
    python benchmarks/recurrences.py --shapes 1024x4096

Generalised advantage estimation with its returns, in both layouts, time first and rows first, where
an episode ends at one token in a hundred and the next one follows; and y[t] = x[t] + decay[t] *
y[t + 1]. Who gives no returns adds the value afterwards. The work is counted in bytes: reward,
value and ends are read, advantage and returns written, 17 an element (12 for the plain recursion,
16 for its two gradients); the ceiling is a program that reads and writes the same arrays and does
next to nothing with them.
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
import numpy as np
import tyro
from contest import OWN, Way, Work, chosen, compare, compiled, distance
from jax import lax
from timing import Program, report

from rlcredit.kernels.gae import gae, gae_time_major
from rlcredit.kernels.recurrence import reverse_affine
from rlcredit.types import Array, InputError

DISCOUNT, LAMBDA = 0.99, 0.95
EPISODE = 100  # tokens, on average


class Shape(NamedTuple):
    """T tokens of B rows."""

    length: int
    rows: int


PRESETS = {
    "cpu": ("128x8192", "128x32768", "1024x4096", "4096x1024"),
    "accelerator": ("64x8192", "1024x16384", "128x131072"),
}
SHAPES = {name: Shape(*map(int, name.split("x"))) for name in ("16x32", *sum(PRESETS.values(), ()))}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    preset: Literal["cpu", "accelerator"] = "cpu"
    shapes: tuple[str, ...] = ()  # by name, instead of the preset's
    json: Path | None = None
    peers: bool = False
    repeats: int = 7


class Case(NamedTuple):
    """Inputs with the time on `axis`; every token is chosen and every end terminates."""

    reward: Array
    value: Array
    ends: Array  # bool
    final: Array  # of each row
    axis: int


def main(options: Options) -> None:
    rows = []
    for shape in chosen(options.shapes, PRESETS[options.preset], SHAPES).values():
        for layout in ("[T, B]", "[B, T]"):
            rows += _gae_rows(shape, layout, options)
        rows += _affine_rows(shape, options)
    report(rows, options.json)


def own_gae(axis: int, reward: Array, value: Array, ends: Array, final: Array):
    """This project's (advantage, returns)."""
    form = gae_time_major if axis == 0 else gae
    mask, how = jnp.ones(reward.shape, bool), {"discount": DISCOUNT, "lambda_": LAMBDA}
    return form(reward, value, mask, final, **how, ends=ends)


def by_associative_scan(axis: int, reward: Array, value: Array, ends: Array, final: Array):
    """The same by `jax.lax.associative_scan`, as it is usually written."""
    goes_on = DISCOUNT * (1.0 - ends)
    following = jnp.concatenate(
        [lax.slice_in_dim(value, 1, None, axis=axis), jnp.expand_dims(final, axis)], axis=axis
    )
    delta = reward + goes_on * following - value
    _, advantage = lax.associative_scan(
        _compose, (LAMBDA * goes_on, delta), reverse=True, axis=axis
    )
    return advantage, advantage + value


def _compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]


def jax_way(name: str, function: Callable, arguments: tuple, truth: tuple, *packages: str) -> Way:
    """A way in JAX."""
    program, temporary = compiled(function, *arguments)
    check = functools.partial(distance, truth=truth)
    return Way(name, program, ("jax", "jaxlib", *packages), temporary, check)


def _gae_rows(shape: Shape, layout: str, options: Options) -> list[dict]:
    case = _make(shape, axis=0 if layout == "[T, B]" else 1)
    arrays, truth = case[:4], _truth(case)
    ways = [
        jax_way(name, functools.partial(function, case.axis), arrays, truth)
        for name, function in ((OWN, own_gae), ("jax associative_scan", by_associative_scan))
    ]
    if options.peers:
        from peers.recurrences import estimators

        ways += estimators(case, truth, DISCOUNT, LAMBDA)
    stream, _ = compiled(_stream, *case[:3])
    work = _work(17 * case.reward.size, stream)
    return compare(_what(f"gae {layout}", shape, "forward"), ways, options.repeats, work)


def _affine_rows(shape: Shape, options: Options) -> list[dict]:
    """Both modes of the plain recursion on rows; the gradient is that of the sum of squares."""
    case = _make(shape, axis=1)
    x, decay = case.reward, jnp.where(case.ends, 0, DISCOUNT)
    rows = []
    for mode, prepare, size in (("forward", lambda f: f, 12), ("forward+backward", _backward, 16)):
        truth = _affine_truth(x, decay, mode)
        ways = [
            jax_way(name, prepare(function), (x, decay), truth)
            for name, function in ((OWN, _own_affine), ("jax associative_scan", _affine))
        ]
        stream, _ = compiled(jnp.add if mode == "forward" else _stream, x, decay)
        work = _work(size * x.size, stream)
        rows += compare(_what("reverse_affine [B, T]", shape, mode), ways, options.repeats, work)
    return rows


def _own_affine(x: Array, decay: Array) -> Array:
    return reverse_affine(x, decay)


def _affine(x: Array, decay: Array) -> Array:
    return lax.associative_scan(_compose, (decay, x), reverse=True, axis=1)[1]


def _backward(function: Callable) -> Callable:
    return jax.grad(lambda x, decay: 0.5 * jnp.sum(function(x, decay) ** 2), argnums=(0, 1))


def _stream(*arrays: Array) -> tuple[Array, Array]:
    """Two results as large as the inputs, in one pass over all of them."""
    total = sum(a.astype(jnp.float32) for a in arrays)
    return total, -total


def _work(size: int, ceiling: Program) -> Work:
    return Work(size, "GB/s", ceiling, size)


def _what(op: str, shape: Shape, mode: str) -> dict[str, str]:
    said = f"T={shape.length} B={shape.rows}"
    return {"op": op, "shape": said, "dtype": "float32", "mode": mode}


def _make(shape: Shape, axis: int) -> Case:
    rng = np.random.default_rng(0)
    reward, value = rng.standard_normal((2, *shape), np.float32)
    ends = rng.random(shape) < 1 / EPISODE
    final = rng.standard_normal(shape.rows, np.float32)
    turned = (np.ascontiguousarray(np.moveaxis(a, 0, axis)) for a in (reward, value, ends))
    return Case(*(jnp.asarray(a) for a in (*turned, final)), axis)


def _truth(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The definition, in float64."""
    turned = (np.moveaxis(np.asarray(a), case.axis, 0) for a in case[:3])
    reward, value, ends = (a.astype(np.float64) for a in turned)
    advantage = np.zeros_like(value)
    following, running = np.asarray(case.final, np.float64), 0.0
    for t in reversed(range(len(value))):
        delta = reward[t] + DISCOUNT * (1 - ends[t]) * following - value[t]
        running = delta + DISCOUNT * LAMBDA * (1 - ends[t]) * running
        advantage[t], following = running, value[t]
    return tuple(np.moveaxis(a, 0, case.axis) for a in (advantage, advantage + value))


def _affine_truth(x: Array, decay: Array, mode: str) -> tuple[np.ndarray, ...]:
    """y, or with g[t] = y[t] + decay[t - 1] * g[t - 1] the gradients g[t] and g[t] * y[t + 1]."""
    x, decay = (np.asarray(a, np.float64).T for a in (x, decay))
    y = np.zeros((len(x) + 1, x.shape[1]))
    for t in reversed(range(len(x))):
        y[t] = x[t] + decay[t] * y[t + 1]
    if mode == "forward":
        return (y[:-1].T,)
    g = np.zeros_like(x)
    for t in range(len(x)):
        g[t] = y[t] + (decay[t - 1] * g[t - 1] if t else 0)
    return g.T, (g * y[1:]).T


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
