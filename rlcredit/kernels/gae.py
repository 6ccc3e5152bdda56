"""Generalised advantage estimation along the last axis of rows, or the first."""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.platform import platform
from rlcredit.kernels.recurrence import running_sum
from rlcredit.kernels.recurrence_forms import affine_in_passes, in_rows, over_time, scan_kernel
from rlcredit.kernels.recurrence_pairs import gae_by
from rlcredit.types import Array, InputError

_SKIPPED, _CHOSEN, _END = 0, 1, 2  # what a position is


def gae(
    reward: Array,
    value: Array,
    mask: Array,
    final: Array,
    *,
    discount: float | Array,
    lambda_: float,
    ends: Array | None = None,
    bootstrap: Array | None = None,
) -> tuple[Array, Array]:
    """Generalised advantage estimation over chosen tokens, and the returns.

    delta[t] = reward[t] + discount * value[next chosen t] - value[t]
    A[t]     = delta[t] + discount * lambda_ * A[next chosen t],  returns[t] = A[t] + value[t]

    Behind the last chosen token of a row the value is `final` and A is 0; so they are behind every
    position of `ends`, with `bootstrap` for the value. Schulman et al., 2015, arXiv 1506.02438.

    Args:
      reward, value, mask: [..., T]; final: [...] 0 where the episode terminated, else the value of
        all that was read, observations after the last choice included.
      discount: one for all, or one of each token, [..., T].
      ends: [..., T] bool, last chosen tokens of the episodes of a row that holds several;
      bootstrap: [..., T] the values behind them, 0 if not given.
    Returns: (advantage, returns), [..., T] float32, 0 off the mask.
    Raises: InputError if `bootstrap` comes without `ends`.
    """
    chex.assert_equal_shape([reward, value, mask])
    if bootstrap is not None and ends is None:
        raise InputError("bootstrap needs ends, the positions that it belongs to")
    final = jnp.broadcast_to(jnp.asarray(final, jnp.float32), mask.shape[:-1])
    own_rate = not isinstance(discount, float | int)

    def plain(reward, value, mask, final, ends=None, bootstrap=None) -> tuple[Array, Array]:
        reward, value = (jnp.where(mask, a, 0).astype(jnp.float32) for a in (reward, value))
        if ends is None and not own_rate and discount == lambda_ == 1:
            returns = jnp.where(mask, running_sum(reward, reverse=True) + final[..., None], 0)
            return returns - value, returns
        return _gae_by_one_sum(reward, value, mask, final, discount, lambda_, ends, bootstrap)

    several = () if ends is None else (ends,) if bootstrap is None else (ends, bootstrap)
    scan = None if own_rate else scan_kernel()
    if scan is None:
        return plain(reward, value, mask, final, *several)

    def fused(reward, value, mask, final, ends=None, bootstrap=None) -> tuple[Array, Array]:
        how = {"discount": discount, "lambda_": lambda_, "ends": ends, "bootstrap": bootstrap}
        reward, value = (a.astype(jnp.float32) for a in (reward, value))
        return gae_by(scan, reward, value, mask, final, **how)

    return in_rows(fused, plain, mask.ndim, reward, value, mask, final, *several)


def gae_time_major(
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
    """`gae` of arrays [T, ...], one position after the other: the fastest on a CPU.

    It reads all entries: what lies off the mask must be finite.
    """

    def backward(after: Array, position: tuple) -> tuple[Array, Array]:
        reward, value, mask, ends, bootstrap = position
        behind = after
        if ends is not None:
            behind = jnp.where(ends, 0 if bootstrap is None else bootstrap, after)
        advantage = reward + discount * behind - value
        after = jnp.where(mask, value + lambda_ * advantage, after)
        return after, jnp.where(mask, advantage, 0)

    xs = (reward, value, mask, ends, bootstrap)
    _, advantage = lax.scan(backward, final, xs, reverse=True)
    return advantage, jnp.where(mask, advantage + value, 0)


def _gae_by_one_sum(reward, value, mask, final, discount, lambda_, ends, bootstrap):
    """With what an episode is worth from t on, seen from the position before it,

    worth[t] = (1 - lambda_) * value[t] + lambda_ * returns[t] = value[t] + lambda_ * A[t],

    A[t] = reward[t] + discount * worth[next chosen t] - value[t]: one affine recursion, of `worth`.
    """
    behind_ends, income = 0, reward
    if bootstrap is not None:
        behind_ends = jnp.where(ends, bootstrap, 0)
        income = reward + discount * behind_ends
    x = jnp.where(mask, value + lambda_ * (income - value), 0)
    behind = _next_worth(x, mask, ends, discount * lambda_, final)
    if ends is not None:
        behind = jnp.where(ends, behind_ends, behind)
    advantage = jnp.where(mask, reward + discount * behind - value, 0)
    return advantage, advantage + value


def _next_worth(x: Array, mask: Array, ends: Array | None, keep, final: Array) -> Array:
    """worth[t + 1] of all t, where worth[t] = x[t] + keep[t] * worth[t + 1], x[t] at ends, and
    worth[t + 1] off the mask; worth[T] = final. `x` must be 0 off the mask."""
    kind = jnp.where(mask, _CHOSEN if ends is None else jnp.where(ends, _END, _CHOSEN), _SKIPPED)
    if platform() != "cpu":
        decay = jnp.where(kind == _CHOSEN, keep, jnp.where(kind == _END, 0, 1))
        worth = affine_in_passes(x, decay, final)
        return jnp.concatenate([worth[..., 1:], final[..., None]], axis=-1)

    def backward(after: Array, x: Array, kind: Array, keep: Array = keep) -> tuple[Array, Array]:
        kept = jnp.where(kind == _END, 0, keep * after)
        return x + jnp.where(kind == _SKIPPED, after, kept), after

    own = () if isinstance(keep, float | int) else (jnp.broadcast_to(keep, x.shape),)
    return over_time(backward, final, x, kind.astype(jnp.int8), *own, reverse=True)
