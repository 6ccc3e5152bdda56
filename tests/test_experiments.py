"""The experiment scripts as a user runs them: short, resumed, killed, and with bad input."""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import small_run

from rlcredit import checkpoint
from rlcredit.metrics import read_rows

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "experiments" / "arithmetic.py"
# The processes of this file compile the same programs again and again.
CACHE = tempfile.mkdtemp(prefix="rlcredit-compiled-")
SMALL = (
    *("--warm-steps", "3", "--width", "16", "--layers", "1", "--problems", "4", "--samples", "2"),
    *("--minibatches", "1", "--accumulate", "1"),
    *("--evaluate-every", "2", "--checkpoint-every", "1"),
)


def call(monkeypatch, *flags):
    """The script in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    with monkeypatch.context() as patched:
        for patch in small_run.patches():
            patched.setattr(*patch)
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        except SystemExit as stop:
            return stop.code
    return 0


def start(*flags, shell=""):
    """The script in a process of its own, on one device; `shell` runs before it."""
    command = ["bash", "-c", f'{shell}exec "$@"', "bash", sys.executable]
    command += [str(ROOT / "tests" / "small_run.py"), str(SCRIPT), *SMALL, *map(str, flags)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": CACHE}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def numbers(folder):
    """The rows without what a clock says."""
    return [
        {name: value for name, value in row.items() if not name.startswith("time")}
        for row in read_rows(folder)
    ]


def stored(folder):
    """The bytes of the newest checkpoint, by leaf."""
    newest = folder / "checkpoints" / str(checkpoint.steps(folder / "checkpoints")[-1])
    return checkpoint.ocp.load(newest.absolute() / "arrays")


def assert_same_run(one, other):
    assert numbers(one) == numbers(other)
    assert numbers(one / "warm") == numbers(other / "warm")
    mine, yours = stored(one), stored(other)
    assert mine.keys() == yours.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], yours[name], err_msg=name)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    process = start("--steps", 4, "--run-dir", folder)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return folder, output


def test_a_run_leaves_what_it_promises(unbroken):
    folder, output = unbroken
    names = {path.name for path in folder.iterdir()}
    promised = {"config.json", "versions.json", "metrics.jsonl", "result.json", "samples.txt"}
    assert promised | {"checkpoints", "warm"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert "after RL" in output and "rl 4/4" in output
    config = json.loads((folder / "config.json").read_text())
    assert (config["steps"], config["seed"], config["advantage"]) == (4, 0, "grpo")
    result = json.loads((folder / "result.json").read_text())
    stage = {"pass@1", "pass@8", "greedy", "entropy", "kl", "mean_length"}
    assert all(set(result[name]) == stage for name in ("start", "warm", "rl"))
    assert set(result["seconds"]) == set(result["tokens_per_second"]) == {"warm", "rl"}
    assert "$" in (folder / "samples.txt").read_text()


def test_rows_have_the_names_that_users_know(unbroken):
    rows = read_rows(unbroken[0])
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    known = {"reward", "reward_std", "frac_reward_zero_std", "entropy", "grad_norm"}
    known |= {"clip_ratio/low_mean", "clip_ratio/high_mean", "completions/mean_length"}
    known |= {"adv/raw_mean", "adv/final_std", "price/tokens_sampled", "skipped_updates"}
    assert known <= rows[0].keys()
    assert "eval/pass@1" in rows[1] and "eval/pass@1" not in rows[0]


def test_an_extended_run_equals_an_unbroken_one(unbroken, tmp_path):
    folder = tmp_path / "run"
    for steps in (2, 4):
        process = start("--steps", steps, "--run-dir", folder)
        output = process.communicate()[0]
        assert process.returncode == 0, output
    assert "rl: goes on from step 2 of 4" in output
    assert_same_run(unbroken[0], folder)


@pytest.mark.parametrize("stage", ["warm", ""])
def test_a_killed_run_equals_an_unbroken_one(unbroken, tmp_path, stage):
    """SIGKILL as soon as a stage has a checkpoint, then the same command again."""
    folder = tmp_path / "run"
    process = start("--steps", 4, "--run-dir", folder)
    while process.poll() is None and not checkpoint.steps(folder / stage / "checkpoints"):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = start("--steps", 4, "--run-dir", folder)
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert_same_run(unbroken[0], folder)


def test_sigterm_saves_and_ends_in_order(tmp_path):
    folder = tmp_path / "run"
    process = start("--steps", 100_000, "--run-dir", folder, "--checkpoint-every", 50_000)
    while process.poll() is None and len(read_rows(folder)) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "stopped and saved at step" in output
    assert checkpoint.steps(folder / "checkpoints") == [len(read_rows(folder))]


def test_a_write_that_fails_is_named_and_leaves_no_checkpoint(tmp_path):
    process = start("--run-dir", tmp_path / "run", shell="ulimit -f 4; trap '' XFSZ; ")
    output = process.communicate()[0]
    assert process.returncode == 1
    assert "error: cannot write the checkpoint" in output
    assert checkpoint.steps(tmp_path / "run" / "warm" / "checkpoints") == []


BAD = {
    "wrong flag": (("--stepps", "3"), 2, "stepps"),
    "wrong type": (("--steps", "many"), 2, "many"),
    "wrong preset": (("--preset", "laptop"), 2, "laptop"),
    "unknown rule": (("--advantage", "grop"), 1, "grop"),
    "unknown module": (("--advantage", "no_such_module:rule"), 1, "no_such_module"),
    "unknown function": (("--advantage", "rlcredit.masked:rule"), 1, "rule"),
    "unknown loss": (("--loss", "pppo"), 1, "pppo"),
    "unknown hyperparameter": (("--advantage-kwargs", "epsilon=1"), 1, "epsilon"),
    "hyperparameter of a wrong type": (("--advantage-kwargs", "eps=small"), 1, "small"),
    "group rule with one sample": (("--samples", "1"), 1, "grpo"),
    "no problems": (("--problems", "0"), 1, "0 problems"),
    "problems that do not divide": (("--minibatches", "3"), 1, "minibatches=3"),
    "fewer lanes than none": (("--lanes=-1",), 1, "lanes=-1"),
    "no such unit": (("--unit", "word"), 1, "'word'"),
    "no such cut": (("--cut", "every:0"), 1, "'every:0'"),
    "no continuations": (("--continuations", "0"), 1, "continuations=0"),
    "noise below none": (("--noise=-1",), 1, "noise=-1"),
    "no samples": (("--samples", "0"), 1, "samples"),
    "no such operator": (("--operators", "/"), 1, "operators"),
    "a chance above one": (("--wrong", "1.5"), 1, "wrong=1.5"),
    "sizes that do not divide": (("--width", "10"), 1, "width=10"),
    "zero temperature": (("--temperature", "0"), 1, "temperature"),
}


@pytest.mark.parametrize(("flags", "status", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_and_writes_no_run(monkeypatch, capsys, tmp_path, flags, status, named):
    folder = tmp_path / "run"
    assert call(monkeypatch, *SMALL, "--run-dir", folder, *flags) == status
    printed = capsys.readouterr()
    assert named in printed.err + printed.out
    assert "Traceback" not in printed.err
    assert not (folder / "metrics.jsonl").exists()


def test_missing_evidence_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "my_rules.py").write_text(
        "def wants(rollout, *, tea_leaves): return tea_leaves\n"
        "def wrong_shape(rollout): return rollout.reward.sum(-1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = (*SMALL, "--run-dir", tmp_path / "run", "--advantage")
    assert call(monkeypatch, *run, "my_rules:wants") == 1
    assert "tea_leaves" in capsys.readouterr().err
    assert call(monkeypatch, *run, "my_rules:wrong_shape") == 1
    assert "my_rules:wrong_shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "field", "was"),
    [("--seed", "seed", "0"), ("--digits", "digits", "1"), ("--epochs", "epochs", "1")],
)
def test_another_configuration_is_refused_by_name(unbroken, monkeypatch, capsys, flag, field, was):
    assert call(monkeypatch, *SMALL, "--run-dir", unbroken[0], flag, 2) == 1
    assert f"({field} was {was} and is 2)" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "run"
    assert call(monkeypatch, *SMALL, "--run-dir", folder) == 1
    assert str(folder) in capsys.readouterr().err
