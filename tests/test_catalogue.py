"""`python -m rlcredit list`, and what it takes to add a rule."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcredit.__main__ import TABLES, catalogue, main

ROOT = Path(__file__).parent.parent

PLANTED = '''"""Planted."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.types import Array, Rollout


def planted(rollout: Rollout, *, entropy: Array, beta: float = 0.5) -> Array:
    """A[t] = beta * entropy[t]."""
    return jnp.where(rollout.mask, beta * entropy, 0)
'''


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


def test_a_new_rule_takes_a_file_an_import_and_an_entry(tmp_path):
    """Planted in a copy of the project, it is listed, offered by the flag and tested."""
    for name in ("rlcredit", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    rules = tmp_path / "rlcredit" / "advantages"
    (rules / "planted.py").write_text(PLANTED)
    table = (rules / "__init__.py").read_text()
    table = table.replace(
        "from rlcredit.advantages.gae import gae\n",
        "from rlcredit.advantages.gae import gae\n"
        "from rlcredit.advantages.planted import planted\n",
    ).replace('    "gae": gae,\n', '    "gae": gae,\n    "planted": planted,\n')
    (rules / "__init__.py").write_text(table)

    def run(*command):
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.stdout

    listed = json.loads(run("-m", "rlcredit", "list", "--json"))["advantages"]["planted"]
    assert (listed["evidence"], listed["hyperparameters"]) == (["entropy"], {"beta": 0.5})
    bound = run(
        "-c",
        "from rlcredit import credit; from rlcredit.advantages import ADVANTAGES;"
        "print(credit.from_flags('planted', ADVANTAGES, 'advantage', ('beta=0.2',)).name)",
    )
    assert bound.strip() == "planted"
    collected = run("-m", "pytest", "tests/test_advantages.py", "--collect-only")
    assert collected.count("planted") >= 5
