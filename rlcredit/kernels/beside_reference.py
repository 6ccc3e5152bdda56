"""The head of a policy beside that of a reference: both log-probabilities and the exact KL.

One pass over pieces of the vocabulary, as in `chunked`, keeps for the policy p and the reference q
the largest logit and the sums that follow from it, and the one that both share, E_p[z_q]. With them

    kl = KL(p || q) = sum over the vocabulary of p (log p - log q)

of every token's distribution, not an estimate from the token that was drawn. Its gradient is
p (log p - log q - kl), so the backward pass needs both logits again and no more numbers.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlcredit.kernels.chunked import FORBIDDEN, columns_of, over_pieces, piece_of, product
from rlcredit.types import Array


class BesideReference(NamedTuple):
    """Of every token, [N] float32 each."""

    log_prob: Array
    entropy: Array
    ref_log_prob: Array
    kl: Array  # KL(policy || reference) over the whole vocabulary


class _Sums(NamedTuple):
    """Under the largest logits so far; [N] each."""

    top: Array
    total: Array
    weighted: Array  # of exp(z - top) * (z - top)
    target: Array
    ref_top: Array
    ref_total: Array
    ref_target: Array
    cross: Array  # of exp(z - top) * (ref_z - ref_top)


def token_log_prob_beside_reference(
    hidden: Array,
    head: Array,
    tokens: Array,
    ref_hidden: Array,
    ref_head: Array,
    *,
    temperature: float = 1.0,
    columns: int | None = None,
) -> BesideReference:
    """What a policy and a reference say of `tokens`, and how far they are apart.

    Gradients flow to `hidden` and `head`, from `log_prob`, `entropy` and `kl`; the reference has
    none.

    Args:
      hidden, ref_hidden: [N, H] and [N, G] the states that predict `tokens`, any float dtype.
      head, ref_head: [H, V] and [G, V]; tokens: [N] int32 in [0, V).
      temperature: of both.
      columns: of a piece of the vocabulary; by default as in `chunked`.
    """
    size = columns or piece_of(hidden.shape[0], head.shape[1])
    reference = jax.tree.map(lax.stop_gradient, (ref_hidden, ref_head))
    return BesideReference(*_beside(temperature, size, hidden, head, tokens, reference))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _beside(temperature: float, size: int, hidden, head, tokens, reference):
    return _forward(temperature, size, hidden, head, tokens, reference)[0]


def _forward(temperature: float, size: int, hidden, head, tokens, reference):
    zeros = jnp.zeros(hidden.shape[0], jnp.float32)
    least = jnp.full_like(zeros, 2 * FORBIDDEN)
    start = _Sums(least, zeros, zeros, zeros, least, zeros, zeros, zeros)

    def piece(sums: _Sums, first: Array, columns: int) -> _Sums:
        z = _logits(temperature, hidden, head, first, columns)
        ref_z = _logits(temperature, *reference, first, columns)
        return _add(sums, z, ref_z, _chosen(z, tokens, first))

    sums = over_pieces(piece, start, head.shape[1], size)
    log_total, ref_log_total = jnp.log(sums.total), jnp.log(sums.ref_total)
    mean, ref_mean = sums.weighted / sums.total, sums.cross / sums.total
    results = (
        jnp.minimum((sums.target - sums.top) - log_total, 0),
        jnp.maximum(log_total - mean, 0),
        jnp.minimum((sums.ref_target - sums.ref_top) - ref_log_total, 0),
        jnp.maximum((mean - log_total) - (ref_mean - ref_log_total), 0),
    )
    lse = (sums.top, log_total, sums.ref_top, ref_log_total)
    return results, (hidden, head, tokens, reference, lse, results[1], results[3])


def _add(sums: _Sums, z: Array, ref_z: Array, chosen: Array) -> _Sums:
    """One piece on."""
    top, ref_top = (
        jnp.maximum(sums.top, z.max(axis=1)),
        jnp.maximum(sums.ref_top, ref_z.max(axis=1)),
    )
    shift, ref_shift = sums.top - top, sums.ref_top - ref_top
    shrink = jnp.exp(shift)
    relative, ref_relative = z - top[:, None], ref_z - ref_top[:, None]
    weights = jnp.exp(relative)
    return _Sums(
        top=top,
        total=shrink * sums.total + weights.sum(axis=1),
        weighted=shrink * (sums.weighted + shift * sums.total) + (weights * relative).sum(axis=1),
        target=sums.target + jnp.where(chosen, z, 0).sum(axis=1),
        ref_top=ref_top,
        ref_total=jnp.exp(ref_shift) * sums.ref_total + jnp.exp(ref_relative).sum(axis=1),
        ref_target=sums.ref_target + jnp.where(chosen, ref_z, 0).sum(axis=1),
        cross=shrink * (sums.cross + ref_shift * sums.total) + (weights * ref_relative).sum(axis=1),
    )


def _backward(temperature: float, size: int, residuals: tuple, cotangents: tuple):
    """dz = g_log_prob (1[token] - p) - g_entropy p (log p + H) + g_kl p (log p - log q - kl)"""
    hidden, head, tokens, reference, lse, entropy, kl = residuals
    top, log_total, ref_top, ref_log_total, entropy, kl = (a[:, None] for a in (*lse, entropy, kl))
    g_log_prob, g_entropy, _, g_kl = (g.astype(jnp.float32)[:, None] for g in cotangents)

    def piece(carry: tuple[Array, Array], first: Array, columns: int) -> tuple[Array, Array]:
        d_hidden, d_head = carry
        z = _logits(temperature, hidden, head, first, columns)
        log_p = (z - top) - log_total
        log_q = (_logits(temperature, *reference, first, columns) - ref_top) - ref_log_total
        p = jnp.exp(log_p)
        dz = g_log_prob * (_chosen(z, tokens, first) - p) - g_entropy * p * (log_p + entropy)
        dz += g_kl * p * (log_p - log_q - kl)
        da = (dz / temperature).astype(hidden.dtype)
        part = columns_of(head, first, columns).astype(hidden.dtype)
        d_hidden += product(da, part.T)
        own = product(hidden.T, da).astype(d_head.dtype)
        return d_hidden, lax.dynamic_update_slice_in_dim(d_head, own, first, axis=1)

    start = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(head))
    d_hidden, d_head = over_pieces(piece, start, head.shape[1], size)
    nothing = np.zeros(tokens.shape, jax.dtypes.float0)
    return d_hidden.astype(hidden.dtype), d_head, nothing, None


_beside.defvjp(_forward, _backward)


def _logits(temperature: float, hidden: Array, head: Array, first, columns: int) -> Array:
    part = columns_of(head, first, columns).astype(hidden.dtype)
    return product(hidden, part) / temperature


def _chosen(z: Array, tokens: Array, first) -> Array:
    return lax.broadcasted_iota(jnp.int32, z.shape, 1) + first == tokens[:, None]
