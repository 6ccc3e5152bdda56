"""Which rows of a problem began with the same tokens, however they were sampled."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.types import Array, Rollout


def prefixes(rollout: Rollout) -> Array:
    """[N, K, T + 1] int32 in [0, K * (T + 1)): names `tokens[:t]`; equal where these are equal.

    A prefix is named by its length and the first row that begins with it.
    """
    samples, length = rollout.tokens.shape[1:]
    rows = jnp.arange(samples, dtype=jnp.int32)

    def longer(first: Array, token: Array) -> tuple[Array, Array]:
        """First rows [N, K] of the prefixes with one more token [N, K]."""
        same = (first[:, :, None] == first[:, None]) & (token[:, :, None] == token[:, None])
        lowest = jnp.min(jnp.where(same, rows[None, None], samples), axis=2)
        return lowest, lowest

    none = jnp.zeros(rollout.tokens.shape[:2], jnp.int32)
    _, first = jax.lax.scan(longer, none, jnp.moveaxis(rollout.tokens, -1, 0))
    first = jnp.concatenate([none[..., None], jnp.moveaxis(first, 0, -1)], axis=-1)
    return first * (length + 1) + jnp.arange(length + 1, dtype=jnp.int32)[None, None]
