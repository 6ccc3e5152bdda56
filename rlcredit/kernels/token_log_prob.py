"""Log-probability and entropy of tokens from the last hidden states."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlcredit.kernels.chunked import FORBIDDEN, product, token_log_prob_chunked
from rlcredit.kernels.platform import on_hopper, platform
from rlcredit.sharding import over_rows
from rlcredit.types import Array

LARGE = 4096  # vocabulary from which on pieces are worth their loop


def token_log_prob(
    hidden: Array,
    head: Array,
    tokens: Array,
    *,
    temperature: float = 1.0,
    bias: Array | None = None,
    legal: Array | None = None,
) -> tuple[Array, Array]:
    """log pi(token) and the entropy of pi = softmax((hidden @ head + bias) / temperature).

    From `LARGE` tokens of vocabulary on the logits are never held as a whole: on a TPU a kernel
    keeps them in vector memory, so does one on Hopper GPUs where there is one for the operands
    (`head_gpu.supported`), and elsewhere they come in pieces (`chunked`).

    Args:
      hidden: [..., H] the states that predict `tokens`, any float dtype.
      head: [H, V]; bias: [V]; tokens: [...] int32 in [0, V).
      legal: [..., V] bool; the others get probability 0. A row without a legal token is uniform.
    Returns: (log_prob, entropy), both [...] float32.
    """
    if head.shape[1] >= LARGE:
        rows = {"hidden": hidden.reshape(-1, hidden.shape[-1]), "tokens": tokens.reshape(-1)}
        if legal is not None:
            rows["legal"] = legal.reshape(-1, legal.shape[-1])
        shared = {"head": head} | ({} if bias is None else {"bias": bias})

        def fused(kernel: Callable, rows: dict, shared: dict) -> tuple[Array, Array]:
            return kernel(**rows, **shared, temperature=temperature)

        kernel = functools.partial(fused, _kernel(rows["hidden"], head, legal))
        plain = functools.partial(fused, token_log_prob_chunked)
        of_rows = over_rows(kernel, plain, rows, shared)
        return tuple(array.reshape(tokens.shape) for array in of_rows)
    return log_prob_and_entropy(logits(hidden, head, temperature, legal, bias), tokens)


def _kernel(hidden: Array, head: Array, legal: Array | None) -> Callable:
    """What takes these operands on this platform; imported here, for Pallas takes a while."""
    if platform() == "tpu":
        from rlcredit.kernels.head_tpu import token_log_prob_tpu

        return token_log_prob_tpu
    if on_hopper():
        from rlcredit.kernels.head_gpu import supported, token_log_prob_gpu

        if supported(hidden, head, legal):
            return token_log_prob_gpu
    return token_log_prob_chunked


def logits(
    hidden: Array,
    head: Array,
    temperature: float = 1.0,
    legal: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """[..., V] float32 logits at `temperature`, `FORBIDDEN` where not legal."""
    raw = product(hidden, head.astype(hidden.dtype))
    if bias is not None:
        raw += bias.astype(jnp.float32)[(None,) * (raw.ndim - 1)]
    scaled = raw / temperature
    return scaled if legal is None else jnp.where(legal, scaled, FORBIDDEN)


def log_prob_and_entropy(logits: Array, tokens: Array) -> tuple[Array, Array]:
    """The same from logits [..., V]; -inf counts as forbidden, with a gradient of 0.

    H = - sum p log p with log p = z - log sum exp z. log_prob is never above 0.
    """
    return _of_logits(logits.astype(jnp.float32), tokens)


@jax.custom_vjp
def _of_logits(logits: Array, tokens: Array) -> tuple[Array, Array]:
    return forward(logits, tokens)[0]


def forward(logits: Array, tokens: Array) -> tuple[tuple[Array, Array], tuple]:
    """((log_prob, entropy), what `backward` needs) of float32 logits [..., V]."""
    logits = jnp.maximum(logits, FORBIDDEN)
    top = jnp.max(logits, axis=-1)
    relative = logits - top[..., None]
    log_p = relative - jnp.log(jnp.sum(jnp.exp(relative), axis=-1, keepdims=True))
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    log_prob = jnp.take_along_axis(log_p, tokens[..., None], axis=-1, mode="clip")[..., 0]
    return (jnp.minimum(log_prob, 0), entropy), (log_p, tokens, top, entropy)


def backward(residuals: tuple, cotangents: tuple) -> tuple[Array, np.ndarray]:
    """dz = g_log_prob (1[token] - p) - g_entropy p (log p + H), 0 where forbidden"""
    log_p, tokens, top, entropy = residuals
    g_log_prob, g_entropy = cotangents
    constant = g_log_prob + g_entropy * entropy
    pull = jnp.exp(log_p) * (constant[..., None] + g_entropy[..., None] * log_p)
    dz = jnp.where(_chosen(log_p, tokens), g_log_prob[..., None], 0) - pull
    # In a row where nothing is allowed log_p is that of a uniform choice.
    allowed = (log_p > FORBIDDEN / 2) & (top > FORBIDDEN)[..., None]
    return jnp.where(allowed, dz, 0), np.zeros(tokens.shape, jax.dtypes.float0)


_of_logits.defvjp(forward, backward)


def _chosen(log_p: Array, tokens: Array) -> Array:
    # Where a comparison stands, autodiff of the gather has a scatter.
    return lax.broadcasted_iota(jnp.int32, log_p.shape, log_p.ndim - 1) == tokens[..., None]
