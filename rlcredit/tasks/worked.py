"""Worked solutions of arithmetic problems, as a person would write them, and slips to order.

17*24 -> 17*(20+4) -> 340+68 -> 408, 17*4 -> (10+7)*4 -> 40+28 -> 68, 63-28 -> 63-20-8 -> 43-8 ->
35: the second operand of an operation is taken apart by decimal places, or the first one of a
product where the second has a single place; then parts are put together from the left, one
operation a step. Products come first. An expression is a tuple of signed terms, each a tuple of
factors, each a tuple of non-negative numbers to be added: one level of brackets is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Factor = tuple[int, ...]  # summands; more than one are written in brackets


class Term(NamedTuple):
    """A product with its sign."""

    sign: int
    factors: tuple[Factor, ...]
    given: bool = False  # an operand of the problem, not yet taken apart


Expression = tuple[Term, ...]


def parse(operands: tuple[int, ...], operators: str) -> Expression:
    """The problem as an expression; `operators[i]` stands between operands i and i + 1."""
    terms = [Term(1, ((operands[0],),), given=True)]
    for operator, operand in zip(operators, operands[1:], strict=True):
        if operator == "*":
            terms[-1] = Term(terms[-1].sign, (*terms[-1].factors, (operand,)))
        else:
            terms.append(Term(-1 if operator == "-" else 1, ((operand,),), given=True))
    return tuple(terms)


def render(expression: Expression) -> str:
    """The expression in the task's characters."""
    text = ""
    for position, term in enumerate(expression):
        sign = "-" if term.sign < 0 else "+" if position else ""
        text += sign + "*".join(_render_factor(factor) for factor in term.factors)
    return text


def next_step(expression: Expression) -> Expression | None:
    """The expression after one more step of work; None where it is a single number."""
    for position, term in enumerate(expression):
        if len(term.factors) > 1:
            return (*expression[:position], *_multiply(term), *expression[position + 1 :])
    if len(expression) == 1:
        return None
    first, second, *others = expression
    parts = _places(second.factors[0][0])
    if second.given and len(parts) > 1:
        taken_apart = tuple(Term(second.sign, ((part,),)) for part in parts)
        return (first, *taken_apart, *others)
    return (_number(_value(first) + _value(second)), *others)


def solution(operands: tuple[int, ...], operators: str) -> list[str]:
    """All steps of the worked solution; the last one is the answer alone."""
    return slipping_solution(operands, operators, np.random.default_rng(0), 0.0, 0.0)


def slipping_solution(
    operands: tuple[int, ...],
    operators: str,
    rng: np.random.Generator,
    wrong: float,
    skipped: float,
) -> list[str]:
    """A solution as an imperfect teacher writes it.

    Args:
      wrong: chance that a step gets one digit of one number wrong; later steps build on it. A step
        that writes no new number (5+0 -> 5) cannot go wrong.
      skipped: chance that a step before the last is worked in the head and not written.
    Returns: the written steps; the last one is a number alone, right or not.
    """
    expression = parse(operands, operators)
    written = []
    while (following := next_step(expression)) is not None:
        expression = _slip(following, expression, rng) if rng.random() < wrong else following
        written.append(render(expression))
    if not written:  # a single operand: the answer is the problem
        written.append(render(expression))
    kept = [step for step in written[:-1] if rng.random() >= skipped]
    return [*kept, written[-1]]


def _multiply(term: Term) -> Expression:
    """One step on the first two factors of a product."""
    first, second, *others = term.factors
    places = _places(second[0])
    if len(second) == 1 and len(places) > 1:
        if len(first) > 1:  # at most one pair of brackets
            return (Term(term.sign, ((first[0] + first[1], *first[2:]), second, *others)),)
        return (Term(term.sign, (first, places, *others)),)
    own_places = _places(first[0])
    if len(first) == len(second) == 1 and len(own_places) > 1:
        return (Term(term.sign, (own_places, second, *others)),)
    products = tuple(mine * part for mine in first for part in second)
    if others:
        return (Term(term.sign, (products, *others)),)
    return tuple(Term(term.sign, ((product,),)) for product in products)


def _slip(expression: Expression, previous: Expression, rng: np.random.Generator) -> Expression:
    """`expression` with one digit wrong in one of the numbers that the last step wrote."""
    old = [number for term in previous for factor in term.factors for number in factor]
    spots = [
        (t, f, s)
        for t, term in enumerate(expression)
        for f, factor in enumerate(term.factors)
        for s, number in enumerate(factor)
        if number not in old
    ]
    if not spots:
        return expression
    t, f, s = spots[rng.integers(len(spots))]
    term = expression[t]
    factor = list(term.factors[f])
    factor[s] = _wrong_digit(factor[s], rng)
    factors = (*term.factors[:f], tuple(factor), *term.factors[f + 1 :])
    return (*expression[:t], term._replace(factors=factors), *expression[t + 1 :])


def _wrong_digit(number: int, rng: np.random.Generator) -> int:
    digits = list(str(number))
    place = int(rng.integers(len(digits)))
    lowest = 1 if place == 0 and len(digits) > 1 else 0  # no leading zero
    others = [str(d) for d in range(lowest, 10) if str(d) != digits[place]]
    digits[place] = others[rng.integers(len(others))]
    return int("".join(digits))


def _places(number: int) -> Factor:
    """24 -> (20, 4); 300 -> (300,); 0 -> (0,)."""
    text = str(number)
    parts = tuple(int(d) * 10 ** (len(text) - 1 - i) for i, d in enumerate(text) if d != "0")
    return parts or (0,)


def _render_factor(factor: Factor) -> str:
    text = "+".join(str(number) for number in factor)
    return f"({text})" if len(factor) > 1 else text


def _value(term: Term) -> int:
    return term.sign * term.factors[0][0]


def _number(value: int) -> Term:
    return Term(-1 if value < 0 else 1, ((abs(value),),))
