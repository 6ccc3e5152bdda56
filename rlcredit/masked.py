"""Reductions over the tokens that the policy chose.

Every function selects before it reduces, so that nan or inf under the mask changes neither value
nor gradient, and gives 0 where nothing is selected.
"""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.types import Array

Axis = int | tuple[int, ...] | None


def count(mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Number of True entries, in float32 (exact up to 2**24) whatever the dtype of the data."""
    return jnp.sum(mask, axis=axis, keepdims=keepdims, dtype=jnp.float32)


def sum(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Sum of `x` where `mask`, in float32."""
    selected = jnp.where(mask, x, 0).astype(jnp.float32)
    return jnp.sum(selected, axis=axis, keepdims=keepdims)


def mean(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean of `x` where `mask`; 0 where the mask is empty."""
    return sum(x, mask, axis, keepdims) / jnp.maximum(count(mask, axis, keepdims), 1)


def max(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest `x` where `mask`; 0 where the mask is empty."""
    top = jnp.max(x, axis=axis, keepdims=keepdims, where=mask, initial=-jnp.inf)
    return jnp.where(jnp.any(mask, axis=axis, keepdims=keepdims), top, 0)


def min(x: Array, mask: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest `x` where `mask`; 0 where the mask is empty."""
    return -max(-x, mask, axis, keepdims)


def center(x: Array, mask: Array, axis: Axis = None) -> Array:
    """`x` minus its mean where `mask`, 0 elsewhere; exactly 0 where all selected entries are equal.

    The rounding error of a float32 mean would otherwise leave a residue that a division by a tiny
    deviation turns into an advantage near 1.
    """
    x = jnp.where(mask, x, 0)
    varied = max(x, mask, axis, True) > min(x, mask, axis, True)
    return jnp.where(mask & varied, x - mean(x, mask, axis, True), 0)


def std(
    x: Array, mask: Array, axis: Axis = None, keepdims: bool = False, *, sample: bool = False
) -> Array:
    """Standard deviation where `mask`: the population's, or with `sample` the n - 1 one.

    0 for fewer than two entries. The gradient is finite everywhere, 0 where all entries are equal.
    """
    total = jnp.sum(jnp.square(center(x, mask, axis)), axis=axis, keepdims=keepdims)
    variance = total / jnp.maximum(count(mask, axis, keepdims) - sample, 1)
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1)), 0)


def whiten(x: Array, mask: Array, *, eps: float = 1e-8) -> Array:
    """`(x - mean) / (std + eps)` over all selected entries, population std; 0 off the mask.

    A single or constant selection gives exactly 0. Whitening is apart from every credit rule, so
    that raw credit can be looked at; an experiment applies it in sight.
    """
    return center(x, mask) / (std(x, mask) + eps)
