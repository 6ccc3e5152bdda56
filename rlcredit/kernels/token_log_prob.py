"""Log-probability and entropy of tokens from the last hidden states."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.chunked import FORBIDDEN, token_log_prob_chunked
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

    From `LARGE` tokens of vocabulary on the logits are never held as a whole: see `chunked`.

    Args:
      hidden: [..., H] the states that predict `tokens`, any float dtype.
      head: [H, V]; bias: [V]; tokens: [...] int32 in [0, V).
      legal: [..., V] bool; the others get probability 0. A row without a legal token is uniform.
    Returns: (log_prob, entropy), both [...] float32.
    """
    if head.shape[1] >= LARGE:
        rows = hidden.reshape(-1, hidden.shape[-1])
        allowed = None if legal is None else legal.reshape(-1, legal.shape[-1])
        of_rows = token_log_prob_chunked(
            rows, head, tokens.reshape(-1), temperature=temperature, bias=bias, legal=allowed
        )
        return tuple(array.reshape(tokens.shape) for array in of_rows)
    return log_prob_and_entropy(logits(hidden, head, temperature, legal, bias), tokens)


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
        raw += bias.astype(jnp.float32)
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
