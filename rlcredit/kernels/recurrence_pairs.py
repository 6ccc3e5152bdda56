"""Recursions in time as one scan of pairs, which the kernels of both platforms run.

A scan is `scan(pair, out, arrays, initial) -> results`: with (x, decay) = pair(*arrays) and

    y[t] = x[t] + decay[t] * y[t + 1],  y[T] = initial,

the results are out(y[t + 1], *arrays) of every t. Arrays are [R, T] of float32, the last one may be
of int8; `initial` is [R]. A decay of 0 cuts, even where what follows is nan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax.numpy as jnp

from rlcredit.types import Array


def reverse_affine_by(scan: Callable, x: Array, decay: Array, initial: Array) -> Array:
    """y[t] = x[t] + decay[t] * y[t + 1], with y[T] = initial, by a `scan`.

    Args: x, decay: [R, T] float32; initial: [R] float32.
    """
    (y,) = scan(_affine_pair, _affine_out, (x, decay), initial)
    return y


def gae_by(
    scan: Callable,
    reward: Array,
    value: Array,
    mask: Array,
    final: Array,
    *,
    discount: float,
    lambda_: float,
    ends: Array | None = None,
    bootstrap: Array | None = None,
) -> tuple[Array, Array]:
    """Generalised advantage estimation and its returns over the chosen tokens, by a `scan`.

    returns[t]   = reward[t] + next[t]
    advantage[t] = returns[t] - value[t]
    next[t]      = discount * ((1 - lambda_) * value[n] + lambda_ * returns[n]), n the next chosen t
    next[last]   = discount * final

    which is advantage[t] = delta[t] + discount * lambda_ * advantage[n] of Schulman et al., 2015,
    arXiv 1506.02438, with delta[t] = reward[t] + discount * value[n] - value[t], in one running
    number a row: inputs are read once. At `ends` next[t] is discount * bootstrap[t].

    Args:
      reward, value: [R, T] float32; mask: [R, T] bool; final: [R] the value after the last one.
      ends: [R, T] bool, where an episode ends and another one follows in the row.
      bootstrap: [R, T] the value after each of `ends`, 0 if not given.
    Returns: (advantage, returns), both [R, T] float32, 0 off the mask. Nothing flows across `ends`,
      not even nan.
    """
    cut = ends is not None
    kind = jnp.where(mask, 1 + ends if cut else 1, 0).astype(jnp.int8)
    after = () if bootstrap is None else (bootstrap,)
    advantage, returns = scan(
        functools.partial(_gae_pair, discount, lambda_, cut),
        functools.partial(_gae_out, discount, cut),
        (reward, value, *after, kind),
        discount * final,
    )
    return advantage, returns


def _affine_pair(x: Array, decay: Array) -> tuple[Array, Array]:
    return x, decay


def _affine_out(following: Array, x: Array, decay: Array) -> tuple[Array]:
    # 0 * nan would be nan.
    return (jnp.where(decay != 0, x + decay * following, x),)


def _gae_pair(discount: float, lambda_: float, cut: bool, reward, value, *rest: Array) -> tuple:
    """(x, decay) of next[t - 1] = x + decay * next[t]."""
    *after, kind = rest
    zero, one = jnp.zeros_like(value), jnp.ones_like(value)
    decay = discount * lambda_ * one
    if cut:
        decay = jnp.where(kind == 2, zero, decay)
    if after:
        reward = jnp.where(kind == 2, reward + discount * after[0], reward)
    x = discount * ((1 - lambda_) * value + lambda_ * reward)
    return jnp.where(kind > 0, x, zero), jnp.where(kind > 0, decay, one)


def _gae_out(discount: float, cut: bool, following, reward, value, *rest: Array) -> tuple:
    *after, kind = rest
    zero = jnp.zeros_like(value)
    if cut:
        following = jnp.where(kind == 2, discount * after[0] if after else zero, following)
    returns = reward + following
    return jnp.where(kind > 0, returns - value, zero), jnp.where(kind > 0, returns, zero)
