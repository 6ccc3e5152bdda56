"""The kernels of the head for the TPU: one tile of the logits at a time, in vector memory.

The forward kernel goes through the vocabulary for a tile of rows and keeps four numbers a row in
scratch. The backward kernel goes through the rows for a tile of the vocabulary. Arrays go by name;
those of one number a row are [N, 1], that of one number a column is [1, V].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.types import Array

# Bytes of vector memory: all that a kernel may take, and what its largest parts may.
_LIMIT = 72 * 2**20
_WEIGHT, _HIDDEN, _WAVE = 12 * 2**20, 8 * 2**20, 16 * 2**20
_MOST_ROWS, _MOST_COLUMNS = 512, 512
_LEAST_ROWS, _LEAST_COLUMNS = 32, 128  # of a tile of bytes, those of `legal`


class Tiles(NamedTuple):
    """How the work is cut."""

    rows: int
    columns: int  # of the vocabulary
    wave: int  # rows whose gradient is in vector memory at a time


class Call(NamedTuple):
    """What is known of a call when it is compiled."""

    temperature: float
    tiles: Tiles
    interpret: Any


def tiles_of(rows: int, width: int, vocabulary: int, itemsize: int) -> Tiles:
    """Tiles that fit into vector memory, for a head of `itemsize` bytes a number."""
    # Of a column: two buffers each of the head, of its gradient and of what that starts from, and
    # the sum.
    of_column = width * (2 * itemsize + 20)
    columns = _power_of_two(_WEIGHT // of_column, _LEAST_COLUMNS, _MOST_COLUMNS)
    tile = _power_of_two(_HIDDEN // (8 * width), _LEAST_ROWS, _MOST_ROWS)
    wave = max(1, _WAVE // (4 * width) // tile) * tile
    return Tiles(tile, min(columns, vocabulary), wave)


def _power_of_two(number: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << max(number.bit_length() - 1, 0)))


def forward_kernel(call: Call, operands: dict) -> dict:
    """log_prob, top, log_total and mean, each [N, 1] float32, of hidden, weight, tokens."""
    count = operands["hidden"].shape[0]
    rows, grid = _rows_and_grid(call, operands)
    names = ("log_prob", "top", "log_total", "mean")
    return pl.pallas_call(
        functools.partial(_forward_body, call, operands["weight"].shape[1]),
        grid=grid,
        in_specs=[_specs(operands, rows, call.tiles.columns, lambda row, column: (row, column))],
        out_specs=dict.fromkeys(names, pl.BlockSpec((rows, 1), lambda row, column: (row, 0))),
        out_shape=dict.fromkeys(names, jax.ShapeDtypeStruct((count, 1), jnp.float32)),
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * 4,
        compiler_params=_compiler(pltpu.PARALLEL, pltpu.ARBITRARY),
        interpret=call.interpret,
        name="token_log_prob_forward",
    )(operands)


def _forward_body(call: Call, vocabulary: int, refs: dict, out: dict, *scratch):
    top, total, weighted, target = scratch
    column = pl.program_id(1)

    @pl.when(column == 0)
    def _():
        top[...] = jnp.full(top.shape, 2 * FORBIDDEN)
        for sum_ in (total, weighted, target):
            sum_[...] = jnp.zeros(sum_.shape, jnp.float32)

    z, chosen = _logits(call, refs, column, vocabulary)
    higher = jnp.maximum(top[...], jnp.max(z, axis=1, keepdims=True))
    shift = top[...] - higher
    shrink, relative = jnp.exp(shift), z - higher
    weights = jnp.exp(relative)
    # `weighted` is of z - top, so that large logits do not cancel.
    weighted[...] = shrink * (weighted[...] + shift * total[...]) + _row_sum(weights * relative)
    total[...] = shrink * total[...] + _row_sum(weights)
    target[...] += _row_sum(jnp.where(chosen, z, 0))
    top[...] = higher

    @pl.when(column == pl.num_programs(1) - 1)
    def _():
        out["top"][...] = top[...]
        out["log_total"][...] = jnp.log(total[...])
        out["mean"][...] = weighted[...] / total[...]
        log_prob = (target[...] - top[...]) - out["log_total"][...]
        out["log_prob"][...] = jnp.minimum(log_prob, 0)


def backward_kernel(call: Call, inputs: dict, before: Array | None = None) -> dict:
    """Gradients to hidden, weight and bias, float32 but for the weight's.

    Args:
      inputs: the operands, what the forward kernel found, g_log_prob and g_entropy.
      before: [H, V] float32 that the weight's gradient is added to, and whose memory it takes.
    """
    (count, width), weight = inputs["hidden"].shape, inputs["weight"]
    rows, grid = _rows_and_grid(call, inputs)
    columns = call.tiles.columns
    in_specs = _specs(inputs, rows, columns, lambda column, row: (row, column))
    out_specs = {
        "hidden": pl.BlockSpec(
            (grid[0], rows, width), lambda column, row: (0, 0, 0), pipeline_mode=pl.Buffered(1)
        ),
        "weight": in_specs["weight"],
    }
    out_shape = {
        "hidden": jax.ShapeDtypeStruct((grid[0], rows, width), jnp.float32),
        "weight": weight if before is None else before,
    }
    if "bias" in inputs:
        out_specs["bias"] = in_specs["bias"]
        out_shape["bias"] = jax.ShapeDtypeStruct(inputs["bias"].shape, jnp.float32)
    aliases = {}
    if before is not None:
        inputs, in_specs = inputs | {"before": before}, in_specs | {"before": in_specs["weight"]}
        aliases = {sorted(inputs).index("before"): sorted(out_shape).index("weight")}
    gradients = pl.pallas_call(
        functools.partial(_backward_body, call, (count, weight.shape[1])),
        grid=grid[::-1],
        in_specs=[in_specs],
        out_specs=out_specs,
        out_shape=jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), out_shape),
        input_output_aliases=aliases,
        scratch_shapes=[pltpu.VMEM((width, columns), jnp.float32)],
        compiler_params=_compiler(pltpu.ARBITRARY, pltpu.ARBITRARY),
        interpret=call.interpret,
        name="token_log_prob_backward",
    )(inputs)
    return gradients | {"hidden": gradients["hidden"].reshape(-1, width)[:count]}


def _backward_body(call: Call, shape: tuple, refs: dict, gradients: dict, d_weight):
    column, row = pl.program_id(0), pl.program_id(1)
    hidden, weight, da = _gradient_of_logits(call, shape, refs, row, column)
    operand = da.astype(hidden.dtype)
    own = _product(operand, weight, 1, 1)
    first = row == 0

    @pl.when(first)
    def _():
        d_weight[...] = (
            refs["before"][...] if "before" in refs else jnp.zeros(d_weight.shape, jnp.float32)
        )

    @pl.when(column == 0)
    def _():
        gradients["hidden"][row] = own

    @pl.when(column > 0)
    def _():
        gradients["hidden"][row] += own

    d_weight[...] += _product(hidden, operand, 0, 0)
    if "bias" in refs:
        d_bias = jnp.where(first, 0, gradients["bias"][...])
        gradients["bias"][...] = d_bias + jnp.sum(da, axis=0, keepdims=True)

    @pl.when(row == pl.num_programs(1) - 1)
    def _():
        gradients["weight"][...] = d_weight[...].astype(gradients["weight"].dtype)


def _gradient_of_logits(call: Call, shape: tuple, refs: dict, row: Array, column: Array):
    """(hidden, weight, da) of a tile, 0 where it lies outside of the arrays."""
    z, chosen = _logits(call, refs, column, shape[1])
    relative = z - refs["top"][...]
    p = jnp.exp(relative - refs["log_total"][...])
    of_entropy = refs["g_entropy"][...] * p * (relative - refs["mean"][...])
    dz = refs["g_log_prob"][...] * (jnp.where(chosen, 1.0, 0.0) - p) - of_entropy
    hidden = refs["hidden"][...]
    weight = refs["weight"][...].astype(hidden.dtype)
    if "legal" in refs:
        dz = jnp.where(refs["legal"][...] != 0, dz, 0)
    if shape[1] % z.shape[1]:
        dz = _inside(dz, 1, column, shape[1])
        weight = _inside(weight, 1, column, shape[1])
    if shape[0] % z.shape[0]:
        dz, hidden = _inside(dz, 0, row, shape[0]), _inside(hidden, 0, row, shape[0])
    return hidden, weight, dz / call.temperature


def _logits(call: Call, refs: dict, column: Array, vocabulary: int):
    """(z [rows, columns] float32, where they are those of the tokens)."""
    hidden = refs["hidden"][...]
    z = _product(hidden, refs["weight"][...].astype(hidden.dtype), 1, 0)
    if "bias" in refs:
        z += refs["bias"][...].astype(jnp.float32)
    z = z / call.temperature
    if "legal" in refs:
        z = jnp.where(refs["legal"][...] != 0, z, FORBIDDEN)
    if vocabulary % z.shape[1]:
        # Below what is forbidden: a row without a legal token is uniform over those there are.
        z = _inside(z, 1, column, vocabulary, 2 * FORBIDDEN)
    position = lax.broadcasted_iota(jnp.int32, z.shape, 1) + column * z.shape[1]
    return z, position == refs["tokens"][...]


def _inside(tile: Array, axis: int, number: Array, size: int, outside: float = 0) -> Array:
    """The tile of that number, and `outside` where it goes beyond the array's `size`."""
    position = lax.broadcasted_iota(jnp.int32, tile.shape, axis) + number * tile.shape[axis]
    return jnp.where(position < size, tile, outside)


def _row_sum(tile: Array) -> Array:
    return jnp.sum(tile, axis=1, keepdims=True)


def _product(left: Array, right: Array, of_left: int, of_right: int) -> Array:
    """Their product over one axis of each, summed in float32."""
    exact = lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    contracted = (((of_left,), (of_right,)), ((), ()))
    return lax.dot_general(
        left, right, contracted, precision=exact, preferred_element_type=jnp.float32
    )


def _rows_and_grid(call: Call, operands: dict) -> tuple[int, tuple[int, int]]:
    """Rows of a tile, never more than there are, and the number of tiles (of rows, of columns)."""
    count, vocabulary = operands["hidden"].shape[0], operands["weight"].shape[1]
    rows = min(call.tiles.rows, count)
    return rows, (pl.cdiv(count, rows), pl.cdiv(vocabulary, call.tiles.columns))


def _specs(arrays: dict, rows: int, columns: int, place: Callable) -> dict:
    """The block of each array; `place` turns the grid's indices into (row tile, column tile)."""
    width = arrays["hidden"].shape[1]

    def row(*grid) -> tuple:
        return place(*grid)[0], 0

    def column(*grid) -> tuple:
        return 0, place(*grid)[1]

    special = {
        "hidden": pl.BlockSpec((rows, width), row),
        "weight": pl.BlockSpec((width, columns), column),
        "bias": pl.BlockSpec((1, columns), column),
        "legal": pl.BlockSpec((rows, columns), place),
    }
    number = pl.BlockSpec((rows, 1), row)
    return {name: special.get(name, number) for name in arrays}


def _compiler(*semantics) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=_LIMIT)
