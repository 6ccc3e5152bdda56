"""The learning comparison as a user runs it: done, taken up again, with bad input."""

import contextlib
import functools
import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from stubs import quick_jit

from rlcredit import comparison, pretrain, run, sharding, train
from rlcredit.comparison import Curve, Entrant
from rlcredit.types import TrainState

SCRIPT = Path(__file__).parent.parent / "experiments" / "learning.py"
SMALL = (
    *("--width", "16", "--layers", "1", "--problems", "4", "--samples", "2", "--held-out", "4"),
    *("--seeds", "2", "--points", "2", "--budget", "0.5"),
)


def call(monkeypatch, *flags):
    """The script in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *map(str, flags)])
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Everything that the script compiles."""
    quick_step = functools.partial(quick_jit, donate_argnums=0)
    monkeypatch.setattr(sharding, "jit_step", lambda mesh, step: quick_step(step))
    monkeypatch.setattr(jax, "jit", quick_jit)


@pytest.fixture
def learned(monkeypatch):
    """Rules that were not learned but noted, each with a curve of its own; nothing is compiled."""
    noted = []

    def enter(training, task, mesh, key):
        return Entrant(training.advantage, train.build(training, task), None, None)

    def learn(entrant, mesh, states, success, budget, after_point):
        noted.append(entrant.name)
        after_point(1, 0.5)
        number = float(len(noted))
        points = [[0.0, 0.0], [number, 2 * number]]
        return Curve([0, 9], [0.0, number], points, [[0.0, 0.0], [0.5, 1.0]], number)

    monkeypatch.setattr(comparison, "enter", enter)
    monkeypatch.setattr(comparison, "first_states", lambda *_: ())
    monkeypatch.setattr(comparison, "learn", learn)
    return noted


def read(folder):
    return json.loads((folder / "learning.json").read_text())


def test_a_comparison_leaves_what_it_promises(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "run"
    assert call(monkeypatch, "--rules", "reinforce", "--run-dir", folder) == 0
    printed = capsys.readouterr().out
    assert "reinforce 2/2 pass@1" in printed and "area" in printed and "compiling" in printed
    result = read(folder)
    assert result["config"]["budget"] == 0.5 and "jax" in result["versions"]
    start, *_, end = result["rows"]
    assert (start["charged"], start["steps"], start["seconds"]) == (0, 0, 0)
    per_step = end["charged"] / end["steps"]
    assert 500 <= end["charged"] < 500 + per_step
    assert [row["block"] for row in result["rows"]] == [0, 1, 2]
    assert all(len(row["success"]) == 2 for row in result["rows"])
    assert all(row["low"] <= row["iqm"] <= row["high"] for row in result["rows"])
    (rule,) = result["rules"]
    assert rule["rule"] == "reinforce" and rule["compile_seconds"] > 0 and 0 <= rule["area"] <= 1
    assert (folder / "learning.png").stat().st_size > 0


def test_rules_that_are_done_are_kept(monkeypatch, capsys, tmp_path, learned):
    folder = tmp_path / "run"
    two = ("--rules", "rloo", "grpo", "--run-dir", folder)
    assert call(monkeypatch, *two) == 0 and learned == ["rloo", "grpo"]
    first = read(folder)
    capsys.readouterr()
    assert call(monkeypatch, *two) == 0 and learned == ["rloo", "grpo"]
    assert "rloo" in capsys.readouterr().out
    assert read(folder)["rows"] == first["rows"]
    assert call(monkeypatch, *two, "--rules", "rloo", "gae", "grpo") == 0
    assert learned == ["rloo", "grpo", "gae"]
    again = read(folder)
    assert [own["rule"] for own in again["rules"]] == ["rloo", "gae", "grpo"]
    assert all(row in again["rows"] for row in first["rows"])
    assert call(monkeypatch, *two, "--budget", 7) == 1
    assert "budget was 0.5 and is 7" in capsys.readouterr().err


def test_a_rule_that_was_stopped_begins_again(monkeypatch, capsys, tmp_path, learned):
    """Asked to stop while the second rule learns, then the same command again."""
    flags = ("--rules", "rloo", "grpo", "--run-dir", tmp_path / "run")
    with monkeypatch.context() as patch:
        stopping = contextlib.nullcontext(lambda: learned == ["rloo", "grpo"])
        patch.setattr(run, "stop_on_signal", lambda: stopping)
        assert call(monkeypatch, *flags) == 0
    assert "stopped before grpo was done; the same command" in capsys.readouterr().out
    assert not (tmp_path / "run" / "learning.json").exists()
    assert call(monkeypatch, *flags) == 0
    assert learned == ["rloo", "grpo", "grpo"]


def test_nothing_is_begun_after_the_request_to_stop(monkeypatch, capsys, tmp_path, learned):
    stopping = contextlib.nullcontext(lambda: True)
    monkeypatch.setattr(run, "stop_on_signal", lambda: stopping)
    assert call(monkeypatch, "--run-dir", tmp_path / "run") == 0
    assert "stopped before reinforce;" in capsys.readouterr().out and not learned


@pytest.mark.parametrize("preset", ["maze", "arithmetic"])
def test_the_other_tasks_fit_together(monkeypatch, tmp_path, preset):
    """A warm start is for one policy, whose parameters a rule with a critic takes over."""
    traced = []

    def learn(entrant, mesh, states, success, budget, after_point):
        jax.eval_shape(comparison.make_block(entrant.step), states, jnp.float32(1))
        traced.append(jax.eval_shape(success, states.params).shape)
        return Curve([0], [0.0], [[1.0, 1.0]], [[0.0, 0.0]], 0.0)

    def first_states(entrant, keys, trained, first_states=comparison.first_states):
        shapes = jax.eval_shape(functools.partial(first_states, entrant), keys, trained)
        numbers = shapes._replace(key=None)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), numbers)
        return zeros._replace(key=keys)

    monkeypatch.setattr(comparison, "learn", learn)
    monkeypatch.setattr(comparison, "first_states", first_states)
    few = functools.partial(pretrain.demonstrations, count=16)
    monkeypatch.setattr(pretrain, "demonstrations", few)
    monkeypatch.setattr(train, "check_fit", lambda *_: None)
    if preset == "maze":
        monkeypatch.setattr(train, "untrained", lambda *_: None)
    folder = tmp_path / "run"
    warm = ("--warm-steps", "1") if preset == "arithmetic" else ()
    assert call(monkeypatch, "--preset", preset, "--rules", "gae", "--run-dir", folder, *warm) == 0
    assert traced == [(2,)]
    assert (folder / "warm").exists() == bool(warm)


def test_a_rule_of_ones_own(monkeypatch, tmp_path, learned):
    (tmp_path / "early_rules.py").write_text("def early(rollout, *, entropy): return entropy\n")
    monkeypatch.syspath_prepend(tmp_path)
    flags = ("--rules", "early_rules:early", "--run-dir", tmp_path / "run")
    assert call(monkeypatch, *flags) == 0 and learned == ["early_rules:early"]


BAD = {
    "no seeds": (("--seeds", "0"), 1, "seeds=0"),
    "no budget": (("--budget", "0"), 1, "budget=0"),
    "no end": (("--budget", "inf"), 1, "budget=inf"),
    "no points": (("--points", "0"), 1, "points=0"),
    "no rules": (("--rules",), 1, "rules is empty"),
    "unknown rule": (("--rules", "grop"), 1, "grop"),
    "one rule": (("--advantage", "gae"), 1, "advantage has no use"),
    "steps": (("--steps", "3"), 1, "steps has no use"),
    "unknown task": (("--preset", "chess"), 2, "chess"),
    "held-out problems": (("--rules", "rloo", "--held-out", "100000"), 1, "100000 held-out"),
}


@pytest.mark.parametrize(("flags", "status", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_and_writes_no_run(
    monkeypatch, capsys, tmp_path, learned, flags, status, named
):
    folder = tmp_path / "run"
    assert call(monkeypatch, "--run-dir", folder, *flags) == status
    printed = capsys.readouterr()
    assert named in printed.err + printed.out
    assert "Traceback" not in printed.err and "Traceback" not in printed.out
    assert not learned and not folder.exists()


def test_a_rule_that_does_not_fit_is_refused(monkeypatch, capsys, tmp_path):
    (tmp_path / "own_rules.py").write_text("def flat(rollout): return rollout.reward.sum(-1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def shapes(parts, mesh, key):
        params = jax.eval_shape(parts.policy.init, key)
        return TrainState(params, params, (), key, jnp.int32(0))

    monkeypatch.setattr(train, "untrained", shapes)
    folder = tmp_path / "run"
    assert call(monkeypatch, "--run-dir", folder, "--rules", "own_rules:flat") == 1
    assert "'own_rules:flat' returned advantage of shape" in capsys.readouterr().err
    assert not folder.exists()
