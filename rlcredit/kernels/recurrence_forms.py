"""The forms that a recursion in time takes on each platform.

A CPU takes one position of all rows at a time, on arrays turned so that these lie side by side: a
`lax.scan` there has next to no price a step, and the turns cost less than strided reads. They cost
more than all the rest, so as little as can be is turned, and bytes rather than floats. Elsewhere a
step of a scan is a launch: sums and maxima are the compiler's own, GAE and affine recursions are
kernels, or without one are composed of pairs (x, decay) in log2(T) passes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from rlcredit.kernels.platform import on_hopper, platform
from rlcredit.sharding import over_rows
from rlcredit.types import Array


def over_time(step: Callable, start, *xs: Array, reverse: bool = False) -> Array:
    """`step(carry, *entries) -> (carry, output)` along the last axis of `xs`, for a CPU.

    Args: start: [...] the first carry; xs: [..., T], with `reverse` from the last entry on.
    Returns: [..., T] the outputs.
    """

    def at_position(carry, entries: tuple):
        return step(carry, *entries)

    turned = tuple(_turned(x, -1, 0) for x in xs)
    _, outputs = lax.scan(at_position, start, turned, reverse=reverse)
    return _turned(outputs, 0, -1)


def _turned(x: Array, source: int, destination: int) -> Array:
    """`moveaxis`, and from JAX 0.11 on as a pass of its own.

    Left alone, the compiler copies the array before it turns it, and fuses what stands around into
    the slow reads of the turn. An older JAX gathers from all devices what has its layout fixed.
    """
    if jax.__version_info__ < (0, 11):
        return jnp.moveaxis(x, source, destination)
    turned = jnp.moveaxis(lax.optimization_barrier(x), source, destination)
    layout = Layout(major_to_minor=tuple(range(turned.ndim)))
    return lax.optimization_barrier(with_layout_constraint(turned, layout))


def affine_in_passes(x: Array, decay: Array, start: Array) -> Array:
    """`reverse_affine` in log2(T) passes over all positions."""
    keeps, sums = lax.associative_scan(_compose, (decay, x), reverse=True, axis=x.ndim - 1)
    return sums + keeps * start[..., None]


def scan_kernel() -> Callable | None:
    """The scan of pairs that this platform has; imported here, for Pallas takes a while."""
    if platform() == "tpu":
        from rlcredit.kernels.recurrence_tpu import scan_tpu

        return scan_tpu
    if on_hopper():
        from rlcredit.kernels.recurrence_gpu import scan_gpu

        return scan_gpu
    return None


def in_rows(kernel: Callable, plain: Callable, dimensions: int, *arrays: Array):
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


def _compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two maps y -> keeps * y + sums as one; a reversed scan hands over the later one first."""
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]
