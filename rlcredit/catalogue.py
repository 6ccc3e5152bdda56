"""What there is to choose from, as `python -m rlcredit list` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from rlcredit.advantages import ADVANTAGES
from rlcredit.credit import signature
from rlcredit.evidence import EVIDENCE
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.tasks import TASKS

TABLES: dict[str, Mapping[str, Callable]] = {
    "advantages": ADVANTAGES,
    "losses": LOSSES,
    "reducers": REDUCERS,
    "evidence": EVIDENCE,
    "tasks": TASKS,
}
Catalogue = dict[str, dict[str, dict]]


def catalogue() -> Catalogue:
    """Every table: name -> evidence, hyperparameters with their defaults, what it is."""
    return {
        table: {name: _entry(function) for name, function in entries.items()}
        for table, entries in TABLES.items()
    }


def as_text(entries: Catalogue) -> str:
    """For the terminal."""
    lines = []
    for table, functions in entries.items():
        lines.append(table)
        for name, entry in functions.items():
            hyperparameters = [f"{k}={v}" for k, v in entry["hyperparameters"].items()]
            needs = [f"needs {', '.join(entry['evidence'])}"] if entry["evidence"] else []
            lines.append(
                f"  {name:20} {'; '.join([' '.join(hyperparameters), *needs]).strip('; ')}"
            )
            lines.append(f"  {'':20} {entry['doc']}")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(entries: Catalogue) -> str:
    """The tables of the README."""
    lines = []
    for table, functions in entries.items():
        lines += ["", f"| {table} | needs | hyperparameters | |", "|---|---|---|---|"]
        lines += [markdown_row(name, entry) for name, entry in functions.items()]
    return "\n".join(lines).strip()


def markdown_row(name: str, entry: dict) -> str:
    """The line of one entry in its table."""
    hyperparameters = [f"{k}={v}" for k, v in entry["hyperparameters"].items()]
    cells = (", ".join(entry["evidence"]), " ".join(hyperparameters), entry["doc"])
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| `{name}` | {' | '.join(escaped)} |"


def _entry(function: Callable) -> dict:
    evidence, hyperparameters = signature(function)
    return {
        "evidence": list(evidence),
        # JSON has no infinity.
        "hyperparameters": {
            name: value if value != float("inf") else "inf"
            for name, value in hyperparameters.items()
        },
        "doc": _summary(function),
    }


def _summary(function: Callable) -> str:
    """The first paragraph on a function; on its module, where that is a file for it alone."""
    module = inspect.getmodule(function)
    own_file = module is not None and module.__name__.endswith(f".{function.__name__}")
    doc = inspect.getdoc(module if own_file else function) or ""
    return doc.partition("\n\n")[0].replace("\n", " ")
