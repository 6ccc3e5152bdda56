"""What was seen of one property, and how two credits are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from rlcredit.credit import Credit

Outcome = Literal["passed", "failed", "not claimed", "not checked"]


class Verdict(NamedTuple):
    """The outcome of one property, and what was seen in one sentence; it may be empty."""

    outcome: Outcome
    detail: str = ""


class Finding(NamedTuple):
    """A verdict under the name of its property."""

    property: str
    outcome: Outcome
    detail: str


PASSED = Verdict("passed")


def arrays(credit: Credit) -> Iterator[tuple[str, np.ndarray]]:
    """(what it is, [N, K, T]) for the advantage, and for the critic target where there is one."""
    yield "advantage", np.asarray(credit.advantage)
    if credit.target is not None:
        yield "critic target", np.asarray(credit.target)


def same(got: Credit, want: Credit, when: str, *, tolerance: float = 0.0) -> Verdict:
    """Passed where both are equal, up to the sign of zero; nan equals nan.

    Args:
      when: how `got` was come by, for the sentence.
      tolerance: absolute and relative.
    """
    for (label, one), (_, other) in zip(arrays(got), arrays(want), strict=True):
        differs = ~np.isclose(one, other, atol=tolerance, rtol=tolerance, equal_nan=True)
        if differs.any():
            at = first(differs)
            return Verdict("failed", f"{when}, {label}{list(at)} is {one[at]}, not {other[at]}")
    return PASSED


def nowhere(wrong: np.ndarray, array: np.ndarray, what: str, why: str) -> Verdict:
    """Passed where no entry is `wrong`; else failed, with the first one's place and number."""
    if not wrong.any():
        return PASSED
    at = first(wrong)
    return Verdict("failed", f"{why}, {what}{list(at)} is {array[at]}")


def first(where: np.ndarray) -> tuple[int, ...]:
    """Index of the first True entry."""
    return tuple(int(place) for place in np.argwhere(where)[0])


def worst(verdicts: Iterator[Verdict]) -> Verdict:
    """The first that failed, or else passed; later ones are not looked at."""
    return next((verdict for verdict in verdicts if verdict.outcome == "failed"), PASSED)
