"""What the benchmarks measure with: order of runs, paired ratios, random play."""

import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.tasks import TASKS

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))
    sys.modules.pop("timing", None)


def test_programs_run_in_turn_after_one_run_each(load):
    order = []
    programs = {name: lambda name=name: order.append(name) or jnp.zeros(1) for name in "ab"}
    seconds = load("timing")["interleaved"](programs, 3)
    assert order == ["a", "b"] * 4
    assert all(times.shape == (3,) and (times > 0).all() for times in seconds.values())


def test_ratios_are_of_pairs_and_rows_of_quantiles(load):
    timing = load("timing")
    slow, fast = np.array([2.0, 30.0, 8.0]), np.array([1.0, 10.0, 2.0])
    assert timing["ratio"](slow, fast) == 3.0  # of 2, 3 and 4; that of the medians is 4
    row = timing["row"]("op", "shape", "way", np.arange(1.0, 12.0), occupancy=0.5)
    assert (row["p20"], row["median"], row["p80"], row["n"]) == (3.0, 6.0, 9.0, 11)
    assert row["occupancy"] == 0.5


def test_a_report_is_printed_and_written_with_its_machine(load, tmp_path, capsys):
    timing = load("timing")
    rows = [timing["row"]("op", "shape", way, np.ones(2)) for way in ("one", "other")]
    timing["report"](rows, tmp_path / "rows.json")
    assert "other" in capsys.readouterr().out
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["rows"] == rows and written["machine"]["jax"] == jax.__version__


def test_a_random_token_is_one_of_the_allowed_each_as_likely(load):
    allowed = jnp.asarray([False, True, False, True, True])
    choose = jax.vmap(load("rollout")["_any_of"], (None, 0))
    counts = np.bincount(choose(allowed, jax.random.split(jax.random.key(0), 3000)), minlength=5)
    assert not counts[[0, 2]].any() and (np.abs(counts[[1, 3, 4]] - 1000) < 120).all()


def test_random_play_starts_again_after_an_end(load):
    task = TASKS["bifurcation"]()  # episodes of five tokens that earn at the last one
    state, rewards = load("rollout")["_random_play"](task, 8, 12)()
    assert (state.position == 12 % 5).all()
    assert (np.flatnonzero(rewards) % 5 == 4).all() and np.count_nonzero(rewards) == 2
