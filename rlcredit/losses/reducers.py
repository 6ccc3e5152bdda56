"""How token losses become one number: the weight of every chosen token.

A reducer is `reduce(mask) -> weight`, [N, K, T] float32, 0 off the mask; the loss is the sum of
weight * token loss. Weights are made once for the whole optimiser batch, before it is split into
micro-batches or over devices, so no split changes loss or gradient. Episodes without a chosen token
add nothing and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array

Reducer = Callable[[Array], Array]


def token_mean(mask: Array) -> Array:
    """1 / (chosen tokens of the batch): every token counts alike, long episodes count more.

    The choice of DAPO, Yu et al., 2025, arXiv 2503.14476.
    """
    return _inverse(mask, masked.count(mask, keepdims=True))


def sequence_mean(mask: Array) -> Array:
    """1 / (episodes * tokens of the episode): every episode counts alike.

    A token of a long wrong answer is pushed down less than one of a short wrong answer. The choice
    of GRPO, Shao et al., 2024, arXiv 2402.03300.
    """
    length = masked.count(mask, axis=-1, keepdims=True)
    return _inverse(mask, length * masked.count(length > 0, keepdims=True))


def prompt_mean(mask: Array) -> Array:
    """1 / (problems * tokens of the problem's group): every problem counts alike."""
    tokens = masked.count(mask, axis=(1, 2), keepdims=True)
    return _inverse(mask, tokens * masked.count(tokens > 0, keepdims=True))


def constant_length(mask: Array) -> Array:
    """1 / (episodes * T): no token's weight depends on the length of any episode.

    The choice of Dr. GRPO, Liu et al., 2025, arXiv 2503.20783, with T, the length of a row, as the
    constant.
    """
    episodes = masked.count(jnp.any(mask, axis=-1, keepdims=True), keepdims=True)
    return _inverse(mask, mask.shape[-1] * episodes)


def _inverse(mask: Array, denominator: Array) -> Array:
    return jnp.where(mask, 1 / jnp.maximum(denominator, 1), 0)
