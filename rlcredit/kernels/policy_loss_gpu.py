"""The policy loss from logits as a Mosaic GPU kernel, for Hopper GPUs and JAX from 0.11 on.

One warpgroup works off 64 tokens. Their logits come to shared memory a piece of the vocabulary at
a time, once for the sums and once more for the gradient, the second time from the cache or, where
there is but one piece, from where they lie. The last tile begins early enough to be whole: what
two tiles share they both write, and write alike.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.kernels.token_terms import Terms, for_kernel, row_factors
from rlcredit.types import Array

# The rows of a warpgroup's matrix layout; with more columns the registers would spill.
_ROWS, _MOST_COLUMNS = 64, 128


def supported(logits: Array) -> bool:
    """Are there 64 tokens, and is a row of logits whole pieces of 32 bytes, float32 or bfloat16?"""
    count, vocabulary = logits.shape
    whole = vocabulary * logits.dtype.itemsize % 32 == 0
    return whole and count >= _ROWS and logits.dtype in (jnp.float32, jnp.bfloat16)


def policy_loss_gpu(
    terms: Terms,
    temperature: float,
    logits: Array,
    tokens: Array,
    per_token: dict[str, Array],
    *,
    gradient: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """As `policy_loss.policy_loss_xla`, for logits that are `supported`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    count, vocabulary = logits.shape
    columns = columns_of_piece(vocabulary, logits.dtype.itemsize)
    numbers = jax.ShapeDtypeStruct((count,), jnp.float32)
    kernel = plgpu.kernel(
        functools.partial(_kernel, terms, temperature, tuple(per_token)),
        out_type=[numbers] * 3 + [jax.ShapeDtypeStruct(logits.shape, logits.dtype)] * gradient,
        grid=(pl.cdiv(count, _ROWS),),
        grid_names=("tile",),
        scratch_types=[
            plgpu.SMEM((_ROWS, columns), logits.dtype, transforms=_transforms(columns, logits)),
            plgpu.Barrier(),
        ],
    )
    loss, log_prob, entropy, *d_logits = kernel(logits, tokens, *per_token.values())
    return loss, log_prob, entropy, d_logits[0] if gradient else None


def columns_of_piece(vocabulary: int, itemsize: int) -> int:
    """The most columns, in whole 32-byte pieces, that divide V and fit the registers."""
    unit = 32 // itemsize
    return max(c for c in range(unit, _MOST_COLUMNS + 1, unit) if vocabulary % c == 0)


def _transforms(columns: int, logits: Array) -> tuple:
    """How a piece lies in shared memory: without them threads would wait for each other's banks."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    row = columns * logits.dtype.itemsize
    swizzle = next(s for s in (128, 64, 32) if row % s == 0)
    tiling = plgpu.TilingTransform((8, swizzle // logits.dtype.itemsize))
    return tiling, plgpu.SwizzleTransform(swizzle)


class _Tile(NamedTuple):
    """The logits of 64 tokens, and where a piece of them is worked on."""

    logits: Any  # [N, V] in global memory
    piece: Any  # [64, columns] in shared memory
    barrier: Any
    rows: Any  # which 64 of N
    tokens: Array  # [64]
    temperature: float

    @property
    def columns(self) -> int:
        return self.piece.shape[1]


def _kernel(terms: Terms, temperature: float, names: tuple[str, ...], *refs) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    *refs, piece, barrier = refs
    logits, tokens, *array_refs = refs[: 2 + len(names)]
    loss_ref, log_prob_ref, entropy_ref, *d_logits = refs[2 + len(names) :]
    first = jnp.minimum(lax.axis_index("tile") * _ROWS, logits.shape[0] - _ROWS)
    rows = pl.ds(first, _ROWS)
    row = plgpu.Layout.WGMMA.reduce(1)

    def of_rows(ref) -> Array:
        return plgpu.load(ref.at[rows], layout=row, optimized=False)

    tile = _Tile(logits, piece, barrier, rows, of_rows(tokens), temperature)
    zeros = plgpu.layout_cast(jnp.zeros(_ROWS), row)
    sums = (zeros + 2 * FORBIDDEN, zeros, zeros, zeros)
    pieces = logits.shape[1] // tile.columns
    top, total, weighted, own = lax.fori_loop(0, pieces, functools.partial(_add, tile), sums)
    mean, target, log_total = weighted / total, own - top, jnp.log(total)
    log_prob, entropy = jnp.minimum(target - log_total, 0), log_total - mean
    arrays = dict(zip(names, map(of_rows, array_refs), strict=True))
    loss, *derivatives = for_kernel(terms, log_prob, entropy, arrays)
    loss_ref[rows], log_prob_ref[rows], entropy_ref[rows] = loss, log_prob, entropy
    if d_logits:
        factors = row_factors(*derivatives, target, total, mean, top)
        pl.loop(0, pieces)(functools.partial(_write, tile, d_logits[0], top, factors))


def _fetch(tile: _Tile, number: Array) -> None:
    """Brings a piece to shared memory, once everybody has read the one before it."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    plgpu.commit_smem()
    plgpu.copy_gmem_to_smem(_part(tile, tile.logits, number), tile.piece, tile.barrier)
    plgpu.barrier_wait(tile.barrier)


def _part(tile: _Tile, ref: Any, number: Array) -> Any:
    from jax.experimental import pallas as pl

    return ref.at[tile.rows, pl.ds(number * tile.columns, tile.columns)]


def _read(tile: _Tile, number: Array) -> tuple[Array, Array]:
    """(z of the piece that is there, where it is that of `tokens`), in registers."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    logits = plgpu.load(tile.piece, layout=plgpu.Layout.WGMMA)
    z = jnp.maximum(logits.astype(jnp.float32) * (1 / tile.temperature), FORBIDDEN)
    column = plgpu.broadcasted_iota(jnp.int32, z.shape, 1, layout=plgpu.Layout.WGMMA)
    return z, column + number * tile.columns == _across(tile.tokens, tile.columns)


def _add(tile: _Tile, number: Array, sums: tuple) -> tuple:
    """The largest logit, the sums of exp and of exp * z under it, and the token's, one piece on."""
    _fetch(tile, number)
    z, chosen = _read(tile, number)
    top, total, weighted, own = sums
    higher = jnp.maximum(top, jnp.max(z, axis=1))
    shift, relative = top - higher, z - _across(higher, tile.columns)
    shrink, weights = jnp.exp(shift), jnp.exp(relative)
    weighted = shrink * (weighted + shift * total) + jnp.sum(weights * relative, axis=1)
    total = shrink * total + jnp.sum(weights, axis=1)
    return higher, total, weighted, own + jnp.sum(jnp.where(chosen, z, 0), axis=1)


def _write(tile: _Tile, d_logits: Any, top: Array, factors: tuple, number: Array) -> None:
    """The gradient of a piece, through the shared memory that its logits came by."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    if tile.columns < tile.logits.shape[1]:
        _fetch(tile, number)
    z, chosen = _read(tile, number)
    live, hit, constant, slope = (_across(a, tile.columns) for a in factors)
    relative = z - _across(top, tile.columns)
    dz = jnp.where(chosen, hit, 0) - jnp.exp(relative) * (constant + slope * relative)
    own = jnp.where(live, dz * (1 / tile.temperature), 0)
    tile.piece[...] = own.astype(tile.piece.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(tile.piece, _part(tile, d_logits, number))
    plgpu.wait_smem_to_gmem(0)


def _across(numbers: Array, columns: int) -> Array:
    return lax.broadcast_in_dim(numbers, (numbers.shape[0], columns), (0,))
