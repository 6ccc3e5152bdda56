"""`python -m rlcredit new-advantage`: a credit rule that works, and its test, to start from."""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
from pathlib import Path

from rlcredit.advantages import ADVANTAGES
from rlcredit.catalogue import markdown_row
from rlcredit.types import InputError

SUMMARY = "NAME: the return relative to the group mean."
LONGEST = 30  # letters of a name that fits every line it stands in

RULE = f'''"""{SUMMARY}"""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def NAME(rollout: Rollout) -> Array:
    """A[t] = R - mean_group R.

    Say here what this does to the policy gradient, and where it is from: author, year, arXiv id.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    return spread(masked.center(total, present, axis=1), rollout)
'''

SLOW_IN_THE_TEST = '''def slow(rollout):
    """The same in loops, written from the equation."""
    advantage = np.zeros(rollout.mask.shape)
    for n, group in enumerate(rollout.mask):
        rows = [k for k in range(len(group)) if group[k].any()]
        total = {k: rollout.reward[n, k][group[k]].sum() for k in rows}
        for k in rows:
            advantage[n, k][group[k]] = total[k] - np.mean(list(total.values()))
    return advantage
'''

SLOW_IN_THE_REFERENCES = """def NAME(rollout):
    return outcome(rollout, lambda own, group: own - np.mean(group))
"""

TEST = '''"""NAME equals a slow loop, and has what every rule is held to."""

import jax
import numpy as np
import pytest
IMPORTS

@pytest.mark.parametrize("seed", range(3))
def test_equals_a_slow_loop(seed):
    rollout = rollouts.random_rollout(np.random.default_rng(seed))
    advantage = jax.jit(NAME)(rollout)
    np.testing.assert_allclose(advantage, slow(rollout), atol=1e-5)


def test_has_every_property():
    assert_advantage(NAME)
'''

IMPORTS_HERE = f"""from rlcredit.testing import assert_advantage, rollouts

from NAME import NAME


{SLOW_IN_THE_TEST}"""

IMPORTS_IN_A_CHECKOUT = """from reference import NAME as slow

from rlcredit.advantages import NAME
from rlcredit.testing import assert_advantage, rollouts
"""


def write_here(name: str, folder: Path) -> str:
    """Writes NAME.py and test_NAME.py; says in a line how to go on.

    Raises: InputError, with nothing written, where the name or the place cannot be used.
    """
    _refuse_name(name, RULE + TEST + SLOW_IN_THE_TEST)
    files = {
        folder / f"{name}.py": RULE,
        folder / f"test_{name}.py": TEST.replace("IMPORTS", IMPORTS_HERE),
    }
    _refuse_existing(files)
    if importlib.util.find_spec(name):
        raise InputError(f"{name!r} is a module that Python has already: take another name")
    _write({path: _named(text, name) for path, text in files.items()})
    script = Path(__file__).parent.parent / "experiments/arithmetic.py"
    script = script if script.exists() else "experiments/arithmetic.py"  # installed without them
    return (
        f"wrote {name}.py and test_{name}.py; to train with it: "
        f"python {script} --advantage {name}:{name}"
    )


def add_to_checkout(name: str, root: Path) -> str:
    """Writes a rule and its test into the project, and enters it wherever every rule stands.

    That is the table of rules, that of the references and the README.

    Raises: as `write_here`, and where `root` is no checkout of the project.
    """
    table, references = root / "rlcredit/advantages/__init__.py", root / "tests/reference.py"
    readme = root / "README.md"
    edited = {path: _read(path) for path in (table, references, readme)}
    _refuse_name(name, RULE + TEST + edited[references])
    new = {
        root / f"rlcredit/advantages/{name}.py": RULE,
        root / f"tests/test_{name}.py": TEST.replace("IMPORTS", IMPORTS_IN_A_CHECKOUT),
    }
    _refuse_existing(new)
    row = markdown_row("NAME", {"evidence": [], "hyperparameters": {}, "doc": SUMMARY})
    entries = [
        (table, "ADVANTAGES = {\n", "}\n", '    "NAME": NAME,\n'),
        (references, "", "ADVANTAGES = {\n", SLOW_IN_THE_REFERENCES + "\n\n"),
        (references, "ADVANTAGES = {\n", "}\n", '    "NAME": NAME,\n'),
        (readme, "| advantages | needs |", "\n\n", f"\n{row}"),
    ]
    for path, after, before, entry in entries:
        edited[path] = _insert(path, edited[path], after, before, _named(entry, name))
    edited[table] = _with_import(edited[table], name)
    _write({path: _named(text, name) for path, text in new.items()} | edited)
    return (
        f"wrote rlcredit/advantages/{name}.py and tests/test_{name}.py, and entered it in "
        f"{', '.join(str(path.relative_to(root)) for path in edited)}; to train with it: "
        f"python experiments/arithmetic.py --advantage {name}"
    )


def _refuse_name(name: str, code: str) -> None:
    """Args: code: what the name will stand in, where it must not mean anything yet."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InputError(f"{name!r} is no name for a Python function")
    if name in ADVANTAGES:
        raise InputError(f"there is a rule {name!r} already")
    if len(name) > LONGEST:
        raise InputError(f"{name!r} is longer than {LONGEST} letters")
    fields = ("id", "arg", "name")  # of variables, arguments, imports and definitions
    if any(
        getattr(node, field, None) == name for node in ast.walk(ast.parse(code)) for field in fields
    ):
        raise InputError(f"{name!r} means something else in the file of the rule or of its test")


def _refuse_existing(files: dict[Path, str]) -> None:
    for path in files:
        if path.exists():
            raise InputError(f"{path} exists already: take another name")


def _named(text: str, name: str) -> str:
    return re.sub(r"\bNAME\b", name, text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(
            f"no checkout of the project here, it would have {path}: go to one, or use --here"
        ) from error


def _insert(path: Path, text: str, after: str, before: str, entry: str) -> str:
    """`text` with the entry put before the first `before` that follows `after`."""
    start = text.find(after)
    end = text.find(before, start + len(after))
    if start < 0 or end < 0:
        raise InputError(f"{path} has no {(after or before).strip()!r} to enter the rule in")
    return text[:end] + entry + text[end:]


def _with_import(table: str, name: str) -> str:
    """The table of rules with one more import, in the order that ruff wants."""
    imported = re.findall(r"^from rlcredit\.advantages\.\w+ import .*\n", table, re.MULTILINE)
    own = f"from rlcredit.advantages.{name} import {name}\n"
    return table.replace("".join(imported), "".join(sorted([*imported, own], key=_natural)))


def _natural(line: str) -> list:
    """Numbers in a name by their size: rule2 before rule10."""
    parts = re.split(r"(\d+)", line.split()[1].lower())
    return [int(part) if part.isdecimal() else part for part in parts]


def _write(files: dict[Path, str]) -> None:
    """All of them or none."""
    before = {path: path.read_text() if path.exists() else None for path in files}
    try:
        for path, text in files.items():
            path.write_text(text)
    except OSError as error:
        for touched, text in before.items():
            if text is None:
                touched.unlink(missing_ok=True)
            elif touched.read_text() != text:
                touched.write_text(text)
        raise InputError(f"cannot write {path}: {error.strerror}") from error
