"""Which platform the programs that are traced now are for."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator

import jax

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


def platform() -> str:
    """`cpu`, `tpu` or `gpu`: that of the default device, unless `compiling_for` says otherwise."""
    return _chosen.get() or jax.default_backend()


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Trace for a platform whose devices are not here, to compile for it without one.

    It must hold while a function is traced; what was traced before stays as it is.
    """
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def on_hopper() -> bool:
    """Whether kernels in Pallas' Mosaic GPU can run: a GPU of compute capability 9.0, JAX 0.11.

    On an older JAX it says so, once.
    """
    if platform() != "gpu" or (_chosen.get() is None and not _is_hopper(jax.devices()[0])):
        return False
    if jax.__version_info__ < (0, 11):
        _say_that_jax_is_old()
        return False
    return True


def _is_hopper(device: jax.Device) -> bool:
    return getattr(device, "compute_capability", "") == "9.0"


@functools.cache
def _say_that_jax_is_old() -> None:
    warnings.warn(
        f"GPU kernels need JAX 0.11, this is {jax.__version__}: slower forms are used",
        stacklevel=3,
    )
