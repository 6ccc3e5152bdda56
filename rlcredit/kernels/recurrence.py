"""Recursions along the last axis of rows: GAE, affine ones, running sums and maxima.

A CPU takes one position of all rows at a time, on arrays turned so that these lie side by side: a
`lax.scan` there has next to no price a step, and the turns cost less than strided reads. Elsewhere
a step of a scan is a launch: sums and maxima are the compiler's own, GAE and affine recursions are
kernels, or without one are composed of pairs (x, decay) in log2(T) passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import lax

from rlcredit.kernels.platform import on_hopper, platform
from rlcredit.kernels.recurrence_pairs import gae_by, reverse_affine_by
from rlcredit.sharding import over_rows
from rlcredit.types import Array, InputError


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
        return _over_time(_affine, start, x, decay, reverse=True)
    scan = _scan_kernel()
    if scan is None:
        return _affine_in_passes(x, decay, start)
    kernel = functools.partial(reverse_affine_by, scan)
    return _in_rows(kernel, _affine_in_passes, x.ndim, x, decay, start)


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
        bootstrap = None if bootstrap is None else jnp.where(ends, bootstrap, 0)
        form = _gae_in_steps if platform() == "cpu" else _gae_in_passes
        return form(reward, value, mask, final, discount, lambda_, ends, bootstrap)

    several = () if ends is None else (ends,) if bootstrap is None else (ends, bootstrap)
    scan = None if own_rate else _scan_kernel()
    if scan is None:
        return plain(reward, value, mask, final, *several)

    def fused(reward, value, mask, final, ends=None, bootstrap=None) -> tuple[Array, Array]:
        how = {"discount": discount, "lambda_": lambda_, "ends": ends, "bootstrap": bootstrap}
        reward, value = (a.astype(jnp.float32) for a in (reward, value))
        return gae_by(scan, reward, value, mask, final, **how)

    return _in_rows(fused, plain, mask.ndim, reward, value, mask, final, *several)


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
        return _over_time(_newer, jnp.zeros(x.shape[:-1], x.dtype), x, at)
    place = lax.cummax(jnp.where(at, jnp.arange(x.shape[-1]), -1), axis=x.ndim - 1)
    return jnp.where(place < 0, 0, jnp.take_along_axis(x, jnp.maximum(place, 0), axis=-1))


def running_sum(x: Array, *, reverse: bool = False) -> Array:
    """The sum of all entries up to each one along the last axis; `reverse`: of those from it on.

    Returns: [..., T] of the dtype of `x`, int32 for a bool one.
    """
    x = x.astype(jnp.int32) if x.dtype == bool else x
    if platform() != "cpu":
        return lax.cumsum(x, axis=x.ndim - 1, reverse=reverse)
    return _over_time(_sum, jnp.zeros(x.shape[:-1], x.dtype), x, reverse=reverse)


def running_max(x: Array) -> Array:
    """The largest of all entries up to each one along the last axis."""
    if platform() != "cpu":
        return lax.cummax(x, axis=x.ndim - 1)
    return _over_time(_max, x[..., 0], x)


def gae_time_major(
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
    """`gae` of arrays [T, ...], one position after the other: what a CPU computes.

    It reads all entries: what lies off the mask must be finite.
    """

    def backward(carry: tuple[Array, Array], position: tuple) -> tuple[tuple, Array]:
        reward, value, mask, ends, bootstrap, own_discount = position
        following, flows = carry
        if ends is not None:
            behind = 0 if bootstrap is None else bootstrap
            following, flows = jnp.where(ends, behind, following), jnp.where(ends, 0, flows)
        rate = discount if own_discount is None else own_discount
        advantage = reward + rate * following - value + rate * lambda_ * flows
        carry = (jnp.where(mask, value, carry[0]), jnp.where(mask, advantage, carry[1]))
        return carry, jnp.where(mask, advantage, 0)

    own_discount = None if isinstance(discount, float | int) else discount
    xs = (reward, value, mask, ends, bootstrap, own_discount)
    _, advantage = lax.scan(backward, (final, jnp.zeros_like(final)), xs, reverse=True)
    return advantage, jnp.where(mask, advantage + value, 0)


def _gae_in_steps(reward, value, mask, final, discount, lambda_, ends, bootstrap):
    """`gae_time_major` of arrays [..., T]."""
    turn = functools.partial(jnp.moveaxis, source=-1, destination=0)
    if not isinstance(discount, float | int):
        discount = turn(jnp.broadcast_to(discount, mask.shape).astype(jnp.float32))
    arrays = jax.tree.map(turn, (reward, value, mask, ends, bootstrap))
    *turned, ends, bootstrap = arrays
    several = {"ends": ends, "bootstrap": bootstrap}
    advantage, _ = gae_time_major(*turned, final, discount=discount, lambda_=lambda_, **several)
    advantage = jnp.moveaxis(advantage, 0, -1)
    # Added up here, there is one array less to turn back.
    return advantage, jnp.where(mask, advantage + value, 0)


def _gae_in_passes(reward, value, mask, final, discount, lambda_, ends, bootstrap):
    """The values that follow first, then the sum of what is left of each delta."""
    following, keep = next_chosen(value, mask, final), discount * lambda_
    if ends is not None:
        behind = 0 if bootstrap is None else bootstrap
        following, keep = jnp.where(ends, behind, following), jnp.where(ends, 0, keep)
    delta = jnp.where(mask, reward + discount * following - value, 0)
    advantage = reverse_affine(delta, jnp.where(mask, keep, 1))
    advantage = jnp.where(mask, advantage, 0)
    return advantage, advantage + value


def _affine_in_passes(x: Array, decay: Array, start: Array) -> Array:
    keeps, sums = lax.associative_scan(_compose, (decay, x), reverse=True, axis=x.ndim - 1)
    return sums + keeps * start[..., None]


def _scan_kernel() -> Callable | None:
    """The scan of pairs that this platform has; imported here, for Pallas takes a while."""
    if platform() == "tpu":
        from rlcredit.kernels.recurrence_tpu import scan_tpu

        return scan_tpu
    if on_hopper():
        from rlcredit.kernels.recurrence_gpu import scan_gpu

        return scan_gpu
    return None


def _in_rows(kernel: Callable, plain: Callable, dimensions: int, *arrays: Array):
    """`kernel(*arrays)` of rows [R, T] made of arrays [..., T], with the gradient of `plain`."""

    def flat(arrays: tuple, _: None):
        shape = arrays[0].shape[:-1]
        leads = dimensions - 1
        rows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[leads:]), arrays)
        return jax.tree.map(lambda a: a.reshape(*shape, -1), differentiable(*rows))

    differentiable = jax.custom_vjp(kernel)
    differentiable.defvjp(
        lambda *rows: (kernel(*rows), rows), lambda rows, g: jax.vjp(plain, *rows)[1](g)
    )
    return over_rows(flat, lambda arrays, _: plain(*arrays), arrays)


def _over_time(step: Callable, start, *xs: Array, reverse: bool = False) -> Array:
    """`step(carry, *entries) -> (carry, output)` along the last axis of `xs`."""

    def at_position(carry, entries: tuple):
        return step(carry, *entries)

    turned = tuple(jnp.moveaxis(x, -1, 0) for x in xs)
    _, outputs = lax.scan(at_position, start, turned, reverse=reverse)
    return jnp.moveaxis(outputs, 0, -1)


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


def _compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two maps y -> keeps * y + sums as one; a reversed scan hands over the later one first."""
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]
