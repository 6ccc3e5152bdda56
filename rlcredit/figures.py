"""What a run shows a person: the table, the learning curves, episodes with their credit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rlcredit import evaluate, run
from rlcredit.metrics import read_rows
from rlcredit.types import Array, InputError, Rollout, Task

STAGES = {"start": "before warm start", "warm": "after warm start", "rl": "after RL"}
COSTS = {"charged": "charged tokens of a seed", "seconds": "seconds of all seeds together"}

Results = dict[str, dict[str, float]]  # by stage, and `seconds`, `tokens_per_second` of each
Runs = dict[str, Path]  # RL stages of a results table, and their folders


def conclude(
    folder: Path,
    results: Results,
    episodes: str,
    title: str,
    runs: Runs,
    feedback: tuple[str, ...] = (),
) -> None:
    """Writes `result.json`, `samples.txt` and `curves.png`, and prints the table, with the given
    channels of feedback.

    Says so where pass@1 and pass@8 moved apart between the warm start and the end of a run.
    """
    run.write_json(folder / "result.json", results)
    run.write_text(folder / "samples.txt", episodes)
    print_results(results, feedback)
    print(learning_curves(runs, folder / "curves.png", title))
    for name in runs:
        if apart := evaluate.trade_off(results["warm"], results[name], k=8):
            print(apart if len(runs) == 1 else f"{name}: {apart}")


def print_results(results: Results, feedback: tuple[str, ...] = ()) -> None:
    """One row a stage; of the channels of feedback those that are named."""
    seconds, rates = results["seconds"], results["tokens_per_second"]
    stages = {name: own for name, own in results.items() if own is not seconds and own is not rates}
    columns = [name for name in results["start"] if not name.startswith("feedback/")]
    columns += [f"feedback/{name}" for name in feedback]
    table = Table()
    for heading in ("", *(name.rpartition("/")[2] for name in columns), "tokens/s", "seconds"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, own in stages.items():
        numbers = [f"{own[column]:.3f}" for column in columns]
        cost = [f"{rates[name]:.0f}", f"{seconds[name]:.0f}"] if name in seconds else ["", ""]
        table.add_row(STAGES.get(name, f"after RL, {name}"), *numbers, *cost)
    # Wider than a pipe's 80 columns, so that a log keeps whole numbers.
    Console(width=None if Console().is_terminal else 120).print(table)


def learning_curves(runs: Runs, path: Path, title: str) -> str:
    """Draws the rows of `metrics.jsonl` of each run; says where, or what is missing."""

    def draw(panels) -> None:
        for number, (name, folder) in enumerate(runs.items()):
            _draw_run(panels, read_rows(folder), name if len(runs) > 1 else "", f"C{number}")
        panels[0].set_ylim(0, 1)
        for axes in panels:
            axes.set_xlabel("step")
            if axes.get_legend_handles_labels()[0]:  # a short run was never evaluated
                axes.legend(fontsize=8)

    return save_panels(path, title, 3, draw)


def success_curves(rows: list[dict], path: Path, title: str) -> str:
    """Draws success over charged tokens and over seconds, each rule a line in its interval.

    Args: rows: of `comparison.rows`, of all rules.
    Returns: a sentence that says where, or what is missing.
    """

    def draw(panels) -> None:
        for axes, (name, label) in zip(panels, COSTS.items(), strict=True):
            for rule in dict.fromkeys(row["rule"] for row in rows):
                own = [row for row in rows if row["rule"] == rule]
                cost, middle, low, high = (
                    [row[column] for row in own] for column in (name, "iqm", "low", "high")
                )
                axes.plot(cost, middle, label=rule)
                axes.fill_between(cost, low, high, alpha=0.2)
            axes.set_xlabel(label)
            axes.set_ylabel("success, held out")
            axes.locator_params(axis="x", nbins=5)  # long numbers, side by side
        panels[0].legend(fontsize=8)

    return save_panels(path, title, 2, draw)


def episodes_with_credit(task: Task, rollout: Rollout, advantage: Array, problems: int = 8) -> str:
    """The first samples of the first problems as text, with the credit of every chosen token."""
    tokens, mask, reward, credit = (
        np.asarray(a)[:problems, 0]
        for a in (rollout.tokens, rollout.mask, rollout.reward, advantage)
    )
    episodes = []
    for row in range(tokens.shape[0]):
        chosen = np.flatnonzero(mask[row])
        lines = [f"{task.text(tokens[row])}   return {reward[row][chosen].sum():g}"]
        lines += [f"  {task.text(tokens[row, [t]]):>3} {credit[row, t]:+.4f}" for t in chosen]
        episodes.append("\n".join(lines))
    return "\n\n".join(episodes) + "\n"


def save_panels(path: Path, title: str, count: int, draw: Callable) -> str:
    """A row of panels as `draw(panels)` leaves them; says where, or what is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"no {path.name}: matplotlib is missing, install the extra rlcredit[plots]"
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    draw(figure.subplots(1, count, squeeze=False)[0])
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return f"figure: {path}"


def _draw_run(panels, rows: list[dict], name: str, color: str) -> None:
    """Success, entropy and length of one run; a name is needed where there are several."""
    success, entropy, length = panels
    before = f"{name}: " if name else ""
    if not name:  # rewards of different tasks do not compare
        _curve(success, rows, "reward", "reward in training", color="0.75")
    styles = itertools.cycle(({"marker": "."}, {"marker": ".", "linestyle": ":"}))
    for key in sorted({key for row in rows for key in row if key.startswith("eval/pass@")}):
        label = f"{before}{key.removeprefix('eval/')} held out"
        _curve(success, rows, key, label, color=color, **next(styles))
    _curve(entropy, rows, "entropy", f"{before}entropy, nats per token", color=color)
    key = "completions/mean_length"
    _curve(length, rows, key, f"{before}chosen tokens per episode", color=color)


def _curve(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]
    axes.plot(*np.asarray(points).reshape(-1, 2).T, label=label, **style)
