"""Samples relative to their group where some count more than others."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array


def center(x: Array, weight: Array, member: Array) -> Array:
    """x - sum(weight * x) / sum(weight) over the members of a group, the plain mean where all
    weights are 0; 0 for the others, exactly 0 where all x are equal.

    Args: x, weight, member: [N, K, ...]; the group is axis 1.
    """
    centered = masked.center(x, member, axis=1)  # first: equal entries then give exactly 0
    mean = jnp.sum(_share(weight, member) * centered, axis=1, keepdims=True)
    return jnp.where(member, centered - mean, 0)


def score(x: Array, weight: Array, member: Array, *, eps: float) -> Array:
    """`center` over the deviation about the same mean with the same weights, + eps."""
    centered = center(x, weight, member)
    variance = jnp.sum(_share(weight, member) * jnp.square(centered), axis=1, keepdims=True)
    return centered / (jnp.sqrt(variance) + eps)


def _share(weight: Array, member: Array) -> Array:
    weight = jnp.where(member, weight, 0)
    total = jnp.sum(weight, axis=1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)
