"""`python -m rlcredit new-advantage`: what it writes works as it stands, or nothing is written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcredit import credit
from rlcredit.__main__ import main
from rlcredit.advantages import ADVANTAGES
from rlcredit.new_advantage import LONGEST, add_to_checkout, write_here
from rlcredit.types import InputError

ROOT = Path(__file__).parent.parent
EDITED = (
    "rlcredit/advantages/__init__.py",
    "tests/reference.py",
    "README.md",
)


def run(folder, library, *command):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project."""
    for name in ("rlcredit", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_in_a_checkout_it_is_listed_offered_and_tested(checkout):
    told = run(checkout, checkout, "rlcredit", "new-advantage", "early_bird")
    assert told.count("\n") == 1 and told.rstrip().endswith("arithmetic.py --advantage early_bird")
    assert all(name in told for name in EDITED)
    listed = json.loads(run(checkout, checkout, "rlcredit", "list", "--json"))["advantages"]
    assert list(listed)[-1] == "early_bird"
    assert listed["early_bird"]["doc"] == "early_bird: the return relative to the group mean."
    own = ["tests/test_early_bird.py", "tests/test_catalogue.py"]
    generic = ["tests/test_advantages.py", "tests/test_every_rule.py"]
    # The properties are those of the rule in the next test, and what trains is `dr_grpo`.
    chosen = "(early_bird or readme or left_out) and not (property or trains)"
    tested = ("-o", "addopts=-q", "-k", chosen)
    passed = run(checkout, checkout, "pytest", *own, *generic, *tested)
    assert int(re.search(r"(\d+) passed", passed).group(1)) >= 7


def test_in_a_folder_of_ones_own_it_passes_its_test_and_is_offered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["new-advantage", "early_bird", "--here"])
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and "--advantage early_bird:early_bird" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "early_bird.py",
        "test_early_bird.py",
    ]
    assert "4 passed" in run(tmp_path, ROOT, "pytest", "-q", "-W", "error")
    monkeypatch.syspath_prepend(str(tmp_path))
    bound = credit.from_flags("early_bird:early_bird", ADVANTAGES, "advantage", ())
    assert bound.evidence == () and "Say here" in bound.function.func.__doc__
    main(["check", "early_bird:early_bird"])
    assert "passed       equal rewards" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a", "rule2", "rule10", "zeta", "Grpo2", "n" * LONGEST])
def test_the_edited_files_pass_ruff(checkout, name):
    ruff = shutil.which("ruff", path=Path(sys.executable).parent) or pytest.skip("no ruff here")
    add_to_checkout("rule3", checkout)
    add_to_checkout(name, checkout)
    files = [path for path in contents(checkout) if name in path.stem.split("test_")]
    files += [checkout / name for name in EDITED if name.endswith(".py")]
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run([ruff, *command, *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name, said",
    [
        ("early-bird", "no name for a Python function"),
        ("lambda", "no name for a Python function"),
        ("grpo", "there is a rule 'grpo' already"),
        ("n" * (LONGEST + 1), "longer than"),
        ("spread", "means something else"),  # the rule's file imports it
        ("returns", "means something else"),  # a function among the references
        ("half_done", r"half_done\.py exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_written(checkout, name, said):
    (checkout / "rlcredit/advantages/half_done.py").touch()
    before = contents(checkout)
    with pytest.raises(InputError, match=said):
        add_to_checkout(name, checkout)
    assert contents(checkout) == before


@pytest.mark.parametrize(
    "name, said", [("json", "Python has already"), ("rows", "means something")]
)
def test_here_a_name_that_cannot_be_used_is_refused_and_nothing_written(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        write_here(name, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("existing", ["mine.py", "test_mine.py"])
def test_here_an_existing_file_stays(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    with pytest.raises(InputError, match=f"{existing} exists already"):
        write_here("mine", tmp_path)
    assert contents(tmp_path) == {tmp_path / existing: b"precious"}


def test_without_a_checkout_the_command_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["new-advantage", "early_bird"])
    assert stop.value.code == 2
    assert re.fullmatch("error: no checkout of the project .*--here\n", capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


def test_a_checkout_that_has_no_place_for_the_rule_is_refused(checkout):
    (checkout / "README.md").write_text("no tables\n")
    before = contents(checkout)
    with pytest.raises(InputError, match=r"README\.md has no '\| advantages \| needs \|'"):
        add_to_checkout("early_bird", checkout)
    assert contents(checkout) == before


@pytest.mark.parametrize("last", ["README.md", "test_early_bird.py"])
def test_all_is_written_or_nothing(checkout, monkeypatch, last):
    before = contents(checkout)
    write = Path.write_text

    def fails_once(path, text):
        if path.name == last:
            monkeypatch.setattr(Path, "write_text", write)
            write(path, text[:10])
            raise OSError(28, "No space left on device")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", fails_once)
    with pytest.raises(InputError, match=f"cannot write .*{last}: No space left on device"):
        add_to_checkout("early_bird", checkout)
    assert contents(checkout) == before
