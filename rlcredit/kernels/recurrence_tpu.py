"""Recursions backwards in time as Pallas kernels for the TPU: one pass over memory.

Rows are taken in tiles and time in chunks from right to left, the running value of each row stays
in VMEM. Inside 128 lanes the maps y -> x + decay * y are composed in seven steps, each with the
composed one that starts twice as far to the right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlcredit.types import Array

_LANES = 128
_MOST_ROWS = 256
_MOST_STEPS = 512
_GROUP = 32  # rows worked on together; a tile of int8 has no fewer


def scan_tpu(
    pair: Callable, out: Callable, arrays: tuple, initial: Array, *, interpret=False
) -> list[Array]:
    """The scan of `recurrence_pairs`. A product of decays that is 0 in float32 cuts, too.

    Args: interpret: what `pallas_call` takes; not False off the TPU.
    """
    rows, steps = arrays[0].shape
    tiles, tile = _evenly(rows, _MOST_ROWS)
    chunks, chunk = _evenly(steps, _MOST_STEPS)
    # One row of lanes for each tile: [R, 1] would be stored as [R, 128].
    initial = jnp.pad(initial.astype(jnp.float32), (0, tiles * tile - rows))
    block = pl.BlockSpec((tile, chunk), lambda r, t: (r, chunks - 1 - t))
    like = jax.ShapeDtypeStruct((rows, steps), jnp.float32)
    outputs = len(jax.eval_shape(out, like, *arrays))
    is_int8 = [a.dtype == jnp.int8 for a in arrays]
    return pl.pallas_call(
        functools.partial(_chunk, pair, out, steps, len(arrays), outputs),
        grid=(tiles, chunks),
        in_specs=[pl.BlockSpec((None, 1, tile), lambda r, t: (r, 0, 0)), *[block] * len(arrays)],
        out_specs=[block] * outputs,
        out_shape=[like] * outputs,
        scratch_shapes=[
            pltpu.VMEM((tile, _LANES), jnp.float32),
            *[pltpu.VMEM((tile, chunk), jnp.int8)] * sum(is_int8),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            # So that masks are converted on their way into VMEM, not in a copy.
            allow_input_fusion=[False, *is_int8],
        ),
        interpret=interpret,
    )(initial.reshape(tiles, 1, tile), *arrays)


def _evenly(size: int, most: int) -> tuple[int, int]:
    """(how many parts, the size of each): as few and then as small as can be."""
    parts = pl.cdiv(size, most)
    return parts, _LANES * pl.cdiv(size, parts * _LANES)


def _chunk(pair, out, steps: int, inputs: int, outputs: int, initial_ref, *refs) -> None:
    """A chunk of a tile. The running value of a row is the same in all lanes of `carry_ref`."""
    in_refs, refs = list(refs[:inputs]), refs[inputs:]
    out_refs, (carry_ref, *kind_refs) = refs[:outputs], refs[outputs:]
    tile, chunk = in_refs[0].shape
    start = (pl.num_programs(1) - 1 - pl.program_id(1)) * chunk
    for kind_ref in kind_refs:
        # What is converted on its way can be read as a whole only.
        kind_ref[...] = in_refs[-1][...]
        in_refs[-1] = kind_ref

    @pl.when(pl.program_id(1) == 0)
    def _():
        carry_ref[...] = jnp.broadcast_to(initial_ref[...], (_LANES, tile)).T

    def group(number: Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(number * _GROUP, _GROUP), _GROUP)
        carry = carry_ref[rows, :]
        for first in reversed(range(0, chunk, _LANES)):
            columns = [_read(ref, rows, pl.ds(first, _LANES)) for ref in in_refs]
            lane = lax.broadcasted_iota(jnp.int32, carry.shape, 1)
            inside = lane < steps - start - first
            x, decay = pair(*columns)
            x, decay = _composed(jnp.where(inside, x, 0), jnp.where(inside, decay, 1), lane)
            y = jnp.where(decay != 0, x + decay * carry, x)
            following = jnp.where(lane < _LANES - 1, _from_right(y, 1), carry)
            for ref, array in zip(out_refs, out(following, *columns), strict=True):
                ref[rows, pl.ds(first, _LANES)] = array
            carry = jnp.broadcast_to(y[:, :1], y.shape)
        carry_ref[rows, :] = carry

    lax.fori_loop(0, tile // _GROUP, group, None)


def _read(ref, rows, lanes) -> Array:
    array = ref[rows, lanes]
    return array.astype(jnp.int32) if array.dtype == jnp.int8 else array


def _composed(x: Array, decay: Array, lane: Array) -> tuple[Array, Array]:
    """The maps of all lanes from each one on, as one map of what follows the last."""
    for shift in (1, 2, 4, 8, 16, 32, 64):
        there = lane < _LANES - shift
        reaches = there & (decay != 0)
        x = jnp.where(reaches, x + decay * _from_right(x, shift), x)
        decay = jnp.where(there, decay * _from_right(decay, shift), decay)
    return x, decay


def _from_right(x: Array, shift: int) -> Array:
    return pltpu.roll(x, _LANES - shift, 1)
