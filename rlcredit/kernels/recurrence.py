"""Recursions along the last axis of rows: affine ones, running sums and maxima.

The forms that they take on each platform are in `recurrence_forms`; GAE is in `gae`.
"""

from __future__ import annotations

import functools

import chex
import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.platform import platform
from rlcredit.kernels.recurrence_forms import affine_in_passes, in_rows, over_time, scan_kernel
from rlcredit.kernels.recurrence_pairs import reverse_affine_by
from rlcredit.types import Array


def reverse_affine(x: Array, decay: Array, initial: Array | float = 0.0) -> Array:
    """y[t] = x[t] + decay[t] * y[t + 1], with y[T] = initial.

    Args:
      x: [..., T] what each position adds.
      decay: [..., T] how much of what follows it keeps.
      initial: [...] the value after the last position.
    Returns: [..., T] float32.
    """
    chex.assert_equal_shape([x, decay])
    x, decay = x.astype(jnp.float32), decay.astype(jnp.float32)
    start = jnp.broadcast_to(jnp.asarray(initial, jnp.float32), x.shape[:-1])
    if platform() == "cpu":
        return over_time(_affine, start, x, decay, reverse=True)
    scan = scan_kernel()
    if scan is None:
        return affine_in_passes(x, decay, start)
    kernel = functools.partial(reverse_affine_by, scan)
    return in_rows(kernel, affine_in_passes, x.ndim, x, decay, start)


def next_chosen(value: Array, mask: Array, final: Array) -> Array:
    """The value at the next chosen position, `final` behind the last one; 0 off the mask.

    Args: value, mask: [..., T]; final: [...].
    Returns: [..., T] float32.
    """
    return jnp.where(mask, next_at(value, mask, final), 0)


def next_at(x: Array, at: Array, final: Array) -> Array:
    """The entry at the next of the positions `at`, later than each one; `final` behind the last.

    Args: x, at: [..., T]; final: [...].
    Returns: [..., T] float32.
    """
    following = reverse_affine(jnp.where(at, x, 0), ~at, final)
    return jnp.concatenate([following[..., 1:], final[..., None].astype(jnp.float32)], axis=-1)


def latest(x: Array, at: Array) -> Array:
    """The entry at the latest of the positions `at`, each one itself included; 0 before the first.

    Args: x, at: [..., T].
    """
    if platform() == "cpu":
        return over_time(_newer, jnp.zeros(x.shape[:-1], x.dtype), x, at)
    place = lax.cummax(jnp.where(at, jnp.arange(x.shape[-1]), -1), axis=x.ndim - 1)
    return jnp.where(place < 0, 0, jnp.take_along_axis(x, jnp.maximum(place, 0), axis=-1))


def running_sum(x: Array, *, reverse: bool = False) -> Array:
    """The sum of all entries up to each one along the last axis; `reverse`: of those from it on.

    Returns: [..., T] of the dtype of `x`, int32 for a bool one.
    """
    x = x.astype(jnp.int32) if x.dtype == bool else x
    if platform() != "cpu":
        return lax.cumsum(x, axis=x.ndim - 1, reverse=reverse)
    return over_time(_sum, jnp.zeros(x.shape[:-1], x.dtype), x, reverse=reverse)


def running_max(x: Array) -> Array:
    """The largest of all entries up to each one along the last axis."""
    if platform() != "cpu":
        return lax.cummax(x, axis=x.ndim - 1)
    return over_time(_max, x[..., 0], x)


def _affine(following: Array, x: Array, decay: Array) -> tuple[Array, Array]:
    following = x + decay * following
    return following, following


def _sum(total: Array, x: Array) -> tuple[Array, Array]:
    return total + x, total + x


def _max(top: Array, x: Array) -> tuple[Array, Array]:
    top = jnp.maximum(top, x)
    return top, top


def _newer(old: Array, x: Array, at: Array) -> tuple[Array, Array]:
    new = jnp.where(at, x, old)
    return new, new
