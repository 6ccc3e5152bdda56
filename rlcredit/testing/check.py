"""Every property of a credit rule, on a rule of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlcredit.testing.measured import Makers
from rlcredit.testing.properties import PROPERTIES
from rlcredit.testing.subject import Subject, make_subject
from rlcredit.testing.verdict import Finding


def check_advantage(
    rule: str | Callable,
    *,
    name: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    evidence: Makers | None = None,
) -> list[Finding]:
    """Tries a rule on random rollouts: one finding for each of `PROPERTIES`, in their order.

    A rule that raises has failed the property that it was tried for; the others are tried all the
    same.

    Args:
      rule: a name in the table, `module:function`, or the function itself.
      name: what to call a function in the findings, by default its own name.
      hyperparameters: those that differ from the defaults.
      evidence: name -> `(rng, rollout) -> array`, random evidence of your own. What has no maker,
        here or in `measured.EVIDENCE`, is random numbers below 0 at the chosen tokens, [N, K, T].
    Raises: InputError naming an unknown rule or hyperparameter.
    """
    subject = make_subject(rule, name=name, hyperparameters=hyperparameters, evidence=evidence)
    return [find(property_, subject) for property_ in PROPERTIES]


def assert_advantage(rule: str | Callable, **how: Any) -> None:
    """`check_advantage` for a test. Raises: AssertionError with a line for each failed property."""
    failed = [finding for finding in check_advantage(rule, **how) if finding.outcome == "failed"]
    assert not failed, "\n".join(f"{finding.property}: {finding.detail}" for finding in failed)


def find(property_: str, subject: Subject) -> Finding:
    """One of `PROPERTIES` by its name; what the rule raises becomes the detail, on one line."""
    try:
        return Finding(property_, *PROPERTIES[property_](subject))
    except Exception as error:  # the rule is somebody else's: it may raise anything
        message = next(iter(str(error).splitlines()), "")
        return Finding(property_, "failed", f"raised {type(error).__name__}: {message}")
