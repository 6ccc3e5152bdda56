"""`python -m rlcredit list`: what there is to choose from."""

from __future__ import annotations

import argparse
import inspect
import json
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


def catalogue() -> dict[str, dict[str, dict]]:
    """Every table: name -> evidence, hyperparameters with their defaults, what it is."""
    return {
        table: {name: _entry(function) for name, function in entries.items()}
        for table, entries in TABLES.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rlcredit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="credit rules, losses, reducers, evidence, tasks")
    form = listing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as one JSON object")
    form.add_argument("--markdown", action="store_true", help="as the tables of the README")
    options = parser.parse_args(arguments)
    entries = catalogue()
    as_text = _markdown if options.markdown else _text
    print(json.dumps(entries, indent=2) if options.json else as_text(entries))


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


def _text(entries: dict[str, dict[str, dict]]) -> str:
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


def _markdown(entries: dict[str, dict[str, dict]]) -> str:
    lines = []
    for table, functions in entries.items():
        lines += ["", f"| {table} | needs | hyperparameters | |", "|---|---|---|---|"]
        for name, entry in functions.items():
            hyperparameters = [f"{k}={v}" for k, v in entry["hyperparameters"].items()]
            cells = (", ".join(entry["evidence"]), " ".join(hyperparameters), entry["doc"])
            escaped = [cell.replace("|", "\\|") for cell in cells]
            lines.append(f"| `{name}` | {' | '.join(escaped)} |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    main()
