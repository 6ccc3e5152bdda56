"""Recursions backwards in time as Mosaic GPU kernels, for Hopper and JAX >= 0.11.

A block takes 128 rows, one a thread, and goes through time from right to left in chunks that the
copy engine brings to shared memory while the one before is worked on. The swizzle there lets every
thread read its own row without bank conflicts, so nothing is transposed in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from rlcredit.types import Array

_ROWS = 128
_STEPS = 32  # of a chunk: 128 bytes of float32, the widest swizzle
_STAGES = 2


def scan_gpu(
    pair: Callable, out: Callable, arrays: tuple, initial: Array, *, interpret=None
) -> list[Array]:
    """The scan of `recurrence_pairs`. A T that is no multiple of 4, with int8 of 16, costs a copy.

    Args: interpret: `InterpretGPUParams` off the GPU.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    rows, steps = arrays[0].shape
    # The copy engine takes rows that start at multiples of 16 bytes.
    unit = max(16 // a.dtype.itemsize for a in arrays)
    width = unit * pl.cdiv(steps, unit)
    if width != steps:
        arrays = tuple(jnp.pad(a, ((0, 0), (0, width - steps))) for a in arrays)
    blocks = pl.cdiv(rows, _ROWS)
    initial = jnp.pad(initial.astype(jnp.float32), (0, blocks * _ROWS - rows))
    like = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    outputs = len(jax.eval_shape(out, like, *arrays))
    kept = plgpu.SMEM((_ROWS, _STEPS), jnp.float32, transforms=_swizzle(plgpu, like.dtype))
    results = plgpu.kernel(
        functools.partial(_block, plgpu, pair, out, steps, len(arrays), outputs),
        out_type=[like] * outputs,
        scratch_types=[kept] * outputs,
        grid=(blocks,),
        grid_names=("rows",),
        interpret=interpret,
    )(*arrays, initial[:, None])
    return [a[:, :steps] for a in results]


def _block(plgpu, pair: Callable, out: Callable, steps: int, inputs: int, outputs: int, *refs):
    """128 rows from right to left. The last references are a chunk in shared memory an output."""
    in_refs, initial_ref, refs = refs[:inputs], refs[inputs], refs[inputs + 1 :]
    out_refs, kept_refs = refs[:outputs], refs[outputs:]
    chunks = pl.cdiv(steps, _STEPS)
    row = lax.axis_index("rows")
    rows = pl.ds(row * _ROWS, _ROWS)

    def chunk(indices: tuple, *rest) -> Array:
        *chunk_refs, following = rest
        start = (chunks - 1 - indices[0]) * _STEPS
        arrays = [_read(plgpu, ref) for ref in chunk_refs]
        t = plgpu.broadcasted_iota(jnp.int32, (_ROWS, _STEPS), 1, layout=_row_by_thread(plgpu))
        x, decay = pair(*arrays)
        x = jnp.where(t + start < steps, x, jnp.zeros_like(x))
        decay = jnp.where(t + start < steps, decay, jnp.ones_like(decay))
        after, following = _in_steps(x, decay, following)
        results = out(after, *arrays)
        # What was stored last is still being read.
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        for ref, result in zip(kept_refs, results, strict=True):
            ref[...] = plgpu.layout_cast(result, _row_by_thread(plgpu, ref.dtype))
        plgpu.commit_smem()
        for kept_ref, ref in zip(kept_refs, out_refs, strict=True):
            plgpu.copy_smem_to_gmem(kept_ref, ref.at[rows, pl.ds(start, _STEPS)])
        return following

    specs = [
        plgpu.BlockSpec(
            (_ROWS, _STEPS),
            lambda t: (row, chunks - 1 - t),
            transforms=_swizzle(plgpu, ref.dtype),
        )
        for ref in in_refs
    ]
    pipeline = plgpu.emit_pipeline(
        chunk,
        grid=(chunks,),
        in_specs=specs,
        max_concurrent_steps=_STAGES,
        init_carry=plgpu.load(initial_ref.at[rows], layout=_row_by_thread(plgpu)),
    )
    pipeline(*in_refs)
    plgpu.wait_smem_to_gmem(0)


def _in_steps(x: Array, decay: Array, following: Array) -> tuple[Array, Array]:
    """(y[t + 1] of all t of a chunk, y[0]), where y[_STEPS] is `following`."""
    all_after = []
    for t in reversed(range(_STEPS)):
        all_after.append(following)
        x_t, decay_t = x[:, t : t + 1], decay[:, t : t + 1]
        # 0 * nan would be nan.
        following = jnp.where(decay_t != 0, x_t + decay_t * following, x_t)
    return jnp.concatenate(all_after[::-1], axis=1), following


def _swizzle(plgpu, dtype) -> tuple:
    """Of the shared memory of a chunk: as wide as a row of it."""
    return (plgpu.SwizzleTransform(_STEPS * dtype.itemsize),)


def _row_by_thread(plgpu, dtype=None):
    """Each thread has a row: in single registers, or in 16 bytes of `dtype` to move it by."""
    return plgpu.Layout.TCGEN05_TMEM_NATIVE(1 if dtype is None else 16 // dtype.itemsize)


def _read(plgpu, ref) -> Array:
    array = plgpu.load(ref, layout=_row_by_thread(plgpu, ref.dtype))
    if ref.dtype == jnp.int8:
        array = array.astype(jnp.int32)
    return plgpu.layout_cast(array, _row_by_thread(plgpu))
