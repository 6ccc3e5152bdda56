"""Exact values by enumeration: episodes per second, and the largest tree that fits in 4 GB.

    python benchmarks/enumeration.py
    python benchmarks/enumeration.py --json benchmarks/results/enumeration.json

Episodes of 12 tokens: chains of four decisions, with more and more branches, under a transformer.
Growing the tree, scoring every episode in it and folding the values back are one jitted program;
its memory is what the compiler says that arguments, results and temporaries take together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro
from timing import interleaved, report, row

from rlcredit.exact.tree import enumerate_episodes
from rlcredit.exact.values import exact
from rlcredit.policy import Architecture, transformer
from rlcredit.tasks import TASKS
from rlcredit.types import Sampling

DECISIONS, FILLER, FILLERS = 4, 2, 2
BRANCHES = (2, 3, 5)  # those that are timed
LIMIT = 4 * 2**30


@dataclass(frozen=True)
class Options:
    """What to measure."""

    json: Path | None = None
    width: int = 64
    layers: int = 3
    repeats: int = 3


def main(options: Options) -> None:
    rows = []
    for branches in BRANCHES:
        program, arguments = _program(branches, options)
        compiled = program.lower(*arguments).compile()
        seconds = interleaved({"exact": lambda c=compiled, a=arguments: c(*a)}, options.repeats)
        leaves = _leaves(branches)
        median = float(np.median(seconds["exact"]))
        more = {"episodes": leaves, "per_second": leaves / median, "bytes": _bytes(compiled)}
        rows.append(row("exact values", _shape(branches), "enumeration", seconds["exact"], **more))
    rows.append(_largest(options))
    report(rows, options.json)


def _program(branches: int, options: Options):
    """(jitted program, its arguments): everything about one problem."""
    task = TASKS["bifurcation"](
        gaps=(0.2,) * DECISIONS, base=0.1, branches=branches, filler=FILLER, delay=0
    )
    policy = transformer(Architecture(len(task.vocabulary), options.width, options.layers))
    sampling, capacity = Sampling(legal=True), _leaves(branches)

    @jax.jit
    def everything(params, problems):
        tree = enumerate_episodes(task, problems, legal=True, capacity=capacity)
        return exact(policy, params, tree, sampling)

    params = jax.jit(policy.init)(jax.random.key(0))
    return everything, (params, task.held_out(1, 0))


def _largest(options: Options) -> dict:
    """The most branches whose program fits; it is compiled, and not run."""
    branches, size = 2, 0
    while True:
        program, arguments = _program(branches + 1, options)
        needed = _bytes(program.lower(*arguments).compile())
        if needed > LIMIT:
            break
        branches, size = branches + 1, needed
    what = {"op": "largest in 4 GB", "shape": _shape(branches), "implementation": "enumeration"}
    return what | {"episodes": _leaves(branches), "bytes": size}


def _leaves(branches: int) -> int:
    return branches**DECISIONS * FILLERS ** (DECISIONS * FILLER)


def _shape(branches: int) -> str:
    return f"{DECISIONS} decisions of {branches}, 12 tokens"


def _bytes(compiled: jax.stages.Compiled) -> int:
    memory = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
