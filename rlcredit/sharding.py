"""Data parallelism: problems are spread over devices, everything else is replicated."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rlcredit.types import InputError, PyTree

AXIS = "problems"


def make_mesh(devices: list[jax.Device] | None = None) -> Mesh:
    """All given devices (default: all there are) in a row."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicated(mesh: Mesh, tree: PyTree) -> PyTree:
    """The tree with a copy on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def jit_step(mesh: Mesh, step: Callable) -> Callable:
    """`step(state, *data) -> (state, metrics)` jitted, on the mesh, writing over its state.

    In and out the state is replicated: left to the compiler, the first steps would each find it
    placed in another way and compile anew.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())

    @functools.wraps(step)
    def on_mesh(state: PyTree, *data: PyTree):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # for `spread` and `over_rows`
            return step(state, *data)

    return jax.jit(on_mesh, donate_argnums=0, out_shardings=everywhere)


def spread(tree: PyTree) -> PyTree:
    """Leaves [rows, ...] split over the devices of the step that is being traced.

    Where the rows do not divide, or there is one device, they are left to the compiler.
    """
    devices = _devices()
    if devices == 1:
        return tree
    split = PartitionSpec(AXIS)
    return jax.tree.map(
        lambda leaf: (
            leaf if leaf.shape[0] % devices else jax.lax.with_sharding_constraint(leaf, split)
        ),
        tree,
    )


def over_rows(kernel: Callable, plain: Callable, of_rows: PyTree, shared: PyTree = None) -> PyTree:
    """`kernel(of_rows, shared)`, on each device of the step that is being traced with its rows.

    The compiler splits no kernel over devices. Where the rows do not divide it is
    `plain(of_rows, shared)`, the same in a form that it can split.

    Args: of_rows: leaves [rows, ...], as the results are; shared: what every device gets whole.
    """
    devices = _devices()
    if devices == 1:
        return kernel(of_rows, shared)
    if any(leaf.shape[0] % devices for leaf in jax.tree.leaves(of_rows)):
        return plain(of_rows, shared)
    split = PartitionSpec(AXIS)
    specs = {"in_specs": (split, PartitionSpec()), "out_specs": split}
    return jax.shard_map(kernel, **specs, check_vma=False)(of_rows, shared)


def _devices() -> int:
    """How many the step that is being traced is spread over; 1 where they are apart already."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty or AxisType.Manual in mesh.axis_types else mesh.size


def over_problems(mesh: Mesh, tree: PyTree) -> PyTree:
    """Constrain leaves [N, ...] to be split over the devices; inside a jitted function.

    The K samples of a problem stay on one device, so group statistics need no communication.

    Raises: InputError if N is not a multiple of the number of devices.
    """
    _check_divides(mesh, tree)
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), tree)


def each_device(
    mesh: Mesh | None, function: Callable, shared: PyTree, *own: PyTree
) -> tuple[PyTree, PyTree]:
    """`function(shared, *own) -> (results, totals)` on each device with its share of the problems.

    Devices do not wait for one another inside `function`.

    Args:
      own: leaves [N, ...]; None for `mesh` calls the function once on all of them.
    Returns: results with leaves [N, ...], and totals, scalars summed over the devices.
    Raises: InputError if N is not a multiple of the number of devices.
    """
    if mesh is None:
        return function(shared, *own)
    _check_divides(mesh, own)

    def with_an_axis(shared: PyTree, *own: PyTree) -> tuple[PyTree, PyTree]:
        results, totals = function(shared, *own)
        return results, jax.tree.map(lambda total: jnp.asarray(total)[None], totals)

    split = PartitionSpec(AXIS)
    specs = (PartitionSpec(), *[split] * len(own))
    mapped = jax.shard_map(
        with_an_axis, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False
    )
    results, totals = mapped(shared, *own)
    return results, jax.tree.map(lambda total: jnp.sum(total, axis=0), totals)


def _check_divides(mesh: Mesh, tree: PyTree) -> None:
    count = int(np.prod(list(mesh.shape.values())))
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[0] % count:
            raise InputError(f"{leaf.shape[0]} problems do not divide over {count} devices")
