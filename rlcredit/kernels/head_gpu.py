"""Log-probability and entropy over a large vocabulary on Hopper GPUs.

The equations of `chunked` for bfloat16 operands. The forward kernel never writes a logit: blocks
share the vocabulary among them, each keeps the four numbers a token of its part, and the parts are
put together at the end. The backward pass goes through pieces of the vocabulary: a kernel writes
the gradient of a piece of the logits in bfloat16, and two matrix products take it from there.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlcredit.kernels.chunked import columns_of, over_pieces
from rlcredit.types import Array, InputError

_MULTIPLE = 128  # of rows and columns: a tile
# Columns of a piece of the logits' gradient: fewer cost less memory; with more rows, more of them,
# for each piece adds to the gradient of all hidden states.
_LEAST_COLUMNS, _MOST_COLUMNS = 2048, 8192


def supported(hidden: Array, head: Array, legal: Array | None = None) -> bool:
    """Whether there is a kernel: bfloat16, H a multiple of 64, V of 128, no legal mask, JAX 0.11.

    The multiples are what the copy engine asks for: other heads would have to be copied. Whether
    the device is one (Hopper, compute capability 9.0) is the caller's to know.
    """
    width, vocabulary = head.shape
    half = hidden.dtype == head.dtype == jnp.bfloat16
    fits = width % 64 == 0 and vocabulary % _MULTIPLE == 0
    return half and fits and legal is None and jax.__version_info__ >= (0, 11)


def token_log_prob_gpu(
    hidden: Array,
    head: Array,
    tokens: Array,
    *,
    temperature: float = 1.0,
    bias: Array | None = None,
    legal: Array | None = None,
) -> tuple[Array, Array]:
    """As `token_log_prob_chunked`, for what is `supported`.

    Products are summed in float32. The gradient of the logits is rounded to bfloat16 before it is
    multiplied, as in `chunked`.

    Returns: (log_prob, entropy), both [N] float32.
    Raises: InputError for what is not supported.
    """
    if not supported(hidden, head, legal):
        raise InputError(
            f"no GPU kernel takes hidden {hidden.dtype}{hidden.shape} and head {head.dtype}"
            f"{head.shape}{'' if legal is None else ' with a legal mask'}: see `supported`"
        )
    count = tokens.shape[0]
    more = -count % _MULTIPLE
    operands = {
        "hidden": jnp.pad(hidden, ((0, more), (0, 0))),
        "weight": head,
        "tokens": jnp.pad(tokens, (0, more)),
    }
    if bias is not None:
        operands["bias"] = bias.astype(jnp.float32)
    log_prob, entropy = _fused(temperature, operands)
    return log_prob[:count], entropy[:count]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(temperature: float, operands: dict):
    return _forward(temperature, operands)[0]


def _forward(temperature: float, operands: dict):
    from rlcredit.kernels.head_gpu_kernels import forward_kernel

    tops, totals, weighteds, targets = forward_kernel(temperature, operands)
    top = jnp.max(tops, axis=0)
    shift = tops - top[None]
    shrink = jnp.exp(shift)
    total = jnp.sum(shrink * totals, axis=0)
    mean = jnp.sum(shrink * (weighteds + shift * totals), axis=0) / total
    log_total = jnp.log(total)
    log_prob = jnp.minimum((jnp.sum(targets, axis=0) - top) - log_total, 0)
    entropy = jnp.maximum(log_total - mean, 0)
    return (log_prob, entropy), (operands, {"top": top, "log_total": log_total, "mean": mean})


def _backward(temperature: float, residuals: tuple, cotangents: tuple):
    from rlcredit.kernels.head_gpu_kernels import backward_kernel

    operands, numbers = residuals
    hidden, weight, bias = operands["hidden"], operands["weight"], operands.get("bias")
    inputs = operands | numbers | dict(zip(("g_log_prob", "g_entropy"), cotangents, strict=True))

    def piece(gradients: dict, start: Array, columns: int) -> dict:
        part = columns_of(weight, start, columns)
        own = inputs | {"weight": part, "tokens": inputs["tokens"] - start}
        if bias is not None:
            own["bias"] = lax.dynamic_slice_in_dim(bias, start, columns)
        da = backward_kernel(temperature, own)
        d_weight = _product(hidden, da, 0, 0).astype(weight.dtype)
        update = functools.partial(lax.dynamic_update_slice_in_dim, start_index=start, axis=-1)
        new = {
            "hidden": gradients["hidden"] + _product(da, part, 1, 1),
            "weight": update(gradients["weight"], d_weight),
        }
        if bias is not None:
            new["bias"] = update(gradients["bias"], jnp.sum(da, axis=0, dtype=jnp.float32))
        return new

    gradients = {"hidden": jnp.zeros(hidden.shape, jnp.float32), "weight": jnp.zeros_like(weight)}
    if bias is not None:
        gradients["bias"] = jnp.zeros_like(bias)
    columns = _columns_of_piece(*hidden.shape[:1], weight.shape[1])
    gradients = over_pieces(piece, gradients, weight.shape[1], columns)
    gradients["hidden"] = gradients["hidden"].astype(hidden.dtype)
    gradients["tokens"] = np.zeros(operands["tokens"].shape, jax.dtypes.float0)
    return (gradients,)


_fused.defvjp(_forward, _backward)


def _columns_of_piece(rows: int, vocabulary: int) -> int:
    """Half the rows, within bounds, and a multiple of a tile as both are."""
    columns = min(max(_LEAST_COLUMNS, rows // 2), _MOST_COLUMNS, vocabulary)
    return columns // _MULTIPLE * _MULTIPLE


def _product(left: Array, right: Array, of_left: int, of_right: int) -> Array:
    """Their product over one axis of each, summed in float32."""
    contracted = (((of_left,), (of_right,)), ((), ()))
    return lax.dot_general(left, right, contracted, preferred_element_type=jnp.float32)
