"""What a run shows a person: the table, the learning curves, episodes with their credit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rlcredit import evaluate, run
from rlcredit.metrics import read_rows
from rlcredit.types import Array, InputError, Rollout, Task

STAGES = {"start": "before warm start", "warm": "after warm start", "rl": "after RL"}

Results = dict[str, dict[str, float]]  # stages, and `seconds`, `tokens_per_second` of each


def conclude(folder: Path, results: Results, episodes: str, title: str, k: int = 8) -> None:
    """Writes `result.json`, `samples.txt` and `curves.png`, and prints the table.

    Says so where pass@1 and pass@k moved apart between the warm start and the end.
    """
    run.write_json(folder / "result.json", results)
    run.write_text(folder / "samples.txt", episodes)
    print_results(results)
    print(learning_curves(folder, title))
    if apart := evaluate.trade_off(results["warm"], results["rl"], k):
        print(apart)


def print_results(results: Results) -> None:
    """One row a stage."""
    seconds, rates = results["seconds"], results["tokens_per_second"]
    columns = list(results[next(iter(STAGES))])
    table = Table()
    for heading in ("", *columns, "tokens/s", "seconds"):
        table.add_column(heading, justify="right" if heading else "left")
    for key, title in STAGES.items():
        numbers = [f"{results[key][column]:.3f}" for column in columns]
        cost = [f"{rates[key]:.0f}", f"{seconds[key]:.0f}"] if key in seconds else ["", ""]
        table.add_row(title, *numbers, *cost)
    # Wider than a pipe's 80 columns, so that a log keeps whole numbers.
    Console(width=None if Console().is_terminal else 120).print(table)


def learning_curves(folder: Path, title: str) -> str:
    """Writes `curves.png` from the rows of `metrics.jsonl`; says where, or what is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no curves.png: matplotlib is missing, install the extra rlcredit[plots]"
    rows = read_rows(folder)
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    success, entropy, length = figure.subplots(1, 3)
    _curve(success, rows, "reward", "reward in training", color="0.75")
    _curve(success, rows, "eval/pass@1", "pass@1 held out", marker=".")
    names = sorted({name for row in rows for name in row if name.startswith("eval/pass@")})
    for name in names[1:]:
        _curve(success, rows, name, f"{name.removeprefix('eval/')} held out", marker=".")
    success.set_ylim(0, 1)
    _curve(entropy, rows, "entropy", "entropy, nats per token")
    _curve(length, rows, "completions/mean_length", "chosen tokens per episode")
    for axes in (success, entropy, length):
        axes.set_xlabel("step")
        axes.legend(fontsize=8)
    figure.suptitle(title)
    path = folder / "curves.png"
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return f"learning curves: {path}"


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


def _curve(axes, rows: list[dict], name: str, label: str, **style) -> None:
    points = [(row["step"], row[name]) for row in rows if name in row]
    axes.plot(*np.asarray(points).reshape(-1, 2).T, label=label, **style)
