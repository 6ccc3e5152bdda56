"""The record of metrics, the event file made from it, and the plain progress lines."""

import io
import json
import math
import resource
import struct

import jax
import pytest
from tensorboardX.proto.event_pb2 import Event

from rlcredit import metrics
from rlcredit.metrics import MetricWriter, progress, read_rows
from rlcredit.types import InputError


def read_points(folder) -> list[tuple[int, str, float]]:
    """All points of all event files in `folder`, in the order written."""
    points = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + size])
            points += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            content = content[12 + size + 4 :]
    return points


def test_rows_are_readable_while_the_writer_is_open(tmp_path):
    with MetricWriter(tmp_path, -1) as writer:
        writer.write(3, {"reward": 0.5, "pass@1": 1})
        (row,) = read_rows(tmp_path)
        assert (row["step"], row["reward"], row["pass@1"]) == (3, 0.5, 1.0)
        assert row["time"] > 1e9
        assert read_points(tmp_path) == [(3, "reward", 0.5), (3, "pass@1", 1.0)]


def test_resumed_run_has_one_value_for_each_step(tmp_path):
    """FL-114."""
    with MetricWriter(tmp_path, -1) as writer:
        for step in range(10, 151, 10):
            writer.write(step, {"reward": 1.0})
    with MetricWriter(tmp_path, 100) as writer:
        assert read_points(tmp_path)[-1] == (100, "reward", 1.0)
        for step in range(110, 201, 10):
            writer.write(step, {"reward": 2.0})
    want = [(step, "reward", 1.0 if step <= 100 else 2.0) for step in range(10, 201, 10)]
    assert read_points(tmp_path) == want
    assert [(row["step"], "reward", row["reward"]) for row in read_rows(tmp_path)] == want


def test_new_run_keeps_nothing(tmp_path):
    for value in (1.0, 2.0):
        with MetricWriter(tmp_path, -1) as writer:
            writer.write(0, {"reward": value})
    assert read_points(tmp_path) == [(0, "reward", 2.0)]
    assert len(read_rows(tmp_path)) == 1


def test_half_written_last_line_is_dropped(tmp_path):
    with MetricWriter(tmp_path, -1) as writer:
        writer.write(1, {"reward": 1.0})
        writer.write(2, {"reward": 2.0})
    record = tmp_path / "metrics.jsonl"
    record.write_bytes(record.read_bytes()[:-5])
    assert [row["step"] for row in read_rows(tmp_path)] == [1]
    with MetricWriter(tmp_path, 2) as writer:
        writer.write(2, {"reward": 3.0})
    assert [(row["step"], row["reward"]) for row in read_rows(tmp_path)] == [(1, 1.0), (2, 3.0)]


def test_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(InputError, match=f"{tmp_path}/metrics.jsonl, line 2"):
        read_rows(tmp_path)


def test_numbers_that_are_not_finite(tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    with MetricWriter(tmp_path, -1) as writer:
        writer.write(1, values)
    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert (row["a"], row["b"], row["c"]) == ("nan", "inf", "-inf")
    MetricWriter(tmp_path, 1).close()
    (row,) = read_rows(tmp_path)
    assert math.isnan(row["a"]) and (row["b"], row["c"]) == (math.inf, -math.inf)
    assert [value for _, _, value in read_points(tmp_path)][1:] == [math.inf, -math.inf]


def test_other_processes_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with MetricWriter(tmp_path, -1) as writer, progress(1, 0, "rl") as update:
        writer.write(1, {"reward": 1.0})
        update(1, {"reward": 1.0})
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out == ""


def test_unwritable_folder_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=f"cannot write {tmp_path}/file/metrics.jsonl: "):
        MetricWriter(tmp_path / "file", -1)


def test_full_disk_is_an_error_that_names_the_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(InputError, match=f"cannot write {tmp_path}/metrics.jsonl: File too"),
            MetricWriter(tmp_path, -1) as writer,
        ):
            for step in range(100):
                writer.write(step, {"reward": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    rows = read_rows(tmp_path)
    assert [row["step"] for row in rows] == list(range(len(rows))) and len(rows) > 5


def test_plain_progress_lines(monkeypatch, capsys):
    clock = iter([0.0, *range(10, 1000, 10)])
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(clock))
    scalars = {"reward": 0.5123, "pass@1": 0.43, "time/tokens_per_second": 12345.4, "loss": 1.0}
    with progress(200, 0, "rl") as update:
        for step in (20, 40):
            update(step, scalars)
        update(60, {})
    assert capsys.readouterr().out.splitlines() == [
        "rl 20/200 reward 0.512 pass@1 0.430 12345 tokens/s 01:30 left",
        "rl 40/200 reward 0.512 pass@1 0.430 12345 tokens/s 01:20 left",
        "rl 60/200 01:10 left",
    ]


def test_plain_progress_shows_the_first_the_last_and_each_tenth(capsys):
    with progress(1000, 500, "rl") as update:
        for step in range(501, 1001):
            update(step, {})
    steps = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]
    assert steps == [501, 600, 700, 800, 900, 1000]


def test_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress(10, 2, "rl") as update:
        update(10, {"reward": 0.5, "pass@1": 0.25, "time/tokens_per_second": 1000.0})
    shown = terminal.getvalue()
    assert all(word in shown for word in ("rl", "10/10", "reward 0.500 pass@1 0.250", "1000 tok"))
