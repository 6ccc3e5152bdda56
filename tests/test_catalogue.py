"""`python -m rlcredit list`."""

import json
import math
from pathlib import Path

import pytest

from rlcredit.__main__ import main
from rlcredit.catalogue import TABLES, catalogue

ROOT = Path(__file__).parent.parent


def test_json_has_every_entry_with_its_declaration(capsys):
    main(["list", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert {"advantages", "losses", "evidence", "tasks"} <= printed.keys()
    for table, functions in TABLES.items():
        assert list(printed[table]) == list(functions)
    assert printed["advantages"]["gae"]["evidence"] == ["value"]
    assert printed["advantages"]["gae"]["hyperparameters"] == {"discount": 1.0, "lambda_": 1.0}
    assert printed["losses"]["grpo"]["evidence"] == ["ref_log_prob"]
    assert printed["advantages"]["rloo"]["doc"]


def test_json_is_strict_json(capsys):
    main(["list", "--json"])

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert catalogue()["losses"]["ppo"]["hyperparameters"]["dual_clip"] == str(math.inf)


def test_text_names_everything(capsys):
    main(["list"])
    printed = capsys.readouterr().out
    for functions in TABLES.values():
        assert all(f"  {name}" in printed for name in functions)


def test_the_tables_of_the_readme_are_current(capsys):
    main(["list", "--markdown"])
    readme = (ROOT / "README.md").read_text()
    start, end = readme.index("list --markdown -->") + 19, readme.index("<!-- end of catalogue")
    assert readme[start:end].strip() == capsys.readouterr().out.strip()


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["lst"])
    assert stop.value.code == 2
    assert "lst" in capsys.readouterr().err
