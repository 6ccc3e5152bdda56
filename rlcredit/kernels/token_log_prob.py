"""Log-probability and entropy of tokens from the last hidden states."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.chunked import FORBIDDEN, token_log_prob_chunked
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
    raw = jnp.matmul(hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    if bias is not None:
        raw += bias.astype(jnp.float32)[(None,) * (raw.ndim - 1)]
    scaled = raw / temperature
    return scaled if legal is None else jnp.where(legal, scaled, FORBIDDEN)


def log_prob_and_entropy(logits: Array, tokens: Array) -> tuple[Array, Array]:
    """The same from logits [..., V]; -inf counts as forbidden, with a gradient of 0.

    H = lse - E[z] with lse = log sum exp z. log_prob is never above 0.
    """
    z = jnp.maximum(logits.astype(jnp.float32), FORBIDDEN)
    z = z - lax.stop_gradient(jnp.max(z, axis=-1, keepdims=True))
    weights = jnp.exp(z)
    total = jnp.sum(weights, axis=-1)
    lse = jnp.log(total)
    # A comparison instead of a gather: its transpose is a select, not a scatter.
    chosen = lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1) == tokens[..., None]
    target = jnp.sum(jnp.where(chosen, z, 0), axis=-1)
    mean = jnp.sum(weights * z, axis=-1) / total
    return jnp.minimum(target - lse, 0), lse - mean
