"""Checkpoints restore bit for bit, on other devices too, and survive kills and broken files."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlcredit import checkpoint
from rlcredit.types import InputError, TrainState

ROOT = Path(__file__).parents[1]
DRAW = jax.jit(jax.random.normal)


def make_state(seed: int) -> TrainState:
    rng = np.random.default_rng(seed)
    params = {
        "layers": {layer: {"kernel": jnp.float32(rng.normal(size=(4, 3)))} for layer in range(2)},
        "bias": jnp.bfloat16(rng.normal(size=3)),
    }
    optimizer = optax.adamw(1e-3)
    opt_state = optimizer.update(params, optimizer.init(params), params)[1]
    ref_params = jax.tree.map(jnp.copy, params)
    return TrainState(params, ref_params, opt_state, jax.random.key(seed), jnp.int32(seed))


def restore(directory: Path, like, report=pytest.fail):
    return checkpoint.restore_latest(directory, like, report)


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for mine, yours in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type(mine) is type(yours)
        if isinstance(mine, jax.Array):
            assert jax.typeof(mine) == jax.typeof(yours)  # shape, dtype, weak type
            assert (mine.sharding, mine.committed) == (yours.sharding, yours.committed)
            if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
                mine, yours = jax.random.key_data(mine), jax.random.key_data(yours)
        assert np.asarray(mine).tobytes() == np.asarray(yours).tobytes()


def run_python(code: str, *arguments: object) -> subprocess.Popen:
    head = "import sys, os, pathlib, numpy as np; from rlcredit import checkpoint\n"
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


def largest_file(path: Path) -> Path:
    files = [file for file in (path / checkpoint.ARRAYS).rglob("*") if file.is_file()]
    return max(files, key=lambda file: file.stat().st_size)


def test_train_state_round_trip(tmp_path):
    """FL-101, FL-103: parameters, optimiser, step and typed key, and the draw after them."""
    state = make_state(1)
    checkpoint.save(tmp_path, 7, state)
    step, restored = restore(tmp_path, make_state(2))
    assert step == 7
    assert_same(restored, state)
    assert_same(DRAW(restored.key), DRAW(state.key))


@pytest.mark.parametrize(
    "leaf, other",
    [
        (3, 4),
        (0.1, 0.2),
        (True, False),
        (np.float32(0.1), np.float32(0.2)),
        (np.arange(3), np.zeros(3, int)),
        (jnp.asarray(0.1), jnp.asarray(0.2)),
        (jnp.full((2,), 3.0), jnp.full((2,), 4.0)),
        (jnp.float32([np.nan, -0.0, np.inf]), jnp.zeros(3)),
        (jax.random.key(1, impl="rbg"), jax.random.key(2, impl="rbg")),
        (jax.random.split(jax.random.key(1), 3), jax.random.split(jax.random.key(2), 3)),
        (jnp.zeros((0, 2)), jnp.zeros((0, 2))),
        ({}, {}),
        (optax.EmptyState(), optax.EmptyState()),
    ],
    ids=repr,
)
def test_leaf_round_trip(tmp_path, leaf, other):
    checkpoint.save(tmp_path, 0, leaf)
    assert_same(restore(tmp_path, other)[1], leaf)


@pytest.mark.parametrize("saved_on, restored_on", [(4, 1), (1, 4), (4, 2)])
def test_restores_on_the_devices_of_like(tmp_path, saved_on, restored_on):
    """FL-107: the placement is that of the new state, not of the file."""

    def place(x, count):
        mesh = jax.sharding.Mesh(
            np.array(jax.devices("cpu")[:count]),
            "data",
            axis_types=(jax.sharding.AxisType.Auto,),
        )
        return jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))

    x = np.arange(8, dtype=np.float32)
    keys = jax.random.split(jax.random.key(0), 4)
    checkpoint.save(tmp_path, 1, (place(x, saved_on), place(keys, saved_on)))
    like = (place(np.zeros_like(x), restored_on), place(keys[::-1], restored_on))
    want = (place(x, restored_on), place(keys, restored_on))
    assert_same(restore(tmp_path, like)[1], want)


def test_keeps_the_newest_three(tmp_path):
    for step in (1, 2, 10, 9):
        checkpoint.save(tmp_path, step, {"x": step})
    assert checkpoint.steps(tmp_path) == [2, 9, 10]
    assert sorted(os.listdir(tmp_path)) == ["10", "2", "9"]


def test_same_step_is_replaced(tmp_path):
    checkpoint.save(tmp_path, 5, {"x": 1})
    checkpoint.save(tmp_path, 5, {"x": 2})
    assert restore(tmp_path, {"x": 0}) == (5, {"x": 2})
    assert os.listdir(tmp_path) == ["5"]


def test_replaced_one_counts_until_its_successor_is_in_place(tmp_path):
    checkpoint.save(tmp_path, 5, {"x": 1})
    (tmp_path / "5").rename(tmp_path / "5.replaced")
    assert restore(tmp_path, {"x": 0}) == (5, {"x": 1})
    checkpoint.save(tmp_path, 5, {"x": 2})
    assert restore(tmp_path, {"x": 0}) == (5, {"x": 2})
    assert os.listdir(tmp_path) == ["5"]


def test_none_where_there_is_none(tmp_path):
    (tmp_path / "3.tmp").mkdir()
    assert restore(tmp_path, {"x": 0}) is None
    assert restore(tmp_path / "missing", {"x": 0}) is None
    assert checkpoint.steps(tmp_path / "missing") == []


def test_leftover_is_ignored_and_does_not_stop_the_next_save(tmp_path):
    """FL-109, FL-111."""
    checkpoint.save(tmp_path, 1, {"x": 1})
    shutil.copytree(tmp_path / "1", tmp_path / "2.tmp")
    assert restore(tmp_path, {"x": 0}) == (1, {"x": 1})
    checkpoint.save(tmp_path, 2, {"x": 2})
    assert restore(tmp_path, {"x": 0}) == (2, {"x": 2})
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


BREAKAGES = {
    "array truncated": lambda path: truncate(largest_file(path)),
    "array flipped": lambda path: flip(largest_file(path)),
    "array deleted": lambda path: largest_file(path).unlink(),
    "metadata deleted": lambda path: (path / "arrays" / "_CHECKPOINT_METADATA").unlink(),
    "manifest flipped": lambda path: flip(path / checkpoint.MANIFEST),
    "manifest truncated": lambda path: truncate(path / checkpoint.MANIFEST),
    "manifest deleted": lambda path: (path / checkpoint.MANIFEST).unlink(),
    "all deleted": lambda path: (shutil.rmtree(path), path.mkdir()),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_broken_one_is_passed_over(tmp_path, breakage):
    """FL-109: the one before it is used, and it is said."""
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"x": jnp.full((100,), step)})
    BREAKAGES[breakage](tmp_path / "2")
    lines = []
    step, restored = restore(tmp_path, {"x": jnp.zeros((100,), int)}, lines.append)
    assert step == 1 and restored["x"][0] == 1
    assert len(lines) == 1 and str(tmp_path / "2") in lines[0] and "\n" not in lines[0]
    BREAKAGES[breakage](tmp_path / "1")
    with pytest.raises(InputError, match=f"every checkpoint in {tmp_path} is broken"):
        restore(tmp_path, {"x": jnp.zeros((100,), int)}, lines.append)


@pytest.mark.parametrize(
    "like, words",
    [
        ({"a": 0, "w": jnp.zeros((2, 4))}, r"\['w'\] float32\[2, 3\] .* \['w'\] float32\[2, 4\]"),
        ({"a": 0, "w": jnp.zeros((2, 3), jnp.bfloat16)}, r"\['w'\] bfloat16\[2, 3\] in the run"),
        ({"a": 0, "v": jnp.zeros((2, 3))}, r"\['v'\]"),
        ({"a": 0}, "missing in the run"),
        ({"a": 0, "w": jnp.zeros((2, 3)), "x": 0}, "missing in the checkpoint"),
    ],
)
def test_another_structure_is_an_error_that_names_the_leaf(tmp_path, like, words):
    checkpoint.save(tmp_path, 1, {"a": 1, "w": jnp.ones((2, 3))})
    with pytest.raises(InputError, match=words) as caught:
        restore(tmp_path, like)
    assert str(tmp_path / "1") in str(caught.value)


def test_unwritable_folder_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=f"{tmp_path}/file/5: (Not a directory|File exists)"):
        checkpoint.save(tmp_path / "file", 5, {"x": 1})


def test_full_disk_leaves_the_earlier_ones(tmp_path):
    code = """if True:
        import resource
        folder = pathlib.Path(sys.argv[1])
        state = {"x": np.random.default_rng(0).normal(size=100_000)}
        checkpoint.save(folder, 1, state)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            checkpoint.save(folder, 2, state)
        except checkpoint.InputError as error:
            print(error)
        print(os.listdir(folder), checkpoint.restore_latest(folder, state)[0])
    """
    process = run_python(code, tmp_path)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    message, state = output.splitlines()
    assert f"cannot write the checkpoint {tmp_path}/2: " in message and "File too large" in message
    assert state == "['1'] 1"
    assert "Traceback" not in errors


def test_complete_when_the_process_exits_at_once(tmp_path):
    """FL-110."""
    code = "checkpoint.save(pathlib.Path(sys.argv[1]), 1, {'x': 3}); os._exit(0)"
    process = run_python(code, tmp_path)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert restore(tmp_path, {"x": 0}) == (1, {"x": 3})


def test_kill_at_any_moment(tmp_path):
    """FL-109."""
    code = """if True:
        step = int(sys.argv[2])
        while True:
            step += 1
            x = np.full(200_000, step)
            for _ in range(2):  # the second replaces the first
                checkpoint.save(pathlib.Path(sys.argv[1]), step, {"x": x})
            print(step, flush=True)
    """
    like, last = {"x": np.zeros(200_000, int)}, 0
    for seed in range(3):
        process = run_python(code, tmp_path, last)
        saved = int(process.stdout.readline())
        time.sleep(random.Random(seed).uniform(0, 0.5))
        process.kill()
        saved = max([saved, *map(int, process.communicate()[0].split())])
        last, state = restore(tmp_path, like)
        assert last >= saved
        assert np.all(state["x"] == last)
    checkpoint.save(tmp_path, last + 1, like)
    assert checkpoint.steps(tmp_path)[-1] == last + 1
    assert not list(tmp_path.glob("*.tmp"))


def test_a_disk_that_is_too_full_is_seen_before_writing(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"w": jnp.zeros(1000)})
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=4000))
    with pytest.raises(InputError, match="needs 4,000 bytes, the disk has 4,000 left") as caught:
        checkpoint.save(tmp_path, 2, {"w": jnp.zeros(1000)})
    assert str(tmp_path / "2") in str(caught.value)
    assert checkpoint.steps(tmp_path) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
