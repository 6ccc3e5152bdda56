"""The run folder refuses what would mix two runs; the command line fails in one sentence."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlcredit import __version__, run
from rlcredit.types import InputError


@dataclasses.dataclass(frozen=True)
class Config:
    preset: str = "small"
    run_dir: Path = Path("runs/x")
    steps: int = 10
    learning_rate: float = 0.1
    widths: tuple[int, ...] = (1, 2)
    fresh: bool = False


def open_run(folder, config=None, *, fresh=False):
    with run.open_run(
        folder, config or Config(), fresh=fresh, ignore=("fresh", "run_dir", "steps")
    ) as opened:
        return opened


def read(path):
    return json.loads(path.read_text())


def test_new_folder_holds_config_and_versions(tmp_path):
    folder = tmp_path / "runs" / "new"
    assert open_run(folder) == folder
    assert read(folder / "config.json") == {
        "preset": "small",
        "run_dir": "runs/x",
        "steps": 10,
        "learning_rate": 0.1,
        "widths": [1, 2],
        "fresh": False,
    }
    versions = read(folder / "versions.json")
    assert versions["rlcredit"] == __version__
    assert set(run.PACKAGES) < set(versions)
    assert versions["device_count"] >= 1 and versions["command"] == sys.argv
    assert sorted(os.listdir(folder)) == [".lock", "config.json", "versions.json"]


def test_same_configuration_resumes_and_ignored_fields_may_differ(tmp_path):
    open_run(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    open_run(tmp_path, Config(steps=20, run_dir=Path("elsewhere")))
    assert (tmp_path / "metrics.jsonl").exists()
    assert read(tmp_path / "config.json")["steps"] == 20


def test_other_configuration_is_refused_and_every_field_named(tmp_path):
    open_run(tmp_path)
    with pytest.raises(InputError) as caught:
        open_run(tmp_path, Config(learning_rate=0.2, widths=(1,), steps=3))
    message = str(caught.value)
    for words in (
        str(tmp_path),
        "learning_rate was 0.1 and is 0.2",
        "widths was [1, 2] and is [1]",
        "--run-dir",
        "--fresh",
    ):
        assert words in message
    assert "steps" not in message
    assert read(tmp_path / "config.json")["learning_rate"] == 0.1


def test_fields_of_another_version_are_named(tmp_path):
    open_run(tmp_path)
    old = read(tmp_path / "config.json")
    del old["learning_rate"]
    run.write_json(tmp_path / "config.json", old | {"momentum": 0.9})
    with pytest.raises(InputError) as caught:
        open_run(tmp_path)
    assert "learning_rate was 'absent' and is 0.1" in str(caught.value)
    assert "momentum was 0.9 and is 'absent'" in str(caught.value)


def test_fresh_removes_the_earlier_run(tmp_path):
    open_run(tmp_path)
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").touch()
    open_run(tmp_path, Config(learning_rate=0.2), fresh=True)
    assert sorted(os.listdir(tmp_path)) == [".lock", "config.json", "versions.json"]
    assert read(tmp_path / "config.json")["learning_rate"] == 0.2


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "config.json"])
def test_foreign_folder_is_refused_and_untouched(tmp_path, fresh, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=f"{tmp_path} holds files but no run"):
        open_run(tmp_path, fresh=fresh)
    assert os.listdir(tmp_path) == [name]


def test_leftovers_of_a_killed_opening_are_not_foreign(tmp_path):
    for name in run.LEFTOVERS:
        (tmp_path / name).touch()
    open_run(tmp_path)
    assert (tmp_path / "config.json").exists()


def test_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=f"cannot use {folder} as run folder"):
            open_run(folder)


def test_broken_config_is_an_error_that_names_it(tmp_path):
    open_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=f"{tmp_path}/config.json is not JSON"):
        open_run(tmp_path)


def test_folder_in_use_is_refused(tmp_path):
    with (
        run.open_run(tmp_path, Config(), fresh=False, ignore=()),
        pytest.raises(InputError, match=f"another process is running in {tmp_path}"),
    ):
        open_run(tmp_path, fresh=True)
    open_run(tmp_path)


def test_lock_goes_with_a_killed_process(tmp_path):
    code = """if True:
        import fcntl, sys, time
        file = open(sys.argv[1], "a")
        fcntl.flock(file, fcntl.LOCK_EX)
        print(flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            with pytest.raises(InputError, match="another process"):
                open_run(tmp_path)
        finally:
            process.kill()
    open_run(tmp_path)


def test_write_json_replaces_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    run.write_json(path, {"score": 1})

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.os, "replace", fail)
    with pytest.raises(InputError, match=f"cannot write {path}: No space left on device"):
        run.write_json(path, {"score": 2})
    assert read(path) == {"score": 1}
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_a_stop(number):
    before = signal.getsignal(number)
    with run.stop_on_signal() as stop_requested:
        assert not stop_requested()
        signal.raise_signal(number)
        assert stop_requested()
    assert signal.getsignal(number) is before


def test_second_interrupt_interrupts():
    with pytest.raises(KeyboardInterrupt), run.stop_on_signal():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


PRESETS = {"small": Config(), "large": Config(preset="large", steps=1000)}


@pytest.mark.parametrize(
    "flags, want",
    [
        ([], PRESETS["small"]),
        (["--preset", "large"], PRESETS["large"]),
        (["--steps", "7", "--preset=large"], Config(preset="large", steps=7)),
        (["--fresh"], Config(fresh=True)),
    ],
)
def test_flags_start_from_the_preset(monkeypatch, flags, want):
    configs = []

    def main(config: Config) -> None:
        configs.append(config)

    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    run.command_line(main, PRESETS)
    assert configs == [want]


def run_main(monkeypatch, flags, error=None) -> int:
    """The exit status."""

    def main(config: Config) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["train.py", *flags])
    with pytest.raises(SystemExit) as caught:
        run.command_line(main, PRESETS)
    return caught.value.code


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--preset", "huge"], "'huge' (choose from"),
        (["--stepz", "3"], "--stepz"),
        (["--steps", "many"], "many"),
    ],
)
def test_wrong_flag_names_it(monkeypatch, capsys, flags, words):
    assert run_main(monkeypatch, flags) == 2
    assert words in capsys.readouterr().err


def test_help_opens_with_the_docstring_of_the_module(monkeypatch, capsys):
    assert run_main(monkeypatch, ["--help"]) == 0
    shown = capsys.readouterr().out
    assert "The run folder refuses what would mix two runs" in shown and "--learning-rate" in shown


@pytest.mark.parametrize(
    "error, status, message",
    [
        (InputError("no task is called chess"), 1, "error: no task is called chess\n"),
        (FileNotFoundError(2, "No such file", "a"), 1, "error: [Errno 2] No such file: 'a'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=repr,
)
def test_error_of_main_is_one_line(monkeypatch, capsys, error, status, message):
    assert run_main(monkeypatch, [], error) == status
    assert capsys.readouterr().err == message
