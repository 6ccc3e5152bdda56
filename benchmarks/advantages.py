"""What each credit rule costs by itself, beside `grpo`, once its evidence is there.

    python benchmarks/advantages.py --json benchmarks/results/advantages.json
    python benchmarks/advantages.py --rules gae tempo my_module:my_rule --peers

One jitted call on 256 problems of 8 samples and 512 tokens, of random rollouts and evidence, and
one of `grpo` after it, turn by turn; `over_grpo` is the median of the paired ratios. The work is
counted in bytes, the arguments that are used and the results, once each. The peer is rlax, beside
`gae` alone and without a mask, which it does not know. What evidence costs is no part of it: that
is counted in tokens, in the credit report.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from contest import CEILING, OWN, Way, Work, absent, absent_row, chosen, compiled, copying, rows_of
from timing import interleaved, ratio, report

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.metrics import progress
from rlcredit.testing.grafts import graft
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError, Rollout

BASELINE = "grpo"
SHARED = 64  # tokens that the samples of a problem have in common
PRESETS = {"cpu": ("256x8x512",), "accelerator": ("2048x8x1024",)}
SHAPES = {  # problems, samples, tokens
    name: tuple(map(int, name.split("x"))) for name in ("4x4x16", *sum(PRESETS.values(), ()))
}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    rules: tuple[str, ...] = tuple(ADVANTAGES)  # or module:function
    preset: Literal["cpu", "accelerator"] = "cpu"
    shapes: tuple[str, ...] = ()  # by name, instead of the preset's
    json: Path | None = None
    peers: bool = False
    repeats: int = 10


def main(options: Options) -> None:
    rows = []
    for name, sizes in chosen(options.shapes, PRESETS[options.preset], SHAPES).items():
        rng = np.random.default_rng(0)
        rollout = graft(rng, random_rollout(rng, *sizes))
        baseline, _ = _compiled(BASELINE, rollout, rng)
        copy = copying(rollout.tokens.size)
        with progress(len(options.rules), 0, name) as show:
            for number, rule in enumerate(options.rules):
                what = {"op": rule, "shape": "N={} K={} T={}".format(*sizes), "dtype": "float32"}
                what["mode"] = "forward"
                rows += _rows(what, rollout, rng, baseline, copy, options)
                show(number + 1, {})
    report(sorted(rows, key=lambda each: each.get("over_grpo", np.inf)), options.json)


def _rows(what, rollout: Rollout, rng: np.random.Generator, baseline, copy, options) -> list[dict]:
    own, moved = _compiled(what["op"], rollout, rng)
    peers = [_rlax(rollout)] if options.peers and what["op"] == "gae" else []
    there = {(way.name, None): way for way in (own, *peers) if way.program is not None}
    programs = {key: way.program for key, way in there.items()}
    programs |= {BASELINE: baseline.program, CEILING: copy[0]}
    seconds = interleaved(programs, options.repeats)
    rows = rows_of(what, there, seconds, {}, Work(moved, "GB/s", *copy), OWN)
    rows[0]["over_grpo"] = ratio(seconds[OWN, None], seconds[BASELINE])
    return rows + [absent_row(what, way) for way in peers if way.program is None]


def _compiled(name: str, rollout: Rollout, rng: np.random.Generator) -> tuple[Way, int]:
    """One rule on the rollout, and the bytes of its arguments and results."""
    function = credit.resolve(name, ADVANTAGES, "advantage")
    asked = credit.signature(function)[0]
    rule = credit.bind(name, {name: function}, "advantage", providers=dict.fromkeys(asked))
    names = {"node": 0, "edge": 1}
    measured = evidence_for(rng, rollout, [n for n in asked if n not in names])
    measured |= {n: _prefix_names(rollout, names[n]) for n in asked if n in names}
    arguments = jax.device_put((rollout, measured))

    def assign(*given):
        return credit.assign(rule, *given)

    program, temporary = compiled(assign, *arguments)
    return Way(OWN, program, temporary=temporary), _moved(assign, arguments)


def _moved(function: Callable, arguments: tuple) -> int:
    """Bytes of the results, and of those arguments that something is made of."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    read = [variable for variable in jaxpr.invars if id(variable) in used]
    arrays = [variable.aval for variable in (*read, *jaxpr.outvars)]
    return sum(array.size * array.dtype.itemsize for array in arrays)


def _rlax(rollout: Rollout) -> Way:
    """GAE over all tokens of each row."""
    if gone := absent("rlax", ("rlax",)):
        return gone
    import rlax

    estimate = jax.vmap(rlax.truncated_generalized_advantage_estimation, (0, 0, None, 0))
    reward = rollout.reward.reshape(-1, rollout.reward.shape[-1])
    value = jnp.zeros((reward.shape[0], reward.shape[1] + 1))
    goes_on = jnp.ones_like(reward)
    program, temporary = compiled(lambda r, d, v: estimate(r, d, 0.95, v), reward, goes_on, value)
    return Way("rlax", program, ("jax", "jaxlib", "rlax"), temporary)


def _prefix_names(rollout: Rollout, ahead: int) -> np.ndarray:
    """Names of prefixes that the samples share up to some token, as `node` and `edge` give them."""
    samples, length = rollout.mask.shape[1:]
    position = np.arange(length) + ahead
    first = np.where(position < SHARED, 0, np.arange(samples)[:, None])
    names = first * (length + 1) + position
    return np.where(rollout.mask, names[None], -1).astype(np.int32)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
