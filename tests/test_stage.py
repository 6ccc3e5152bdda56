"""The host's loop around a step."""

import jax
import jax.numpy as jnp
import pytest

from rlcredit import checkpoint
from rlcredit.metrics import read_rows
from rlcredit.run import Stopped
from rlcredit.stage import MAX_SKIPPED_UPDATES, Stage, run_stage, timings
from rlcredit.types import InputError, TrainState


def start():
    params = {"w": jnp.zeros(2)}
    return TrainState(params, {"w": jnp.ones(2)}, (), jax.random.key(0), jnp.int32(0))


def step(state):
    params = {"w": state.params["w"] + jax.random.normal(jax.random.fold_in(state.key, state.step))}
    metrics = {"tokens": jnp.float32(7), "skipped_updates": 0, "w": params["w"][0]}
    return state._replace(params=params, step=state.step + 1), metrics


def evaluate(state):
    return {"pass@1": float(state.params["w"][0])}


def numbers(folder):
    return [(row["step"], row["w"], row.get("eval/pass@1")) for row in read_rows(folder)]


def never():
    return False


def test_rows_and_checkpoints_come_as_often_as_asked(tmp_path):
    stage = Stage("s", tmp_path, 7, evaluate_every=4, checkpoint_every=3, log_every=2)
    state = run_stage(stage, step, start(), never, evaluate)
    rows = read_rows(tmp_path)
    assert [row["step"] for row in rows] == [2, 4, 6, 7]
    assert [row["step"] for row in rows if "eval/pass@1" in row] == [4]
    assert checkpoint.steps(tmp_path / "checkpoints") == [3, 6, 7]
    assert state.step == 7
    seconds, rates = timings({"s": stage}).values()
    assert seconds["s"] > 0 and rates["s"] > 0


@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_a_stopped_stage_goes_on_to_the_same_numbers(tmp_path, stop_at):
    whole = Stage("s", tmp_path / "whole", 6, evaluate_every=2, checkpoint_every=4)
    expected = run_stage(whole, step, start(), never, evaluate)
    parts = whole._replace(folder=tmp_path / "parts")
    calls = iter(range(1, 100))
    with pytest.raises(Stopped, match=f"step {stop_at}"):
        run_stage(parts, step, start(), lambda: next(calls) == stop_at, evaluate)
    state = run_stage(parts, step, start(), never, evaluate)
    assert (state.params["w"] == expected.params["w"]).all()
    assert numbers(parts.folder) == numbers(whole.folder)


def test_rows_behind_the_last_checkpoint_are_written_anew(tmp_path):
    """As after a kill: the record is ahead of the checkpoint."""
    stage = Stage("s", tmp_path, 5, checkpoint_every=2)
    run_stage(stage._replace(steps=2), step, start(), never)
    with (tmp_path / "metrics.jsonl").open("a") as record:
        record.write('{"step": 3, "time": 0, "w": 99, "time/seconds": 1e9}\n{"step": 4, "ti')
    run_stage(stage, step, start(), never)
    rows = read_rows(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[2]["w"] != 99 and rows[-1]["time/seconds"] < 1e6


def test_updates_that_are_never_finite_end_the_run(tmp_path):
    def failing(state):
        state, metrics = step(state)
        return state, metrics | {"skipped_updates": state.step}

    with pytest.raises(InputError, match=f"last {MAX_SKIPPED_UPDATES} updates .* not finite"):
        run_stage(Stage("s", tmp_path, 50), failing, start(), never)
    assert len(read_rows(tmp_path)) == MAX_SKIPPED_UPDATES


def test_one_finite_update_forgives_the_ones_before(tmp_path):
    def mostly_failing(state):
        state, metrics = step(state)
        return state, metrics | {"skipped_updates": state.step % MAX_SKIPPED_UPDATES}

    state = run_stage(Stage("s", tmp_path, 25), mostly_failing, start(), never)
    assert state.step == 25
