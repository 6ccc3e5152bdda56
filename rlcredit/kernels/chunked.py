"""Log-probability and entropy over a large vocabulary, a piece of the logits at a time.

One pass over pieces of the vocabulary keeps four numbers a token: the largest logit so far, the
sums of exp and of exp * logit under it, and the logit of the chosen token. From them

    lse = log sum exp z,  E[z] = sum softmax(z) z,  log_prob = z[token] - lse,  entropy = lse - E[z]

and lse and E[z] are all that the backward pass needs beside its inputs: any loss of log_prob and
entropy has

    dz = g_log_prob * (1[token] - p) - g_entropy * p * (z - E[z]),  p = exp(z - lse),

which is computed again piece by piece. So no array of the size [tokens, vocabulary] ever exists.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlcredit.kernels.platform import platform
from rlcredit.types import Array

# Stands for -inf: exp of it is 0, and unlike -inf its product with 0 is 0 in value and gradient.
FORBIDDEN = -1e30
# Columns of a piece: with fewer the hidden states are read too often, with more a piece is no
# longer small; and numbers in a piece, 64 MB, which bounds it where there are many tokens.
_MOST_COLUMNS, _LEAST_COLUMNS, _MOST_NUMBERS = 4096, 512, 2**24
_GPU_COLUMNS = 2048  # enough to keep it busy, and its compiler holds three pieces at a time


class _Head(NamedTuple):
    """What turns hidden states into logits."""

    weight: Array  # [H, V]
    bias: Array | None  # [V]
    legal: Array | None  # [N, V] bool


def token_log_prob_chunked(
    hidden: Array,
    head: Array,
    tokens: Array,
    *,
    temperature: float = 1.0,
    bias: Array | None = None,
    legal: Array | None = None,
    columns: int | None = None,
    rows: int = 8192,
) -> tuple[Array, Array]:
    """As `token_log_prob`, for hidden [N, H]; gradients flow to hidden, head and bias.

    Args:
      columns: of a piece of the vocabulary; by default chosen from N and V, if there is one that
        divides V near what fits.
      rows: more tokens come in waves of so many, for each piece adds to the gradient of all hidden
        states of a wave, and each wave to that of the head.
    """
    count = hidden.shape[0]
    rows = min(count, rows)
    size = columns or piece_of(rows, head.shape[1])

    def wave(of_rows: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
        hidden, tokens, legal = of_rows
        return _chunked(temperature, size, hidden, _Head(head, bias, legal), tokens)

    of_rows, whole = (hidden, tokens, legal), count // rows * rows
    if count == rows:
        return wave(of_rows)
    first = jax.tree.map(lambda a: a[:whole].reshape(-1, rows, *a.shape[1:]), of_rows)
    results = jax.tree.map(jnp.ravel, lax.map(wave, first))
    if whole == count:
        return results
    rest = wave(jax.tree.map(lambda a: a[whole:], of_rows))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), results, rest)


def piece_of(tokens: int, vocabulary: int) -> int:
    """Columns of a piece: the largest divisor of V that fits, or what fits if that is far off."""
    most = min(_MOST_COLUMNS, _MOST_NUMBERS // max(tokens, 1))
    fits = min(vocabulary, max(_LEAST_COLUMNS, most))
    if platform() == "gpu":
        fits = min(vocabulary, _GPU_COLUMNS)
    divisors = [d for d in _divisors(vocabulary) if d <= fits]
    return divisors[-1] if 4 * divisors[-1] >= fits else fits


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked(temperature: float, size: int, hidden: Array, head: _Head, tokens: Array):
    return _forward(temperature, size, hidden, head, tokens)[0]


def _forward(temperature: float, size: int, hidden: Array, head: _Head, tokens: Array):
    count, vocabulary = hidden.shape[0], head.weight.shape[1]
    zeros = jnp.zeros(count, jnp.float32)
    carry = (jnp.full(count, 2 * FORBIDDEN), zeros, zeros, zeros)

    def piece(carry: tuple, start: Array, columns: int) -> tuple:
        top, total, weighted, target = carry
        z, chosen = _logits(temperature, hidden, head, tokens, start, columns)
        higher = jnp.maximum(top, jnp.max(z, axis=1))
        shrink, shift = jnp.exp(top - higher), top - higher
        weights = jnp.exp(z - higher[:, None])
        # `weighted` is of z - top, so that large logits do not cancel.
        weighted = shrink * (weighted + shift * total) + jnp.sum(
            weights * (z - higher[:, None]), axis=1
        )
        total = shrink * total + jnp.sum(weights, axis=1)
        return higher, total, weighted, target + jnp.sum(jnp.where(chosen, z, 0), axis=1)

    top, total, weighted, target = over_pieces(piece, carry, vocabulary, size)
    log_total = jnp.log(total)
    mean = weighted / total
    log_prob = jnp.minimum((target - top) - log_total, 0)
    entropy = jnp.maximum(log_total - mean, 0)
    return (log_prob, entropy), (hidden, head, tokens, top, log_total, mean)


def _backward(temperature: float, size: int, residuals: tuple, cotangents: tuple):
    hidden, head, tokens, top, log_total, mean = residuals
    g_log_prob, g_entropy = (g.astype(jnp.float32)[:, None] for g in cotangents)
    bias = None if head.bias is None else jnp.zeros(head.bias.shape, jnp.float32)
    carry = (
        jnp.zeros(hidden.shape, jnp.float32),
        jnp.zeros(head.weight.shape, head.weight.dtype),
        bias,
    )

    def piece(carry: tuple, start: Array, columns: int) -> tuple:
        d_hidden, d_weight, d_bias = carry
        z, chosen = _logits(temperature, hidden, head, tokens, start, columns)
        relative = z - top[:, None]
        p = jnp.exp(relative - log_total[:, None])
        dz = g_log_prob * (chosen - p) - g_entropy * p * (relative - mean[:, None])
        if head.legal is not None:
            dz = jnp.where(columns_of(head.legal, start, columns), dz, 0)
        da = dz / temperature
        operand = da.astype(hidden.dtype)
        weight = columns_of(head.weight, start, columns).astype(hidden.dtype)
        d_hidden += product(operand, weight.T)
        own = product(hidden.T, operand)
        own = own.astype(d_weight.dtype)
        d_weight = lax.dynamic_update_slice_in_dim(d_weight, own, start, axis=1)
        if d_bias is not None:
            d_bias = lax.dynamic_update_slice_in_dim(d_bias, jnp.sum(da, axis=0), start, axis=0)
        return d_hidden, d_weight, d_bias

    d_hidden, d_weight, d_bias = over_pieces(piece, carry, head.weight.shape[1], size)
    if d_bias is not None:
        d_bias = d_bias.astype(head.bias.dtype)
    no_gradient = np.zeros(tokens.shape, jax.dtypes.float0)
    legal = None if head.legal is None else np.zeros(head.legal.shape, jax.dtypes.float0)
    return d_hidden.astype(hidden.dtype), _Head(d_weight, d_bias, legal), no_gradient


_chunked.defvjp(_forward, _backward)


def over_pieces(piece, carry: tuple, vocabulary: int, size: int) -> tuple:
    """`piece(carry, start, columns)` over the vocabulary; what is left over is a last one."""
    whole = vocabulary // size

    def step(number: Array, carry: tuple) -> tuple:
        return piece(carry, number * size, size)

    carry = lax.fori_loop(0, whole, step, carry)
    left = vocabulary - whole * size
    return piece(carry, jnp.int32(whole * size), left) if left else carry


def _logits(temperature, hidden: Array, head: _Head, tokens: Array, start, columns: int):
    """(z [N, columns] float32, where they are those of `tokens`)."""
    weight = columns_of(head.weight, start, columns).astype(hidden.dtype)
    z = product(hidden, weight)
    if head.bias is not None:
        z += columns_of(head.bias[None], start, columns).astype(jnp.float32)
    z = z / temperature
    if head.legal is not None:
        z = jnp.where(columns_of(head.legal, start, columns), z, FORBIDDEN)
    column = lax.broadcasted_iota(jnp.int32, z.shape, 1) + start
    return z, column == tokens[:, None]


def product(left: Array, right: Array) -> Array:
    """left @ right in float32, whose operands of float32 no accelerator is to round.

    By default a TPU would, and the logits that a token is drawn from would not be those of the
    kernels that score it.
    """
    return jnp.matmul(
        left, right, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def columns_of(array: Array, start: Array, columns: int) -> Array:
    """Columns start..start + columns - 1."""
    return lax.dynamic_slice_in_dim(array, start, columns, axis=1)
