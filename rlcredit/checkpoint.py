"""Checkpoints that are whole or ignored, and that restore bit for bit.

The folder `<directory>/<step>` holds the leaves, written by Orbax, and `manifest.json`: the path,
shape and dtype of each leaf in order, and the sha256 of each file. It is written under the name
`<step>.tmp` and renamed when complete, so a name of digits alone is a complete checkpoint however a
process ended.

Leaves are stored as plain host arrays without their devices. A restored leaf takes its kind,
devices and sharding from the state that it replaces, so the number of devices may change between
the two. One process writes and reads; every leaf must be addressable from it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rlcredit.types import InputError, PyTree

try:
    import orbax.checkpoint.v1 as ocp
except ImportError:  # where v1 is still experimental
    import orbax.checkpoint.experimental.v1 as ocp

KEEP = 3
ARRAYS = "arrays"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp"  # half-written or half-deleted
REPLACED = ".replaced"  # complete, and counts until its successor of the same step is in place


class Leaf(NamedTuple):
    """What the manifest says of one leaf."""

    path: str
    shape: list[int]
    dtype: str

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}{self.shape}"


def save(directory: Path, step: int, state: PyTree) -> None:
    """Writes `state` as the checkpoint of `step`, and keeps the newest three.

    The checkpoint is complete on return. One of the same step is replaced, since it may be the
    broken one that `restore_latest` passed over; at every moment the old or the new one counts.

    Args:
      directory: the folder of all checkpoints of a run; created where missing.
      state: leaves are arrays (typed keys included) or Python numbers.
    Raises: InputError where it cannot be written; the earlier checkpoints are then untouched.
    """
    leaves = _described(state)
    arrays = [_host_array(leaf) for leaf in jax.tree.leaves(state)]
    target = directory / str(step)
    temporary = directory / f"{step}{TEMPORARY}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        _check_space(directory, arrays)
        _write(temporary, leaves, arrays)
        _publish(temporary, target)
        _prune(directory, step)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise InputError(f"cannot write the checkpoint {target}: {_reason(error)}") from error


def steps(directory: Path) -> list[int]:
    """The steps of all complete checkpoints, ascending."""
    return list(_complete(directory))


def restore_latest(
    directory: Path, like: PyTree, report: Callable[[str], Any] = print
) -> tuple[int, PyTree] | None:
    """The newest checkpoint that is sound, as `(step, state)`; None where there is none at all.

    A checkpoint that cannot be read, or whose bytes are not those that were saved, is passed over
    with one line to `report`.

    Args:
      like: a state of the same structure; its leaves give kinds, devices and shardings.
    Raises: InputError where every checkpoint is broken, or where the newest readable one holds
      another structure, shape or dtype than `like`: it names the first leaf that differs.
    """
    complete = _complete(directory)
    wanted = _described(like)
    for step, path in reversed(complete.items()):
        try:
            arrays = _read(path, wanted)
        except InputError:
            raise
        except Exception as error:
            report(f"passing over the broken checkpoint {path}: {_reason(error)}")
        else:
            return step, _place_all(arrays, like)
    if complete:
        raise InputError(f"every checkpoint in {directory} is broken: steps {list(complete)}")
    return None


def _complete(directory: Path) -> dict[int, Path]:
    """Step -> folder, ascending."""
    found = {}
    for suffix in (REPLACED, ""):  # the later one wins
        for path in directory.glob(f"*{suffix}"):
            name = path.name.removesuffix(suffix)
            if name.isdecimal() and path.is_dir():
                found[int(name)] = path
    return dict(sorted(found.items()))


def _write(path: Path, leaves: list[Leaf], arrays: list[np.ndarray]) -> None:
    path.mkdir()
    # Orbax takes neither an array of size 0 nor an empty tree; neither holds anything to store.
    stored = {leaf.path: array for leaf, array in zip(leaves, arrays, strict=True) if array.size}
    if stored:
        with _quiet():
            ocp.save(path.absolute() / ARRAYS, stored)
    content = {"leaves": leaves, "files": _file_digests(path)}
    text = json.dumps(content | {"sha256": _sha256(json.dumps(content).encode())})
    (path / MANIFEST).write_text(text)


def _read(path: Path, wanted: list[Leaf]) -> dict[str, np.ndarray]:
    """Raises InputError where the structure is another, any other error where bytes are bad."""
    content = json.loads((path / MANIFEST).read_text())
    # Before the structure is compared, lest a broken manifest looks like another structure; and
    # before Orbax reads, whose decoders need not expect broken bytes.
    if content.pop("sha256") != _sha256(json.dumps(content).encode()):
        raise ValueError(f"{MANIFEST} is not what was saved")
    present = _file_digests(path)
    for name, digest in content["files"].items():
        if present.get(name) != digest:
            raise ValueError(f"{name} is {'not what was saved' if name in present else 'missing'}")
    _check_structure(path, [Leaf(*leaf) for leaf in content["leaves"]], wanted)
    return ocp.load(path.absolute() / ARRAYS) if content["files"] else {}


def _check_space(directory: Path, arrays: list[np.ndarray]) -> None:
    """Said before Orbax begins: its threads print a traceback each where the disk fills up."""
    needed, free = sum(array.nbytes for array in arrays), shutil.disk_usage(directory).free
    if free < 1.1 * needed:
        raise OSError(errno.ENOSPC, f"it needs {needed:,} bytes, the disk has {free:,} left")


def _check_structure(path: Path, saved: list[Leaf], wanted: list[Leaf]) -> None:
    for mine, yours in itertools.zip_longest(saved, wanted):
        if mine != yours:
            raise InputError(
                f"the checkpoint {path} does not fit this run: the first leaf that differs is "
                f"{mine or 'missing'} in the checkpoint and {yours or 'missing'} in the run"
            )


def _place_all(arrays: dict[str, np.ndarray], like: PyTree) -> PyTree:
    def restored(path: tuple, leaf: Any) -> Any:
        return _place(arrays[jax.tree_util.keystr(path)], leaf) if np.size(leaf) else leaf

    return jax.tree.map_with_path(restored, like)


def _place(array: np.ndarray, leaf: Any) -> Any:
    """`array` as the kind of leaf that `leaf` is, on the devices of `leaf`."""
    if not isinstance(leaf, jax.Array):
        return array if isinstance(leaf, np.ndarray) else type(leaf)(array[()])
    if _is_key(leaf):
        array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
    elif jax.typeof(leaf).weak_type:
        # A strong type in its place would promote otherwise, and the resumed run differ.
        array = leaf.at[...].set(array)
    # An uncommitted leaf stays free to meet arrays that live on other devices.
    return jax.device_put(array, leaf.sharding if leaf.committed else None)


def _publish(temporary: Path, target: Path) -> None:
    replaced = target.with_name(target.name + REPLACED)
    if target.exists():
        _remove(replaced)
        target.rename(replaced)
    temporary.rename(target)
    _remove(replaced)


def _prune(directory: Path, newest: int) -> None:
    for step, path in list(_complete(directory).items())[:-KEEP]:
        if step != newest:  # broken ones of later steps must not push out what was just saved
            _remove(path)


def _remove(path: Path) -> None:
    """Takes the name away first: a folder that is half deleted must not count as complete."""
    if path.exists():
        doomed = path.with_name(path.name + TEMPORARY)
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def _remove_leftovers(directory: Path) -> None:
    for path in directory.glob(f"*{TEMPORARY}"):
        if path.name.split(".")[0].isdecimal():
            shutil.rmtree(path)


def _described(tree: PyTree) -> list[Leaf]:
    return [
        Leaf(jax.tree_util.keystr(path), list(np.shape(leaf)), _dtype(leaf))
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _host_array(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _dtype(leaf: Any) -> str:
    return str(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype)


def _file_digests(path: Path) -> dict[str, str]:
    files = sorted(file for file in (path / ARRAYS).rglob("*") if file.is_file())
    return {str(file.relative_to(path)): _sha256(file.read_bytes()) for file in files}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: Exception) -> str:
    """The first line of what went wrong."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    line = (text or type(error).__name__).strip().splitlines()[0].split(" [tensorstore_spec=")[0]
    return line if len(line) <= 200 else f"{line[:80]} ... {line[-120:]}"  # the cause comes last


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax logs a failure with its traceback once for every thread; `_reason` says it once."""
    logger = logging.getLogger("absl")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
