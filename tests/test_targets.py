"""Every program compiles for a TPU v5e on a machine without one, and what its compiler says of it.

Of the programs of `benchmarks/programs.py` those at the preset `accelerator` are left to the
benchmark; so are those that another one contains: the rollout of a step, a step on fewer devices.
"""

import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rlcredit.types import InputError

FOLDER = Path(__file__).parent.parent / "benchmarks"
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the compiler for TPUs: install the extra rlcredit[tpu]",
)
LOGITS = 151_936 * 4  # bytes of a token


@pytest.fixture(scope="module")
def targets():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("targets")
    for name in ("targets", "programs", "timing"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def rows(targets):
    """Compile the programs of these names, or find what was said of them before."""
    devices, table, known = targets.devices_of("tpu-v5e"), targets.programs(), {}

    def compiled(*names):
        for name in names:
            if name not in known:
                known[name] = targets.compile_one(table[name], devices, "tpu")
            assert known[name]["compiled"] == "yes", f"{name}: {known[name]['compiled']}"
        return [known[name] for name in names]

    return compiled


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_head_needs_less_than_a_32nd_of_whole_logits(rows, dtype):
    for count in (512, 2048):
        (row,) = rows(f"head dispatched, {dtype}, N={count}")
        assert 32 * row["temporary"] < count * LOGITS


@needs_compiler
def test_the_naive_head_holds_whole_logits(rows):
    (row,) = rows("head naive, float32, N=512")
    assert row["temporary"] > 512 * LOGITS


@needs_compiler
def test_the_policy_loss_is_written_over_the_logits(rows):
    for row in rows("policy loss xla, V=64", "policy loss tpu kernel, V=64"):
        assert row["aliased"] == 65_536 * 64 * 4
        assert 8 * row["temporary"] < row["aliased"]
    rows("policy loss tpu kernel, V=1024")


@needs_compiler
@pytest.mark.parametrize("form", ["dispatched", "tpu kernel"])
def test_recurrences_hold_no_copy_of_their_rows(rows, form):
    for row in rows(f"reverse_affine {form}", f"gae {form}"):
        assert row["temporary"] < 4096 * 1024


@needs_compiler
def test_a_rollout_with_observations_compiles(rows):
    rows("rollout maze, small")


@needs_compiler
@pytest.mark.parametrize("rule, devices", [("grpo", 4), ("gae", 8)])
def test_the_training_step_writes_over_its_whole_state(rows, rule, devices):
    """Parameters, reference and optimiser state: all that the step is given."""
    (row,) = rows(f"step {rule}, small, devices={devices}")
    assert row["aliased"] == row["arguments"] > 0


def test_a_row_says_what_the_compiler_says(targets):
    Made = sys.modules["programs"].Made

    def make(_):
        shape = jax.ShapeDtypeStruct((1024,), jnp.float32)
        return Made(jax.jit(lambda x: x + 1, donate_argnums=0), (shape,), cache=shape)

    row = targets.compile_one(targets.Program(make), jax.devices(), "cpu")
    assert (row["compiled"], row["arguments"], row["aliased"]) == ("yes", 4096, 4096)
    assert row["temporary"] == row["cache copies"] == 0
    assert row["moved"] >= 8192


def test_copies_of_a_cache_are_counted_and_moves_are_not(targets):
    program = """
      %a = bf16[4,33,2,64]{3,1,2,0:T(8,128)} copy(%x)
      ROOT %b = bf16[4,33,2,64]{3,2,1,0} copy(%a)
      %c = (bf16[4,33,2,64]{3,2,1,0}, bf16[4,33,2,64]{3,2,1,0:S(1)}, u32[]) copy-start(%x)
      %d = bf16[4,33,2,64]{3,2,1,0} copy-done(%c)
      %e = bf16[4,33,2]{2,1,0} copy(%y)
      %f = f32[4,33,2,64]{3,2,1,0} copy(%z)
    """
    assert targets.copies(program, jax.ShapeDtypeStruct((4, 33, 2, 64), jnp.bfloat16)) == 2
    assert targets.copies(program, jax.ShapeDtypeStruct((4, 33, 2, 64), jnp.float32)) == 1


def test_a_program_that_is_refused_is_a_row_too(targets):
    def make(_):
        raise NotImplementedError("no such primitive\nat all")

    row = targets.compile_one(targets.Program(make), jax.devices(), "cpu")
    assert row == {"compiled": "NotImplementedError: no such primitive"}


def test_programs_are_chosen_by_platform_and_name(targets):
    chosen = targets.choose("tpu", ("tpu kernel, float32",))
    assert list(chosen) == [
        f"head {form}, float32, N={count}"
        for count in (512, 2048)
        for form in ("naive", "tpu kernel")
    ]
    for platform, other in (("tpu", "gpu"), ("gpu", "tpu")):
        names = list(targets.choose(platform))
        assert any(f"{platform} kernel" in name for name in names)
        assert not any(f"{other} kernel" in name for name in names)
    with pytest.raises(InputError, match="only=nothing names no program for a tpu"):
        targets.choose("tpu", ("nothing",))


def test_every_naive_form_comes_before_what_is_compared_with_it(targets):
    table = targets.programs()
    names = list(table)
    for name, program in table.items():
        assert program.naive is None or names.index(program.naive) < names.index(name)


def test_a_compiler_that_is_not_installed_is_named(targets, monkeypatch):
    def missing(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr(targets, "version", missing)
    message = "h100 needs the compiler jax-cuda13-plugin: install the extra rlcredit[cuda13]"
    with pytest.raises(InputError, match=re.escape(message)):
        targets.devices_of("h100")
