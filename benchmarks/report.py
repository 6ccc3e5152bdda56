"""The table of the README and its figure, from the results of the other benchmarks.

    python benchmarks/report.py                       # prints the table
    python benchmarks/report.py --write README.md --figure docs/benchmarks.png

Reads `benchmarks/results/*.json`. A row is one entry of it; `x ours` is how many times as long an
implementation takes as this project's, so below 1 it is faster. What could not be measured says so.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from rlcredit.types import InputError

RESULTS = Path(__file__).parent / "results"
SUBJECTS = ("losses", "recurrences", "rollout", "training")
MARK, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
COLUMNS = {
    "what": "---",
    "implementation": "---",
    "time": "---:",
    "rate": "---:",
    "of ceiling": "---:",
    "temporary": "---:",
    "error": "---:",
    "x ours": "---:",
}
SCALE = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Options:
    """Where to read and write."""

    results: Path = RESULTS
    write: Path | None = None  # put the table between the marks of this file
    figure: Path | None = None


def main(options: Options) -> None:
    files = read(options.results)
    text = table(files)
    if options.write is None:
        print(text)
    else:
        options.write.write_text(between_marks(options.write, text))
    if options.figure is not None:
        draw([row for content in files.values() for row in content["rows"]], options.figure)


def read(folder: Path) -> dict[str, dict]:
    """The contents of the files about the subjects here, by name.

    Raises: InputError if there is none.
    """
    paths = [p for p in sorted(folder.glob("*.json")) if p.stem.split("-")[0] in SUBJECTS]
    if not paths:
        raise InputError(f"no results of {', '.join(SUBJECTS)} in {folder}")
    return {path.stem: json.loads(path.read_text()) for path in paths}


def table(files: dict[str, dict]) -> str:
    """One line a row, one part a file, each with its machine."""
    parts = []
    for name, content in files.items():
        lines = [list(COLUMNS), list(COLUMNS.values())]
        lines += [list(line(row).values()) for row in content["rows"]]
        shown = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        parts.append(f"`benchmarks/results/{name}.json`: {_machine(content['machine'])}\n\n{shown}")
    return "\n\n".join(parts)


def line(row: dict) -> dict[str, str]:
    """The cells of a row."""
    if "not_measured" in row:
        cells = {"time": f"not measured: {row['not_measured']}"}
    elif "value" in row:
        cells = {"time": f"{row['value']:.4g} {row['unit']}".strip()}
    else:
        cells = {"time": _seconds(row["median"]), "rate": _rate(row)}
        if "of_ceiling" in row:
            cells["of ceiling"] = f"{row['of_ceiling']:.2f}"
        if "temporary" in row:
            cells["temporary"] = f"{row['temporary'] / 2**20:.3g} MiB"
        if "error" in row:
            cells["error"] = f"{row['error']:.1e}"
        if "ratio" in row:
            cells["x ours"] = f"{row['ratio']:.3g}"
    cells |= {"what": _what(row), "implementation": row["implementation"]}
    return {name: cells.get(name, "") for name in COLUMNS}


def between_marks(path: Path, text: str) -> str:
    """The file's text with the table in its place.

    Raises: InputError if the file has no such place.
    """
    before = path.read_text()
    if before.count(MARK) != 1 or before.count(END) != 1:
        raise InputError(f"{path} needs {MARK} and {END}, once each")
    pattern = re.compile(f"(?<={re.escape(MARK)}).*(?={re.escape(END)})", re.DOTALL)
    return pattern.sub(lambda _: f"\n{text}\n", before)


def draw(rows: list[dict], path: Path) -> None:
    """A bar for each implementation that is not ours, from 1 to how many times as long it takes."""
    from matplotlib.figure import Figure

    compared = [row for row in rows if "ratio" in row][::-1]
    figure = Figure(figsize=(9, 1 + 0.22 * len(compared)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(compared):
        color = "0.35" if row["ratio"] >= 1 else "tab:red"
        axes.barh(place, row["ratio"] - 1, left=1, color=color)
    names = [f"{_what(row)}: {row['implementation']}" for row in compared]
    axes.set_yticks(range(len(compared)), names, fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as long as rlcredit (red: faster)")
    figure.savefig(path, dpi=120)
    print(path)


def _what(row: dict) -> str:
    parts = (row["op"], row["shape"], row.get("dtype"), row.get("mode"))
    return ", ".join(part for part in parts if part not in (None, "float32", "step"))


def _seconds(value: float) -> str:
    unit = "s" if value >= 1 else "ms" if value >= 1e-3 else "us"
    return f"{value * SCALE[unit]:.3g} {unit}"


def _rate(row: dict) -> str:
    if "per_second" in row:
        return f"{row['per_second']:,}/s"
    return f"{row['rate']:.3g} {row['unit']}" if "rate" in row else ""


def _machine(machine: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
