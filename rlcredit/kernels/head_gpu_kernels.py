"""The kernels of the head for Hopper GPUs: tiles of the logits in registers. JAX 0.11 or newer.

A block has 128 rows, two warpgroups of 64 each, and goes through its part of the vocabulary in
tiles of 128 columns; a third warpgroup copies what they multiply next. What is done with a tile of
the logits is all that the two kernels differ in. Arrays go by name: hidden [N, H] and weight [H, V]
in bfloat16, bias [V], all others [N], with N and V multiples of 128 and H one of 64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.types import Array

ROWS, COLUMNS = 128, 128  # of a tile
_DEPTH = 64  # of the width, multiplied at a time
_OWN = ROWS // 2  # rows of a warpgroup
_STAGES = 5  # copies under way, 32 kB each
_MULTIPROCESSORS = 132
_SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
_TILE, _ROW = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1)


class _Buffers(NamedTuple):
    """Shared memory for what is multiplied, and who may touch it."""

    hidden: Any
    weight: Any
    full: Any
    read: Any


class _Part(NamedTuple):
    """What a block does: `count` tiles of the vocabulary from `first` on, for rows from `row`."""

    row: Array
    first: Array
    count: Array
    steps: int  # over the width


def forward_kernel(temperature: float, operands: dict) -> list[Array]:
    """(top, total, weighted, target) of every part of the vocabulary, each [parts, N] float32."""
    rows = operands["hidden"].shape[0]
    parts = _parts(operands)

    def body(part: _Part, group: Array, refs: dict, out: list, staged, logits: Callable) -> None:
        base = part.row + group * _OWN
        tokens = _of_rows(refs["tokens"], base)

        def step(number: Array, carry: tuple) -> tuple:
            z = _scaled(temperature, refs, logits(number), number)
            return _one_tile_more(carry, z, _chosen(tokens, number))

        nothing = (2 * FORBIDDEN, 0.0, 0.0, 0.0)
        carry = tuple(plgpu.layout_cast(jnp.full((_OWN,), x, jnp.float32), _ROW) for x in nothing)
        carry = lax.fori_loop(part.first, part.first + part.count, step, carry)
        for number, value in enumerate(carry):
            staged[group, number] = value
        plgpu.commit_smem()
        for number, ref in enumerate(out):
            own = ref.at[lax.axis_index("part"), pl.ds(base, _OWN)]
            plgpu.copy_smem_to_gmem(staged.at[group, number], own)
        plgpu.wait_smem_to_gmem(0)

    out_type = [jax.ShapeDtypeStruct((parts, rows), jnp.float32)] * 4
    return _launch(body, parts, operands, out_type, plgpu.SMEM((2, 4, _OWN), jnp.float32))


def backward_kernel(temperature: float, inputs: dict) -> Array:
    """[N, V] bfloat16 gradient of (hidden @ weight + bias): see `chunked`."""
    shape = (inputs["hidden"].shape[0], inputs["weight"].shape[1])

    def body(part: _Part, group: Array, refs: dict, out: list, staged, logits: Callable) -> None:
        base = part.row + group * _OWN
        names = ("tokens", "top", "log_total", "mean", "g_log_prob", "g_entropy")
        of_rows = {name: _of_rows(refs[name], base) for name in names}

        @pl.loop(part.first, part.first + part.count)
        def _(number):
            z = _scaled(temperature, refs, logits(number), number)
            da = _gradient_of_logits(z, of_rows, number) / temperature
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            staged[group] = da.astype(jnp.bfloat16)
            plgpu.commit_smem()
            own = out[0].at[pl.ds(base, _OWN), pl.ds(number * COLUMNS, COLUMNS)]
            plgpu.copy_smem_to_gmem(staged.at[group], own)

        plgpu.wait_smem_to_gmem(0)

    out_type = [jax.ShapeDtypeStruct(shape, jnp.bfloat16)]
    staged = plgpu.SMEM((2, _OWN, COLUMNS), jnp.bfloat16, transforms=_SWIZZLED)
    return _launch(body, _parts(inputs), inputs, out_type, staged)[0]


def _parts(operands: dict) -> int:
    """Parts of the vocabulary, so that every multiprocessor has a block."""
    tiles = operands["weight"].shape[1] // COLUMNS
    return max(1, min(tiles, _MULTIPROCESSORS * ROWS // operands["hidden"].shape[0]))


def _launch(body: Callable, parts: int, operands: dict, out_type: list, staged) -> list[Array]:
    """Runs `body(part, group, refs, out, staged, logits)` in the two warpgroups of every block.

    logits(number) is tile `number` of hidden @ weight, [64, 128] float32; it is to be called for
    every tile of the part in turn.
    """
    (rows, width), vocabulary = operands["hidden"].shape, operands["weight"].shape[1]
    tiles = vocabulary // COLUMNS
    per_part = pl.cdiv(tiles, parts)

    def kernel(*everything):
        refs = dict(zip(operands, everything, strict=False))
        out = everything[len(operands) : -5]
        staged, *buffers = everything[-5:]
        buffers = _Buffers(*buffers)
        first = lax.axis_index("part") * per_part
        count = jnp.clip(tiles - first, 0, per_part)
        part = _Part(lax.axis_index("row") * ROWS, first, count, width // _DEPTH)
        group = lax.axis_index("group")

        @pl.when(group < 2)
        def _():
            plgpu.set_max_registers(232, action="increase")
            body(part, group, refs, out, staged, functools.partial(_logits, part, buffers, group))

        @pl.when(group == 2)
        def _():
            plgpu.set_max_registers(40, action="decrease")
            _copies(part, buffers, refs["hidden"], refs["weight"])

    scratch = [
        staged,
        plgpu.SMEM((_STAGES, ROWS, _DEPTH), jnp.bfloat16, transforms=_SWIZZLED),
        plgpu.SMEM((_STAGES, _DEPTH, COLUMNS), jnp.bfloat16, transforms=_SWIZZLED),
        plgpu.Barrier(num_arrivals=2, num_barriers=_STAGES),
        plgpu.Barrier(num_arrivals=2, num_barriers=_STAGES),
    ]
    launch = plgpu.kernel(
        kernel,
        out_type=out_type,
        scratch_types=scratch,
        grid=(rows // ROWS, parts),
        grid_names=("row", "part"),
        num_threads=3,
        thread_name="group",
    )
    return launch(*operands.values())


def _copies(part: _Part, buffers: _Buffers, hidden, weight) -> None:
    """Keeps `_STAGES` pairs of pieces of hidden and weight on their way."""
    steps = part.count * part.steps

    def copy(step: Array) -> None:
        slot = lax.rem(step, _STAGES)
        rows = pl.ds(part.row, ROWS)
        depth = pl.ds(lax.rem(step, part.steps) * _DEPTH, _DEPTH)
        columns = pl.ds((part.first + lax.div(step, part.steps)) * COLUMNS, COLUMNS)
        full = buffers.full.at[slot]
        plgpu.copy_gmem_to_smem(hidden.at[rows, depth], buffers.hidden.at[slot], full)
        plgpu.copy_gmem_to_smem(weight.at[depth, columns], buffers.weight.at[slot], full)

    pl.loop(0, jnp.minimum(_STAGES, steps))(copy)

    @pl.loop(_STAGES, steps)
    def _(step):
        plgpu.barrier_wait(buffers.read.at[lax.rem(step, _STAGES)])
        copy(step)


def _logits(part: _Part, buffers: _Buffers, group: Array, number: Array) -> Array:
    """Tile `number` of hidden @ weight for the rows of this warpgroup, [64, 128] float32."""
    start = (number - part.first) * part.steps
    own = pl.ds(group * _OWN, _OWN)

    def accumulate(sums) -> Array:
        @pl.loop(0, part.steps)
        def _(step):
            slot = lax.rem(start + step, _STAGES)
            plgpu.barrier_wait(buffers.full.at[slot])
            plgpu.wgmma(sums, buffers.hidden.at[slot, own], buffers.weight.at[slot])
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(buffers.read.at[slot])

        return sums[...]

    return pl.run_scoped(accumulate, plgpu.ACC((_OWN, COLUMNS), jnp.float32))


def _scaled(temperature: float, refs: dict, z: Array, number: Array) -> Array:
    if "bias" in refs:
        bias = refs["bias"].at[pl.ds(number * COLUMNS, COLUMNS)]
        of_columns = plgpu.load(bias, layout=_TILE.reduce(0), optimized=False)
        z += lax.broadcast_in_dim(of_columns, z.shape, [1])
    return z / temperature


def _one_tile_more(carry: tuple, z: Array, chosen: Array) -> tuple:
    top, total, weighted, target = carry
    higher = jnp.maximum(top, jnp.max(z, axis=1))
    shift, relative = top - higher, z - _across(higher)
    shrink, weights = jnp.exp(shift), jnp.exp(relative)
    # `weighted` is of z - top, so that large logits do not cancel.
    weighted = shrink * (weighted + shift * total) + jnp.sum(weights * relative, axis=1)
    total = shrink * total + jnp.sum(weights, axis=1)
    return higher, total, weighted, target + jnp.sum(jnp.where(chosen, z, 0.0), axis=1)


def _gradient_of_logits(z: Array, of_rows: dict, number: Array) -> Array:
    _, *others = (_across(of_rows[name]) for name in of_rows)
    top, log_total, mean, g_log_prob, g_entropy = others
    relative = z - top
    p = jnp.exp(relative - log_total)
    chosen = jnp.where(_chosen(of_rows["tokens"], number), 1.0, 0.0)
    return g_log_prob * (chosen - p) - g_entropy * p * (relative - mean)


def _chosen(tokens: Array, number: Array) -> Array:
    shape = (_OWN, COLUMNS)
    column = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=_TILE)
    return column + number * COLUMNS == _across(tokens)


def _of_rows(ref, base: Array) -> Array:
    return plgpu.load(ref.at[pl.ds(base, _OWN)], layout=_ROW, optimized=False)


def _across(of_rows: Array) -> Array:
    return lax.broadcast_in_dim(of_rows, (_OWN, COLUMNS), [0])
