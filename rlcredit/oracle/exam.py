"""A rule as it is examined, and the rows that a report holds: figures, price, and their ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, get_args

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.branching import Cut
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.losses import REDUCERS
from rlcredit.oracle.batch import Growth
from rlcredit.oracle.estimate import Estimate, ratio_of
from rlcredit.oracle.ground import Ground
from rlcredit.oracle.judge import Card, Critic, make_judge
from rlcredit.oracle.price import Price, make_pricer
from rlcredit.types import Array, InputError, PyTree

CRITICS: tuple[Critic, ...] = get_args(Critic)

Result = tuple[Card, dict[str, float]]
Exam = Callable[[Ground, Array], Result]


class Contestant(NamedTuple):
    """A rule with its settings."""

    name: str  # of `ADVANTAGES`, or module:function
    hyperparameters: tuple[str, ...] = ()  # NAME=VALUE
    critic: Critic = "exact"  # where the rule asks for `value`
    reduce: str | None = None  # how the loss weighs tokens, of `REDUCERS`; None: all alike
    branching: tuple[int, ...] = ()  # trees: in so many ways each row goes on, a number a stage


def make_exam(
    contestant: Contestant,
    context: Context,
    price: Price,
    *,
    samples: int,
    draws: int,
    cut: Cut | None = None,
    providers: credit.Providers = EVIDENCE,
) -> Exam:
    """`exam(ground, key) -> (card, price)`, for any parameters of the context's policy.

    Args:
      price: of `make_pricer`, for contestants that sample alike.
      samples: of each problem, before they branch; cut: where they do.
    Raises: InputError as `credit.from_flags` and `make_judge`.
    """
    rule = credit.from_flags(
        contestant.name, ADVANTAGES, "advantage", contestant.hyperparameters, providers
    )
    judge = make_judge(
        rule,
        context,
        samples=samples,
        draws=draws,
        critic=contestant.critic,
        reduce=None if contestant.reduce is None else REDUCERS[contestant.reduce],
        growth=Growth(contestant.branching, cut if contestant.branching else None),
        providers=providers,
    )

    def exam(ground: Ground, key: Array) -> Result:
        here = ground.context
        return judge(ground, key), price(rule, contestant.critic, here.params, here.ref_params)

    return exam


def make_exams(
    contestants: Iterable[Contestant],
    context: Context,
    problems: PyTree,
    key: Array,
    *,
    samples: int,
    draws: int,
    cut: Cut,
) -> dict[Contestant, Exam]:
    """The exam of each contestant, all of which sample `samples` episodes of each problem.

    Args:
      problems: leaves [N, ...]; key: of the rollouts whose price is counted.
      cut: where trees branch, for contestants that grow them.
    Raises: InputError as `make_exam`, and for trees that do not have `samples` rows.
    """
    prices, exams = {}, {}
    for own in contestants:
        roots, left = divmod(samples, math.prod(own.branching))
        if left or not roots:
            raise InputError(f"trees of {own.branching} ways do not make {samples} episodes")
        if own.branching not in prices:
            prices[own.branching] = make_pricer(
                context, problems, key, samples=roots, growth=Growth(own.branching, cut)
            )
        price = prices[own.branching]
        exams[own] = make_exam(own, context, price, samples=roots, draws=draws, cut=cut)
    return exams


def as_rows(results: dict[Contestant, Result], baseline: Contestant) -> list[dict]:
    """One row a contestant, ready for JSON: figures as {value, low, high}, None for unknown ones.

    Beside the figures of the card:

    - variance_ratio: variance of an update over that of the baseline, on the same draws;
    - signal_at_equal_price: `signal`, of as many updates as fit in the charge of the baseline's;
    - charge_ratio: charged tokens over those of the baseline.
    """
    baseline_card, baseline_price = results[baseline]
    rows = []
    for contestant, (card, price) in results.items():
        times = price["charged"] / baseline_price["charged"]
        figures = card.figures | {
            "variance_ratio": ratio_of(card.noise, baseline_card.noise),
            "signal_at_equal_price": Estimate(*(x / times for x in card.figures["signal"])),
        }
        about = {"asks_for_value": card.asks_for_value, "company": card.company}
        row = contestant._asdict() | about
        row |= {name: _json(estimate) for name, estimate in figures.items()}
        rows.append(row | {"price": price | {"charge_ratio": times}})
    return rows


def _json(estimate: Estimate) -> dict[str, float | None]:
    return {
        name: number if math.isfinite(number) else None
        for name, number in estimate._asdict().items()
    }
