"""Credit reports for the eye: tables, and a figure of fidelity against price."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlcredit.figures import save_panels

# Heading -> figure of a row, and how it is written.
COLUMNS = {
    "bias": ("bias", "{:.3f}"),
    "cosine": ("cosine", "{:.3f}"),
    "variance": ("variance_ratio", "{:.2g}"),
    "signal": ("signal_at_equal_price", "{:.2g}"),
    "rmse": ("rmse", "{:.3f}"),
    "shifted": ("shift_rmse", "{:.3f}"),
    "Spearman": ("spearman", "{:.2f}"),
    "shuffled": ("spearman_shuffled", "{:.2f}"),
    "sign": ("sign_accuracy", "{:.2f}"),
    "leakage": ("leakage", "{:.2f}"),
    "recall": ("recall", "{:.2f}"),
}
SHORT = ("bias", "cosine", "variance", "leakage")
UNKNOWN = "-"
LEGEND_ROWS = 25
MARKERS = "os^vD<>P*"  # hollow, and one fewer than colours, so that no two rules look alike


def label(row: dict) -> str:
    """The rule with all that is not its default."""
    notes = [*row["hyperparameters"]]
    if row["asks_for_value"]:
        notes.append(f"{row['critic']} critic")
    if row["branching"]:
        notes.append("trees")
    if row["reduce"]:
        notes.append(row["reduce"])
    return " ".join([row["name"], *([f"({', '.join(notes)})"] if notes else [])])


def print_tables(rows: list[dict]) -> None:
    """One table a task and stage, with half the width of the 95% intervals."""
    console = Console(width=None if Console().is_terminal else 200)
    for (task, stage), own in _by_ground(rows).items():
        table = Table("rule", *COLUMNS, "charge", "seconds", title=f"{task}, {stage}")
        for row in own:
            cells = [_cell(row, *column, interval=True) for column in COLUMNS.values()]
            price = row["price"]
            seconds = f"{price['seconds']:.4f}"
            table.add_row(label(row), *cells, f"{price['charge_ratio']:.2f}", seconds)
        console.print(table)


def markdown(rows: list[dict], stage: str = "warm") -> str:
    """One table of all tasks at one stage."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    heads = [f"{task}: {name}" if name == SHORT[0] else name for task in tasks for name in SHORT]
    lines = [
        f"| | {' | '.join(heads)} | charge |",
        f"|---|{'---:|' * (len(heads) + 1)}",
    ]
    table = {(row["task"], label(row)): row for row in rows if row["stage"] == stage}
    for name in dict.fromkeys(name for _, name in table):
        cells = [_cell(table[task, name], *COLUMNS[column]) for task in tasks for column in SHORT]
        charges = [table[task, name]["price"]["charge_ratio"] for task in tasks]
        spread = (
            f"{min(charges):.2f}"
            if max(charges) - min(charges) < 0.005
            else (f"{min(charges):.2f} to {max(charges):.2f}")
        )
        lines.append(f"| `{name}` | {' | '.join(cells)} | {spread} |")
    return "\n".join(lines)


def fidelity_against_price(rows: list[dict], path: Path, stage: str = "warm") -> str:
    """Rank correlation with the exact credit over charged tokens, a panel a task.

    Returns: a sentence that says where, or what is missing.
    """
    grounds = {task: own for (task, of), own in _by_ground(rows).items() if of == stage}

    def draw(panels) -> None:
        for axes, (task, own) in zip(panels, grounds.items(), strict=True):
            for row, marker in zip(own, itertools.cycle(MARKERS), strict=False):
                price, fidelity = row["price"]["charge_ratio"], row["spearman"]["value"]
                axes.plot(price, fidelity, marker, fillstyle="none", ls="", label=label(row))
            axes.set_xscale("log")
            axes.set_title(task, fontsize=9)
            axes.set_xlabel("charge, over reinforce's")
        panels[0].set_ylabel("Spearman, with the exact credit")
        figure = panels[0].figure
        handles, names = panels[0].get_legend_handles_labels()
        columns = math.ceil(len(names) / LEGEND_ROWS)
        figure.set_size_inches(9 + 3 * columns, 5)
        figure.legend(handles, names, loc="outside right center", fontsize=7, ncols=columns)

    return save_panels(path, f"fidelity against price, {stage}", len(grounds), draw)


def _by_ground(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    grounds: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        grounds.setdefault((row["task"], row["stage"]), []).append(row)
    return grounds


def _cell(row: dict, name: str, form: str, *, interval: bool = False) -> str:
    figure = row[name]
    if figure["value"] is None:
        return UNKNOWN
    text = form.format(figure["value"])
    half = (figure["high"] - figure["low"]) / 2
    return f"{text} ±{form.format(half)}" if interval and half else text
