"""Compiles every kernel, the rollout and the training step for a TPU or GPU that is not here.

    python benchmarks/targets.py --target tpu-v5e              # or tpu-v6e; extra `tpu`
    python benchmarks/targets.py --target h100 --json h100.json   # or h200; extra `cuda13`
    python benchmarks/targets.py --target tpu-v5e --only "head chunked" "step grpo, small"

What is printed the target's own compiler says of its program, per device, in bytes: `temporary`
memory, `arguments`, the arguments written over (`aliased`), bytes `moved` and `flops`, where it
counts them; the body of a loop is then counted once. `of naive` is the ratio of temporary bytes
to the naive form, `cache copies` how often the program copies a leaf of the KV cache. Nothing is
run or timed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import tyro
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from programs import Program, programs
from timing import machine, report

from rlcredit import sharding
from rlcredit.kernels.platform import compiling_for
from rlcredit.metrics import progress
from rlcredit.types import InputError, PyTree

FOLDER = Path(__file__).parent


class Target(NamedTuple):
    """A kind of device and how to ask for eight of them."""

    platform: Literal["tpu", "gpu"]
    topology: str
    compiler: str  # the package that holds it
    extra: str


TARGETS = {
    "tpu-v5e": Target("tpu", "v5e:2x4", "libtpu", "tpu"),
    "tpu-v6e": Target("tpu", "v6e:2x4", "libtpu", "tpu"),
    "h100": Target("gpu", "h100", "jax-cuda13-plugin", "cuda13"),
    "h200": Target("gpu", "h200", "jax-cuda13-plugin", "cuda13"),
}


@dataclass(frozen=True)
class Options:
    """What to compile, and for what."""

    target: Literal["tpu-v5e", "tpu-v6e", "h100", "h200"]
    json: Path | None = None
    only: tuple[str, ...] = ()  # programs whose name holds one of these, and their naive forms


def main(options: Options) -> None:
    chosen = choose(TARGETS[options.target].platform, options.only)
    rows = compile_all(options.target, chosen)
    report(rows, None)
    about = machine() | {"target": options.target, "compiler": compiler(options.target)}
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=2) + "\n")
    print(", ".join(f"{name} {about[name]}" for name in ("target", "compiler", "jax")))
    if any(row["compiled"] != "yes" for row in rows):
        sys.exit(1)


def choose(platform: str, only: tuple[str, ...] = ()) -> dict[str, Program]:
    """The programs for a platform, of the names that hold one of `only` where there are any.

    Raises: InputError if there is none.
    """
    table = programs()
    fit = {n: p for n, p in table.items() if p.platform in (None, platform)}
    wanted = {n for n in fit if not only or any(part in n for part in only)}
    if not wanted:
        raise InputError(f"only={' '.join(only)} names no program for a {platform}")
    wanted |= {fit[name].naive for name in wanted}
    return {name: program for name, program in fit.items() if name in wanted}


def compile_all(target: str, chosen: dict[str, Program]) -> list[dict[str, Any]]:
    """A row of every program, printed as it comes: some take minutes."""
    devices, rows = devices_of(target), {}
    with progress(len(chosen), 0, target) as show:
        for name, program in chosen.items():
            rows[name] = {"program": name} | compile_one(program, devices, TARGETS[target].platform)
            naive = rows.get(program.naive, {}).get("temporary")
            if naive and "temporary" in rows[name]:
                rows[name]["of naive"] = round(rows[name]["temporary"] / naive, 5)
            print(rows[name], flush=True)
            show(len(rows), {})
    return list(rows.values())


def compile_one(program: Program, devices: list[jax.Device], platform: str) -> dict[str, Any]:
    """What the compiler says of a program, or the first line of why it refused."""
    mesh = sharding.make_mesh(devices[: program.devices])
    try:
        with compiling_for(platform):
            made = program.make(mesh)
            compiled = made.function.lower(*_placed(mesh, made.arguments)).compile()
    except Exception as error:  # whatever a compiler raises
        lines = str(error).strip().splitlines() or [""]
        return {"compiled": f"{type(error).__name__}: {lines[0]}"}
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    row = {
        "compiled": "yes",
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
    }
    counted = {"moved": "bytes accessed", "flops": "flops"}
    row |= {name: int(cost[key]) for name, key in counted.items() if key in cost}
    if made.cache is not None:
        row["cache copies"] = copies(compiled.as_text(), made.cache)
    return row


def copies(program: str, leaf: jax.ShapeDtypeStruct) -> int:
    """Instructions of a compiled program, loop bodies counted once, that copy an array like `leaf`.

    Moves between two memories of a device are no copies.
    """
    kind = {"float32": "f32", "bfloat16": "bf16"}[leaf.dtype.name]
    array = f"{kind}[{','.join(map(str, leaf.shape))}]"
    return len(re.findall(rf"= {re.escape(array)}\S* copy\(", program))


def devices_of(target: str) -> list[jax.Device]:
    """Eight devices of the target, to compile for and not to run on.

    Raises: InputError if the compiler is not installed.
    """
    platform, topology, package, extra = TARGETS[target]
    try:
        version(package)
    except PackageNotFoundError as error:
        raise InputError(
            f"{target} needs the compiler {package}: install the extra rlcredit[{extra}]"
        ) from error
    _expect_no_device()
    if platform == "tpu":
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=topology,
        topology="1x1x8",
        target_config=(FOLDER / f"{target}.txtpb").read_text(),
    ).devices


def compiler(target: str) -> str:
    """The compiler's package and its version."""
    package = TARGETS[target].compiler
    return f"{package} {version(package)}"


def _expect_no_device() -> None:
    """Neither compiler is to look for its device or lock it, and JAX is to stay on the CPU."""
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    jax.config.update("jax_platforms", "cpu")


def _placed(mesh: Mesh, arguments: tuple[PyTree, ...]) -> PyTree:
    """The arguments' shapes, replicated on the mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere)

    return jax.tree.map(placed, arguments)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
