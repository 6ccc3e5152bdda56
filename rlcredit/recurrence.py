"""Recursions backwards in time over the chosen tokens of a row.

All work on the last axis of arrays `[..., T]`. A position that the policy did not choose carries
the running value through unchanged and gives 0 itself: one discount and one lambda per chosen
token, however many observation tokens lie between two of them. `ends` is True at the last chosen
token of an episode; nothing flows across it, so several episodes may share a row.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp

from rlcredit.kernels.gae import gae
from rlcredit.kernels.recurrence import (
    latest,
    next_at,
    next_chosen,
    reverse_affine,
    running_max,
    running_sum,
)
from rlcredit.types import Array

__all__ = [
    "discounted_return",
    "final_value",
    "gae",
    "lambda_return",
    "last_chosen",
    "latest",
    "next_at",
    "next_value",
    "reverse_affine",
    "running_max",
    "running_sum",
]


def last_chosen(mask: Array) -> Array:
    """[..., T] bool, True at the last chosen token of each row and nowhere in an empty row."""
    position = jnp.where(mask, jnp.arange(mask.shape[-1]), -1)
    return mask & (position == jnp.max(position, axis=-1, keepdims=True))


def final_value(value: Array, length: Array, terminated: Array) -> Array:
    """[...] the value behind the last chosen token: 0 if the episode terminated, else
    `value[length]`, that of all that was read, observations after the last choice included.

    Args: value: [..., T + 1] of every prefix; length, terminated: [...].
    """
    final = jnp.take_along_axis(value, length[..., None], axis=-1)[..., 0]
    return jnp.where(terminated, 0, final)


def next_value(value: Array, mask: Array, length: Array, terminated: Array) -> Array:
    """The value after each chosen token: that before the next chosen one, `final_value` behind the
    last.

    Args: value: [..., T + 1] of every prefix; mask: [..., T]; length, terminated: [...].
    Returns: [..., T] float32; 0 off the mask.
    """
    chex.assert_equal(value.shape, (*mask.shape[:-1], mask.shape[-1] + 1))
    return next_chosen(value[..., :-1], mask, final_value(value, length, terminated))


def discounted_return(reward: Array, mask: Array, ends: Array, *, discount: float) -> Array:
    """G[t] = reward[t] + discount * G[next chosen t], cut at `ends`.

    Args: reward, mask, ends: [..., T].
    Returns: [..., T] float32; 0 off the mask.
    """
    return _over_chosen(reward, discount, mask, ends)


def lambda_return(
    reward: Array,
    next_value: Array,
    mask: Array,
    ends: Array,
    *,
    discount: float,
    lambda_: float,
) -> Array:
    """G[t] = reward[t] + discount * ((1 - lambda_) * next_value[t] + lambda_ * G[next chosen t]).

    At `ends`, G[t] = reward[t] + discount * next_value[t]. Sutton, 1988 (the forward view).

    Args: reward, next_value, mask, ends: [..., T].
    Returns: [..., T] float32; 0 off the mask.
    """
    own_share = jnp.where(ends, 1.0, 1.0 - lambda_)
    return _over_chosen(reward + discount * own_share * next_value, discount * lambda_, mask, ends)


def _over_chosen(x: Array, decay: float | Array, mask: Array, ends: Array) -> Array:
    """`reverse_affine` that carries through unchosen positions and cuts at `ends`."""
    chex.assert_equal_shape([x, mask, ends])
    decay = jnp.where(mask, jnp.where(ends, 0.0, decay), 1.0)
    return jnp.where(mask, reverse_affine(jnp.where(mask, x, 0), decay), 0)
