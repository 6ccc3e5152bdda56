"""Log-probability and entropy over a large vocabulary on the TPU.

The equations of `chunked`, with pieces of the logits that never leave vector memory. The backward
pass computes the logits once for both gradients: that of the hidden states stays in vector memory
until the vocabulary is through. Where it does not fit, the rows come in waves, and the head's
gradient of one wave is what the next one starts from.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlcredit.kernels.head_tpu_kernels import Call, backward_kernel, forward_kernel, tiles_of
from rlcredit.types import Array

_OF_ROWS = ("hidden", "tokens", "legal", "top", "log_total", "mean", "g_log_prob", "g_entropy")


def token_log_prob_tpu(
    hidden: Array,
    head: Array,
    tokens: Array,
    *,
    temperature: float = 1.0,
    bias: Array | None = None,
    legal: Array | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """As `token_log_prob_chunked`; float32 operands are multiplied in float32.

    No shape has to fit the tiles: what lies outside of an array is masked in the kernels, and the
    head is never copied.

    Args: interpret: run on the CPU, as `jax.experimental.pallas.pallas_call` takes it.
    Returns: (log_prob, entropy), both [N] float32.
    """
    operands = {"hidden": hidden, "weight": head, "tokens": tokens[:, None]}
    if bias is not None:
        operands["bias"] = bias[None]
    if legal is not None:
        operands["legal"] = legal.astype(jnp.int8)
    tiles = tiles_of(*hidden.shape, head.shape[1], head.dtype.itemsize)
    return _fused(Call(temperature, tiles, interpret), operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(call: Call, operands: dict):
    return _forward(call, operands)[0]


def _forward(call: Call, operands: dict):
    numbers = forward_kernel(call, operands)
    log_prob = numbers.pop("log_prob")
    entropy = jnp.maximum(numbers["log_total"] - numbers["mean"], 0)
    return (log_prob[:, 0], entropy[:, 0]), (operands, numbers)


def _backward(call: Call, residuals: tuple, cotangents: tuple):
    operands, numbers = residuals
    g_log_prob, g_entropy = (g.astype(jnp.float32)[:, None] for g in cotangents)
    inputs = operands | numbers | {"g_log_prob": g_log_prob, "g_entropy": g_entropy}
    rows, wave = operands["hidden"].shape[0], call.tiles.wave
    gradients = backward_kernel(call, inputs) if wave >= rows else _over_waves(call, inputs)
    return ({name: _cotangent(gradients, name, array) for name, array in operands.items()},)


_fused.defvjp(_forward, _backward)


def _cotangent(gradients: dict, name: str, array: Array):
    if name in gradients:
        return gradients[name].astype(array.dtype)
    return np.zeros(array.shape, jax.dtypes.float0)


def _over_waves(call: Call, inputs: dict) -> dict:
    """`backward_kernel` on a wave of rows at a time; what is left over is a last one."""
    rows, wave = inputs["hidden"].shape[0], call.tiles.wave
    whole, left = divmod(rows, wave)

    def step(start: Array, size: int, gradients: dict) -> dict:
        part = {
            name: lax.dynamic_slice_in_dim(array, start, size) if name in _OF_ROWS else array
            for name, array in inputs.items()
        }
        own = backward_kernel(call, part, gradients["weight"])
        own["hidden"] = lax.dynamic_update_slice_in_dim(
            gradients["hidden"], own["hidden"], start, axis=0
        )
        if "bias" in own:
            own["bias"] += gradients["bias"]
        return own

    gradients = {
        name: jnp.zeros(inputs[name].shape, jnp.float32)
        for name in ("hidden", "weight", "bias")
        if name in inputs
    }
    gradients = lax.fori_loop(0, whole, lambda i, carry: step(i * wave, wave, carry), gradients)
    return step(jnp.int32(whole * wave), left, gradients) if left else gradients
