"""The house: imports point one way, nothing grows too large, flax stays in one file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rlcredit"

# Part of the package -> the parts that it may import. Collect, measure, credit and learn are apart;
# what touches files or the terminal stands above them.
ALLOWED = {
    "types": set(),
    "masked": {"types"},
    "recurrence": {"types", "kernels"},
    "trees": {"types", "recurrence"},
    "units": {"types", "trees", "recurrence"},
    "keys": {"types", "trees"},
    "coalitions": {"types"},
    "episode": {"types", "keys"},
    "task_check": {"types", "episode"},
    "kernels": {"types", "sharding"},
    "tasks": {"types", "keys"},
    "policy": {"types"},
    "sharding": {"types"},
    "advantages": {"types", "masked", "recurrence", "trees", "units", "coalitions"},
    "losses": {"types", "masked", "units"},
    "packing": {"types"},
    "score": {"types", "kernels", "packing"},
    "lanes": {"types", "kernels", "keys", "episode"},
    "rollout": {"types", "masked", "keys", "episode", "task_check", "lanes", "sharding"},
    "branching": {"types", "keys", "episode", "lanes", "rollout", "sharding"},
    "cuts": {"types", "units", "branching"},
    "exact": {"types", "keys", "episode", "score"},
    "evidence": {
        *("types", "masked", "keys", "episode", "score", "rollout", "sharding", "exact"),
        *("trees", "units", "coalitions", "lanes", "branching", "kernels"),
    },
    "credit": {"types", "evidence"},
    "gradient": {"types", "masked", "losses", "score", "credit", "packing", "sharding"},
    "update": {"types", "credit", "gradient"},
    "pretrain": {"types", "masked", "episode", "score", "update", "sharding"},
    "evaluate": {"types", "masked", "recurrence", "kernels", "rollout"},
    "summary": {"types", "masked"},
    "checkpoint": {"types"},
    "metrics": {"types"},
    "run": {"types", "__init__"},
    "stage": {"types", "checkpoint", "metrics", "run"},
    "train": {
        *("types", "masked", "sharding", "policy", "rollout", "evidence", "advantages", "losses"),
        *("credit", "update", "pretrain", "summary", "stage", "branching", "cuts", "units"),
    },
    "oracle": {
        *("types", "masked", "score", "rollout", "branching", "exact", "evidence", "credit"),
        *("losses", "advantages", "keys", "trees", "units"),
    },
    "comparison": {"types", "masked", "sharding", "update", "rollout", "stage", "train"},
    "credit_view": {"figures"},
    "figures": {"types", "evaluate", "metrics", "run"},
    "__init__": set(),
    "testing": {
        *("types", "advantages", "credit", "sharding", "tasks", "policy", "evidence", "oracle"),
    },
    "catalogue": {"advantages", "credit", "evidence", "losses", "tasks"},
    "new_advantage": {"types", "advantages", "catalogue"},
    "__main__": {
        *("types", "advantages", "evidence", "credit", "catalogue", "new_advantage", "testing"),
        *("survey",),
    },
    "survey": {"types"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted((ROOT / "experiments").glob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Dotted names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside_package = node.module == "rlcredit"
            yield from (
                f"rlcredit.{alias.name}" if inside_package else node.module for alias in node.names
            )


def own_imports(path):
    names = {name.split(".")[1] for name in imports(path) if name.startswith("rlcredit.")}
    return {"__init__" if name == "__version__" else name for name in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    assert part(path) in ALLOWED, f"{part(path)}: say in ALLOWED what it may import"
    forbidden = own_imports(path) - ALLOWED[part(path)] - {part(path)}
    assert not forbidden, f"{path.name} imports {sorted(forbidden)}"


def test_the_order_has_no_circle():
    placed = set()
    while len(placed) < len(ALLOWED):
        free = {name for name, below in ALLOWED.items() if below <= placed} - placed
        assert free, f"a circle among {sorted(set(ALLOWED) - placed)}"
        placed |= free


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_flax_is_imported_by_the_policy_alone(path):
    uses_flax = any(name.split(".")[0] == "flax" for name in imports(path))
    assert not uses_flax or part(path) == "policy"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 50, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_experiments_stay_small(path):
    assert path.read_text().count("\n") <= 200


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda p: p.name)
def test_benchmarks_stay_small(path):
    assert path.read_text().count("\n") <= 300


def test_no_file_without_a_subject():
    vague = {"utils", "common", "base", "helpers"}
    assert not vague & {path.stem for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_names_are_explained(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path.name} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node) or node.name == "main", f"{node.name} has no docstring"
