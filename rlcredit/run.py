"""The folder of a run, and the life of the process that works in it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import tyro

from rlcredit import __version__
from rlcredit.types import InputError

Config = TypeVar("Config")

CONFIG = "config.json"
VERSIONS = "versions.json"
LOCK = ".lock"
TEMPORARY = ".tmp"
# What a process that was killed while it opened an empty folder may have left.
LEFTOVERS = {LOCK, VERSIONS, CONFIG + TEMPORARY, VERSIONS + TEMPORARY}
# Settings that may change when a run goes on: they change none of its numbers.
NO_PART_OF_A_RUN = ("fresh", "run_dir", "steps", "checkpoint_every")
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Stopped(Exception):
    """The user asked to stop; everything is saved."""


@contextlib.contextmanager
def open_run(
    folder: Path, config: Any, *, fresh: bool, ignore: tuple[str, ...] = NO_PART_OF_A_RUN
) -> Iterator[Path]:
    """Opens the folder of a run for the `with` block, and yields it.

    Until the block ends, or the process does, no other process can open the folder. `config.json`
    and `versions.json` hold the settings and the software of the latest opening.

    Args:
      folder: new, empty, or that of an earlier run of the same configuration, to be resumed.
      config: a dataclass; the fields of dataclasses in it count as its own.
      fresh: remove all that is in the folder of an earlier run.
      ignore: fields that may differ from those of the earlier run.
    Raises: InputError where the folder cannot be written, is in use, belongs to something else, or
      holds a run of another configuration; it names the folder, and the fields that differ.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(folder)  # before the lock, which would be a file among theirs
            _lock(folder, stack)
            if fresh:
                _clear(folder)
            _refuse_other_config(folder, config, ignore)
            write_json(folder / VERSIONS, _versions())
            write_json(folder / CONFIG, _settings(config))  # last: it makes it a run
        except OSError as error:
            raise InputError(f"cannot use {folder} as run folder: {error.strerror}") from error
        yield folder


def write_json(path: Path, data: Any) -> None:
    """Writes `data` whole or not at all; paths and other objects as their text.

    Raises: InputError where it cannot be written; it names the file.
    """
    write_text(path, _json(data) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text` whole or not at all; raises as `write_json`."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(f"cannot write {path}: {error.strerror}") from error


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yields `stop_requested()`, True once SIGTERM or SIGINT came; a second SIGINT interrupts."""
    received = set()

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.add(number)

    old = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def command_line(main: Callable[[Config], None], presets: dict[str, Config]) -> None:
    """Reads the flags of an experiment and runs `main(config)`.

    `--preset NAME` chooses what the other flags start from, by default the first of `presets`. The
    configuration is a dataclass with a field `preset`; the fields of a dataclass in it are flags
    like its own. The help opens with the docstring of the module of `main`.

    Exits with status 0 where the user asked to stop and all is saved, 1 and one line where the
    input cannot be used or a file cannot be read or written, 2 where a flag is wrong, 130 where the
    user interrupts.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset", choices=list(presets), default=next(iter(presets)))
    default = presets[parser.parse_known_args()[0].preset]
    description = sys.modules[main.__module__].__doc__
    flat = (tyro.conf.OmitArgPrefixes,)
    config = tyro.cli(type(default), default=default, description=description, config=flat)
    _keep_freed_memory()
    sys.path.append(os.getcwd())  # where `module:function` of a user's own may lie
    try:
        main(config)
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on from there")
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _keep_freed_memory() -> None:
    """Let the C library keep what a step frees instead of handing it back to the system.

    Otherwise the buffers of every step are faulted in anew, which took a third of the time of a
    small training step on a CPU. A C library without these settings is left as it is.
    """
    # The numbers are glibc's names: trim threshold, top pad, mmap threshold.
    settings = {-1: 2**31 - 1, -2: 2**28, -3: 2**25}
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for setting, value in settings.items():
            library.mallopt(setting, value)


def _is_run(folder: Path) -> bool:
    """Other programs also name a file config.json; the versions must be this package's."""
    try:
        return (folder / CONFIG).exists() and "rlcredit" in _read_json(folder / VERSIONS)
    except FileNotFoundError:
        return False


def _refuse_foreign(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    if names - LEFTOVERS and not _is_run(folder):
        raise InputError(
            f"{folder} holds files but no run: use another --run-dir, or empty it yourself"
        )


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Holds the lock until `stack` closes; the system takes it from a process that is killed."""
    file = stack.enter_context((folder / LOCK).open("a"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(f"another process is running in {folder}") from error


def _clear(folder: Path) -> None:
    """Removes what makes it a run last, so that a `fresh` that was killed can be repeated."""
    order = [CONFIG, VERSIONS]  # without the first, the second alone is a leftover
    rest = [path for path in folder.iterdir() if path.name not in [*order, LOCK]]
    for path in [*rest, *(folder / name for name in order)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _settings(config: Any) -> dict[str, Any]:
    """Fields by name; those of a dataclass in a field stand beside the others, as its flags do."""
    settings = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        nested = dataclasses.is_dataclass(value)
        settings |= _settings(value) if nested else {field.name: value}
    return settings


def _refuse_other_config(folder: Path, config: Any, ignore: tuple[str, ...]) -> None:
    if not (folder / CONFIG).exists():
        return
    old = _read_json(folder / CONFIG)
    new = json.loads(_json(_settings(config)))
    differing = [
        f"{name} was {old.get(name, 'absent')!r} and is {new.get(name, 'absent')!r}"
        for name in dict.fromkeys([*new, *old])
        if name not in ignore and (name not in old or name not in new or old[name] != new[name])
    ]
    if differing:
        raise InputError(
            f"{folder} holds a run of another configuration ({', '.join(differing)}): "
            "use another --run-dir, or --fresh to remove that run"
        )


def _versions() -> dict[str, Any]:
    return {
        "rlcredit": __version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "backend": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "git": _git_hash(),
        "command": sys.argv,
    }


def _git_hash() -> str | None:
    """The commit of the source tree, with "-dirty" where it was changed; None outside of one."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, default=str)


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not JSON") from error
