"""Which methods of the inventory one is looking for."""

from __future__ import annotations

from collections.abc import Iterable

from rlcredit.survey.method import GRANULARITIES, METHODOLOGIES, NEEDS, REGIMES, Method
from rlcredit.types import InputError


def select(
    methods: Iterable[Method],
    *,
    granularity: str | None = None,
    methodology: str | None = None,
    regime: str | None = None,
    needs: Iterable[str] | None = None,
    implemented: bool = False,
) -> tuple[Method, ...]:
    """The methods that pass every filter that is given, in their order.

    Args:
      methods: to choose from.
      granularity: at which credit is given, among others.
      methodology: that the method lives by.
      regime: that it was made for.
      needs: what there is; methods stay whose needs are all among it.
      implemented: only methods that have a rule, loss or evidence here.

    Raises InputError for a word that the inventory does not use.
    """
    _known("granularity", granularity, GRANULARITIES)
    _known("methodology", methodology, METHODOLOGIES)
    _known("regime", regime, REGIMES)
    given = None if needs is None else set(needs)
    for need in given or ():
        _known("need", need, NEEDS)
    return tuple(
        method
        for method in methods
        if (granularity is None or granularity in method.granularity)
        and methodology in (None, method.methodology)
        and regime in (None, method.regime)
        and (given is None or given.issuperset(method.needs))
        and (method.rule or not implemented)
    )


def _known(what: str, word: str | None, words: Iterable[str]) -> None:
    if word is not None and word not in words:
        raise InputError(f"{what} {word!r} is not one of {', '.join(words)}")
