"""The credit report as a user runs it: its rows, tables and figure, taken up again, bad input."""

import functools
import json
import runpy
import sys
from pathlib import Path

import jax
import pytest
from stubs import quick_jit

from rlcredit import credit_view, sharding

SCRIPT = Path(__file__).parent.parent / "experiments" / "credit_report.py"
SMALL = (
    *("--width", "16", "--problems", "4", "--samples", "2", "--draws", "4", "--judged", "2"),
    *("--tasks", "bifurcation", "--rules", "grpo"),
)
FIGURES = {
    *("bias", "cosine", "variance", "variance_ratio", "signal", "signal_at_equal_price"),
    *("rmse", "shift_rmse", "spearman", "spearman_shuffled", "sign_accuracy", "leakage", "recall"),
}
LABELS = ["reinforce", "grpo", "grpo (sequence_mean)"]


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
    """Everything that is compiled."""
    quick_step = functools.partial(quick_jit, donate_argnums=0)
    monkeypatch.setattr(sharding, "jit_step", lambda mesh, step: quick_step(step))
    monkeypatch.setattr(jax, "jit", quick_jit)


def test_a_report_leaves_what_it_promises_and_is_taken_up_again(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "run"
    assert call(monkeypatch, "--run-dir", folder) == 0
    rows = json.loads((folder / "credit_report.json").read_text())
    assert [credit_view.label(row) for row in rows] == LABELS * 3
    assert [row["stage"] for row in rows[:: len(LABELS)]] == ["fresh", "warm", "half-trained"]
    for row in rows:
        assert row.keys() >= FIGURES and row["task"] == "bifurcation"
        assert all(set(row[name]) == {"value", "low", "high"} for name in FIGURES)
    for reinforce, grpo, by_length in (rows[:3], rows[3:6], rows[6:]):
        assert reinforce["company"] == "none" and grpo["company"] == "every"
        assert reinforce["bias"]["value"] < 1e-4 < grpo["bias"]["value"]
        assert grpo["price"]["charge_ratio"] == 1
        # All episodes of the chain are equally long.
        assert by_length["bias"]["value"] == pytest.approx(grpo["bias"]["value"], rel=1e-4)
    assert "grpo (sequence_mean)" in (folder / "credit_report.md").read_text()
    assert (folder / "credit_report.png").stat().st_size > 0
    assert "half-trained" in capsys.readouterr().out

    # What is done is not done again.
    written = {path: path.stat().st_mtime_ns for path in folder.glob("rows-*.json")}
    assert len(written) == 3
    (folder / "rows-bifurcation-fresh.json").write_text("[]")
    assert call(monkeypatch, "--run-dir", folder) == 0
    again = json.loads((folder / "credit_report.json").read_text())
    assert again == rows[len(LABELS) :]


BAD = {
    "no rule": (("--rules",), "rules is empty"),
    "unknown rule": (("--rules", "grpoo"), "grpoo"),
    "no task": (("--tasks",), "tasks is empty"),
    "draws": (("--draws", "1"), "draws=1 must be 2 or more"),
    "judged": (("--judged", "0"), "judged=0"),
    "steps": (("--steps", "3"), "steps has no use"),
    "no critic": (("--advantage", "grpo"), "'grpo' trains no critic"),
}


@pytest.mark.parametrize(("flags", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named_and_writes_no_run(monkeypatch, capsys, tmp_path, flags, named):
    folder = tmp_path / "run"
    assert call(monkeypatch, "--run-dir", folder, *flags) in (1, 2)
    printed = capsys.readouterr()
    assert named in printed.err + printed.out
    assert "Traceback" not in printed.err
    assert not folder.exists()
