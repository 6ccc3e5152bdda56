"""The maze and the repair experiment as a user runs them: short, resumed, and with bad input."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import small_run

from rlcredit.metrics import read_rows

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
SMALL = (
    *("--warm-steps", "2", "--width", "16", "--layers", "1", "--problems", "4", "--samples", "2"),
    *("--minibatches", "1", "--accumulate", "1", "--evaluate-every", "4", "--lanes", "0"),
)
RUNS = {
    "maze": (("--rewards", "ding", "warmer", "--limit", "3"), ("ding", "warmer")),
    "repair": (("--actions", "4"), ("rl",)),
}
BAD = {
    "size": ("maze", ("--size", "2"), "size=2"),
    "limit": ("maze", ("--limit", "1"), "limit=1"),
    "reward": ("maze", ("--rewards", "gold"), "gold"),
    "no reward": ("maze", ("--rewards",), "rewards"),
    "files": ("repair", ("--files", "0"), "files=0"),
    "weak": ("repair", ("--weak", "2"), "weak=2"),
}


def call(monkeypatch, name, *flags):
    """The script in this process; its exit status."""
    script = EXPERIMENTS / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
    with monkeypatch.context() as patched:
        for patch in small_run.patches():
            patched.setattr(*patch)
        return run(script)


def run(script):
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_leaves_what_it_promises_and_goes_on(monkeypatch, capsys, tmp_path, name):
    flags, stages = RUNS[name]
    folder = tmp_path / "run"
    for steps in (1, 2):
        assert call(monkeypatch, name, *SMALL, *flags, "--steps", steps, "--run-dir", folder) == 0
    assert "goes on from step 1 of 2" in capsys.readouterr().out
    result = json.loads((folder / "result.json").read_text())
    assert {"start", "warm", *stages} <= result.keys()
    for stage in stages:
        rows = read_rows(folder / stage if len(stages) > 1 else folder)
        assert [row["step"] for row in rows] == [1, 2]
        assert 0 < rows[0]["occupancy"] <= 1
    assert (folder / "curves.png").stat().st_size > 0
    assert "return" in (folder / "samples.txt").read_text()


@pytest.mark.parametrize(("name", "flags", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_and_writes_no_run(monkeypatch, capsys, tmp_path, name, flags, named):
    folder = tmp_path / "run"
    assert call(monkeypatch, name, *SMALL, "--run-dir", folder, *flags) in (1, 2)
    printed = capsys.readouterr()
    assert named in printed.err + printed.out
    assert "Traceback" not in printed.err
    assert not folder.exists()
