"""Losses from hidden states and from logits, beside what others offer.

    python benchmarks/losses.py --peers --json benchmarks/results/losses.json
    python benchmarks/losses.py --shapes large-512 small-64

The loss is PPO's clipped surrogate with k3 to a reference and an entropy bonus, at temperature 0.7.
Forward gives log_prob and entropy, forward+backward the gradient of hidden states and head, or of
logits. tokamax, optax and liger know no entropy: their loss goes without, and so does the one that
their error is taken against; that of tokamax is large where 2048 does not divide V, since the
logits that it pads with count in its sums. The work of a head is counted as 8 N H V operations
forward and backward, what a form must do that keeps no logits, and 2 N H V forward; that of a loss
from logits as two reads and one write of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import tyro
from contest import OWN, Way, Work, chosen, compare, compiled, copying, distance, multiplying
from objectives import (
    TEMPERATURE,
    Case,
    Shape,
    from_logits,
    in_double,
    make,
    naive,
    objective,
    own,
    truth_of,
    way_of,
    with_gradient,
    without_gradient,
)
from timing import report

from rlcredit.kernels.policy_loss import policy_loss
from rlcredit.kernels.token_log_prob import log_prob_and_entropy
from rlcredit.types import Array, InputError

SHAPES = {
    "large-512": Shape(512, 256, 151_936, peers=True),
    "large-2048": Shape(2048, 256, 151_936, peers=True),
    "large-512-bf16": Shape(512, 256, 151_936, "bfloat16"),
    **{f"small-{v}": Shape(16_384, 128, v) for v in (16, 64, 256, 1024)},
    **{f"logits-{v}": Shape(65_536, None, v) for v in (16, 64, 256)},
    "wide": Shape(8192, 4096, 151_936, "bfloat16", peers=True),
    **{f"narrow-{h}": Shape(32_768, h, 151_936, "bfloat16") for h in (256, 512, 1024)},
    **{f"many-logits-{v}": Shape(2**20, None, v) for v in (16, 64, 256)},
    "tiny": Shape(64, 8, 5000, peers=True),
    "tiny-logits": Shape(64, None, 16),
}
PRESETS = {
    "cpu": tuple(n for n in SHAPES if n.startswith(("large", "small", "logits"))),
    "accelerator": tuple(n for n in SHAPES if n.startswith(("wide", "narrow", "many"))),
}


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
        measure = _logits_rows if shape.hidden is None else _head_rows
        rows += measure(shape, options)
    report(rows, options.json)


def _head_rows(shape: Shape, options: Options) -> list[dict]:
    case, rows = make(shape), []
    size = shape.tokens * shape.hidden * shape.vocabulary
    side = 2048 if size > 2**31 else 1024 if size > 2**24 else 128
    for mode, prepare, count in (
        ("forward", without_gradient, 2),
        ("forward+backward", with_gradient, 8),
    ):
        truth = {full: truth_of(case, mode, full) for full in (True, False)[: 1 + options.peers]}
        ways = [
            way_of(name, prepare(scores), case, truth[True])
            for name, scores in ((OWN, own), ("naive", naive))
        ]
        if options.peers and shape.peers:
            from peers.heads import heads

            ways += heads(case, mode, truth)
        ceiling = multiplying(side, side, side, shape.dtype)
        work = Work(count * size, "GFLOP/s", *ceiling)
        rows += compare(_what("fused head", shape, mode), ways, options.repeats, work)
    return rows


def _logits_rows(shape: Shape, options: Options) -> list[dict]:
    case = make(shape)

    def token_loss(log_prob, entropy, **others):
        return objective(jnp, log_prob, entropy, **others) / shape.tokens

    def fused(logits: Array) -> Array:
        per_token = dict(zip(Case._fields[3:], case[3:], strict=True))
        return policy_loss(token_loss, logits, case.tokens, per_token, temperature=TEMPERATURE)[0]

    def by(scores: Callable) -> Callable:
        return lambda logits: objective(jnp, *scores(logits, case.tokens), *case[3:])

    losses = {
        OWN: fused,
        "log_prob_and_entropy": by(lambda z, t: log_prob_and_entropy(z / TEMPERATURE, t)),
        "naive": by(from_logits),
    }
    ways = []
    truth = (in_double(jax.grad(by(from_logits)))(case.hidden),)
    for name, loss in losses.items():
        program, temporary = compiled(jax.grad(loss), case.hidden)
        check = functools.partial(distance, truth=truth)
        ways.append(Way(name, program, temporary=temporary, check=check))
    work = Work(3 * case.hidden.nbytes, "GB/s", *copying(case.hidden.size))
    what = _what("loss from logits", shape, "forward+backward")
    return compare(what, ways, options.repeats, work)


def _what(op: str, shape: Shape, mode: str) -> dict[str, str]:
    sizes = {"N": shape.tokens, "H": shape.hidden, "V": shape.vocabulary}
    said = " ".join(f"{name}={size}" for name, size in sizes.items() if size is not None)
    return {"op": op, "shape": said, "dtype": shape.dtype, "mode": mode}


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
