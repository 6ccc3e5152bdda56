"""What each credit rule costs by itself, beside `grpo`, once its evidence is there.

    python benchmarks/advantages.py
    python benchmarks/advantages.py --rules gae tempo my_module:my_rule --json rows.json

One jitted call on 256 problems of 8 samples and 512 tokens, of random rollouts and evidence, and
one of `grpo` after it, turn by turn; `over_grpo` is the median of the paired ratios, `temporary`
what the compiler says the program needs beside arguments and results. What evidence costs is no
part of it: that is counted in tokens, in the credit report.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro
from timing import interleaved, ratio, report, row

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.metrics import progress
from rlcredit.testing.grafts import graft
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError, Rollout

BASELINE = "grpo"
SHARED = 64  # tokens that the samples of a problem have in common


@dataclass(frozen=True)
class Options:
    """What to measure."""

    rules: tuple[str, ...] = tuple(ADVANTAGES)  # or module:function
    json: Path | None = None
    problems: int = 256
    samples: int = 8
    tokens: int = 512
    repeats: int = 10


def main(options: Options) -> None:
    sizes = (options.problems, options.samples, options.tokens)
    rng = np.random.default_rng(0)
    rollout = graft(rng, random_rollout(rng, *sizes))
    baseline = _compiled(BASELINE, rollout, rng)[1]
    rows = []
    with progress(len(options.rules), 0, "rules") as show:
        for name in options.rules:
            compiled, program = _compiled(name, rollout, rng)
            seconds = interleaved({"rule": program, "grpo": baseline}, options.repeats)
            more = {
                "over_grpo": ratio(seconds["rule"], seconds["grpo"]),
                "temporary": compiled.memory_analysis().temp_size_in_bytes,
            }
            shape = "N={} K={} T={}".format(*sizes)
            rows.append(row(name, shape, "xla", seconds["rule"], **more))
            show(len(rows), {})
    report(sorted(rows, key=lambda each: each["over_grpo"]), options.json)


def _compiled(name: str, rollout: Rollout, rng: np.random.Generator):
    """(compiled program, a call of it) of one rule on the rollout."""
    function = credit.resolve(name, ADVANTAGES, "advantage")
    asked = credit.signature(function)[0]
    rule = credit.bind(name, {name: function}, "advantage", providers=dict.fromkeys(asked))
    names = {"node": 0, "edge": 1}
    measured = evidence_for(rng, rollout, [n for n in asked if n not in names])
    measured |= {n: _prefix_names(rollout, names[n]) for n in asked if n in names}
    arguments = jax.device_put((rollout, measured))
    compiled = jax.jit(lambda *given: credit.assign(rule, *given)).lower(*arguments).compile()
    return compiled, lambda: compiled(*arguments)


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
