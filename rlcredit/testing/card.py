"""The report card of one rule on a small chain: what `python -m rlcredit check --oracle` adds."""

from __future__ import annotations

import jax

from rlcredit import oracle
from rlcredit.oracle.exam import Contestant, as_rows, make_exam
from rlcredit.testing.uphill import small_ground

SAMPLES, DRAWS, PROBLEMS = 8, 64, 2
BASELINE = Contestant("reinforce")


def report_card(name: str, hyperparameters: tuple[str, ...] = ()) -> dict:
    """The row of `oracle.as_rows` on two problems of the chain `recovery`, eight samples of each.

    Variance, signal and charge are also given over those of `reinforce`.

    Args: name: of the table, or module:function; hyperparameters: NAME=VALUE.
    Raises: InputError as `make_exam`.
    """
    context, ground, problems = small_ground("recovery", PROBLEMS, 1)
    key = jax.random.key(0)
    price = oracle.make_pricer(context, problems, key, samples=SAMPLES)
    contestant = Contestant(name, hyperparameters)
    results = {
        own: make_exam(own, context, price, samples=SAMPLES, draws=DRAWS)(ground, key)
        for own in (BASELINE, contestant)
    }
    return as_rows(results, BASELINE)[-1]


def as_text(row: dict) -> str:
    """A line a figure, with its 95% interval."""
    lines = [f"report card on the chain `recovery`, company {row['company']}"]
    for name, figure in row.items():
        if isinstance(figure, dict) and "low" in figure and figure["value"] is not None:
            ends = f"[{figure['low']:.4g}, {figure['high']:.4g}]"
            lines.append(f"  {name:22} {figure['value']:<10.4g} {ends}")
    lines += [f"  {name:22} {number:<10.4g}" for name, number in row["price"].items()]
    return "\n".join(lines)
