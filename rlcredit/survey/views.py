"""The inventory for programs, for the terminal and for the README."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlcredit.survey.method import Method


def as_json(methods: Sequence[Method]) -> str:
    """A list of objects, one a method, with the fields of `Method`."""
    return json.dumps([method._asdict() for method in methods], indent=2)


def as_text(methods: Sequence[Method]) -> str:
    """Three lines a method, and how many there are."""
    lines = [line for method in methods for line in _text(method)]
    here = sum(bool(method.rule) for method in methods)
    return "\n".join([*lines, f"methods: {len(methods)}; here: {here}"])


def as_markdown(methods: Sequence[Method]) -> str:
    """The table of the README; the first column is the survey's number."""
    columns = ("", "method", "year", "granularity", "methodology", "needs", "known from", "here")
    rows = [[cell.replace("|", "\\|") for cell in _cells(method)] for method in methods]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _text(method: Method) -> list[str]:
    known = [str(method.year or ""), f"arXiv {method.arxiv}" if method.arxiv else ""]
    number = f"survey {method.survey_number}" if method.survey_number else ""
    source = ", ".join(part for part in [*known, number] if part)
    needs = f"needs {', '.join(method.needs)}" if method.needs else "needs nothing more"
    return [
        f"{method.name} ({source})" if source else method.name,
        f"    {', '.join(method.granularity)}; {method.methodology}; {method.regime}; {needs}; "
        f"price {method.price}; known from {method.known_from}",
        f"    here: {_here(method)}",
    ]


def _cells(method: Method) -> list[str]:
    name = method.name.replace("*", "\\*")
    return [
        method.survey_number,
        f"[{name}](https://arxiv.org/abs/{method.arxiv})" if method.arxiv else name,
        str(method.year or ""),
        ", ".join(method.granularity),
        method.methodology,
        ", ".join(method.needs),
        method.known_from,
        _here(method),
    ]


def _here(method: Method) -> str:
    """The rule and what is different about it, or why there is none."""
    kind, _, name = method.rule.rpartition(":")
    if not name:
        return f"no: {method.why_not}"
    rule = f"{kind} `{name}`".strip()
    return f"{rule}; {method.note}" if method.note else rule
