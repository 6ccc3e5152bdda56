"""A rule under test: bound, jitted, and with random rollouts to be tried on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import measured
from rlcredit.testing.grafts import graft
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError, Rollout


class Subject(NamedTuple):
    """What a property is checked on."""

    rule: credit.Bound
    documentation: str  # its docstring on one line
    assign: Callable  # `credit.assign` of the rule, jitted: (rollout, evidence) -> Credit
    makers: measured.Makers  # evidence by name; all other evidence is random, [N, K, T]


def make_subject(
    rule: str | Callable,
    *,
    name: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    evidence: measured.Makers | None = None,
) -> Subject:
    """Args as `check_advantage`. Raises: InputError naming an unknown rule or hyperparameter."""
    by_name = isinstance(rule, str)
    function = credit.resolve(rule, ADVANTAGES, "advantage") if by_name else rule
    if not callable(function):
        raise InputError(f"{rule!r} is no rule: give a name, module:function or a function")
    name = name or (rule if by_name else getattr(function, "__name__", repr(function)))
    anything = dict.fromkeys(credit.signature(function)[0])
    bound = credit.bind(name, {name: function}, "advantage", hyperparameters, anything)
    return Subject(
        rule=bound,
        documentation=_documentation(function),
        assign=jax.jit(lambda rollout, evidence: credit.assign(bound, rollout, evidence)),
        makers=measured.EVIDENCE | dict(evidence or {}),
    )


def example(
    subject: Subject, seed: int = 0, *, problems: int = 4, samples: int = 3, length: int = 12
) -> tuple[Rollout, dict[str, np.ndarray]]:
    """A random rollout with trees in it, and the evidence about it that the rule asks for."""
    rng = np.random.default_rng(seed)
    rollout = graft(rng, random_rollout(rng, problems, samples, length))
    return rollout, measured.evidence_for(rng, rollout, subject.rule.evidence, subject.makers)


def _documentation(function: Callable) -> str:
    while isinstance(function, functools.partial):  # its own docstring is that of the class
        function = function.func
    return " ".join((inspect.getdoc(function) or "").split())
