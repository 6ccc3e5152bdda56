"""`small_run.py SCRIPT FLAGS` runs a script, compiled in a hurry, with little but its steps.

What takes long in a short run is compiling, demonstrations and evaluations.
"""

import functools
import runpy
import sys

import jax
from stubs import quick_jit

from rlcredit import evaluate, pretrain, sharding


def patches():
    """(module, name, what stands in its place)."""
    quick_step = functools.partial(quick_jit, donate_argnums=0)
    return [
        (jax, "jit", quick_jit),
        (sharding, "jit_step", lambda mesh, step: quick_step(step)),
        (evaluate, "make_judge", functools.partial(evaluate.make_judge, problems=8)),
        (pretrain, "demonstrations", functools.partial(pretrain.demonstrations, count=200)),
    ]


if __name__ == "__main__":
    del sys.argv[0]
    for patch in patches():
        setattr(*patch)
    runpy.run_path(sys.argv[0], run_name="__main__")
