"""Recursions backwards in time over the chosen tokens of a row.

All work on the last axis of arrays `[..., T]`. A position that the policy did not choose carries
the running value through unchanged and gives 0 itself: one discount and one lambda per chosen
token, however many observation tokens lie between two of them. `ends` is True at the last chosen
token of an episode; nothing flows across it, so several episodes may share a row.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

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

    def backward(following, inputs):
        x_t, decay_t = inputs
        y_t = x_t + decay_t * following
        return y_t, y_t

    time_major = [jnp.moveaxis(a.astype(jnp.float32), -1, 0) for a in (x, decay)]
    start = jnp.broadcast_to(jnp.asarray(initial, jnp.float32), x.shape[:-1])
    _, y = jax.lax.scan(backward, start, tuple(time_major), reverse=True)
    return jnp.moveaxis(y, 0, -1)


def last_chosen(mask: Array) -> Array:
    """[..., T] bool, True at the last chosen token of each row and nowhere in an empty row."""
    later = jnp.cumsum(mask[..., ::-1], axis=-1, dtype=jnp.int32)[..., ::-1]
    return mask & (later == 1)


def next_value(value: Array, mask: Array, length: Array, terminated: Array) -> Array:
    """The value after each chosen token: that before the next chosen one of the same episode.

    After the last chosen token it is 0 if the episode terminated, else `value[length]`, the value
    of all that was read, observations after the last choice included.

    Args:
      value: [..., T + 1] value of every prefix.
      mask: [..., T]; length, terminated: [...].
    Returns: [..., T] float32; 0 off the mask.
    """
    chex.assert_equal(value.shape, (*mask.shape[:-1], mask.shape[-1] + 1))
    final = jnp.take_along_axis(value, length[..., None], axis=-1)[..., 0]
    final = jnp.where(terminated, 0, final)
    following = reverse_affine(jnp.where(mask, value[..., :-1], 0), ~mask, final)
    shifted = jnp.concatenate([following[..., 1:], final[..., None]], axis=-1)
    return jnp.where(mask, shifted, 0)


def discounted_return(reward: Array, mask: Array, ends: Array, *, discount: float) -> Array:
    """G[t] = reward[t] + discount * G[next chosen t], cut at `ends`.

    Args: reward, mask, ends: [..., T].
    Returns: [..., T] float32; 0 off the mask.
    """
    return _over_chosen(reward, discount, mask, ends)


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    mask: Array,
    ends: Array,
    *,
    discount: float | Array,
    lambda_: float,
) -> Array:
    """Generalised advantage estimation over chosen tokens.

    delta[t] = reward[t] + discount * next_value[t] - value[t]
    A[t]     = delta[t] + discount * lambda_ * A[next chosen t], cut at `ends`

    Schulman et al., 2015, arXiv 1506.02438.

    Args:
      discount: one for all, or one of each token, [..., T].
      reward, value, next_value, mask, ends: [..., T]; `next_value` is 0 after a terminal token and
        the value of the final observation of the same episode after a truncated one.
    Returns: [..., T] float32; 0 off the mask.
    """
    delta = reward + discount * next_value - value
    return _over_chosen(delta, discount * lambda_, mask, ends)


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
