"""Every credit rule: equal to its slow reference, and all that every rule is held to."""

import functools

import numpy as np
import pytest
import reference

from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import PROPERTIES, properties
from rlcredit.testing.check import find
from rlcredit.testing.subject import example, make_subject

SETTINGS = {
    "reinforce": [{"discount": 0.9}],
    "reinforce_pp": [{"discount": 0.9, "kl_coef": 0.5}],
    "grpo": [{"eps": 0.1}],
    "gae": [{"discount": 0.9, "lambda_": 0.8}, {"lambda_": 0.0}],
    "td_lambda": [{"discount": 0.9, "lambda_": 0.8, "actor_lambda": 0.5}],
}
RULES = list(ADVANTAGES)
RULES_AND_SETTINGS = [(name, given) for name in RULES for given in [{}, *SETTINGS.get(name, [])]]
each_rule = pytest.mark.parametrize("name", RULES)


@functools.cache
def subject(name, settings=()):
    """Shared by all tests, so that a shape is compiled once."""
    return make_subject(name, hyperparameters=dict(settings))


def referenced(name, rollout, evidence, **settings):
    """(advantage, target or None) of the slow reference."""
    if name not in reference.ADVANTAGES:
        pytest.fail(f"rule {name!r} has no reference: add one to tests/reference.py")
    returned = reference.ADVANTAGES[name](rollout, **evidence, **settings)
    return returned if isinstance(returned, tuple) else (returned, None)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name, settings", RULES_AND_SETTINGS)
def test_equals_its_reference(name, settings, seed):
    rule = subject(name, tuple(settings.items()))
    rollout, evidence = example(rule, seed)
    got = rule.assign(rollout, evidence)
    advantage, target = referenced(name, rollout, evidence, **settings)
    np.testing.assert_allclose(got.advantage, advantage, atol=1e-5, rtol=1e-5)
    if target is not None:
        np.testing.assert_allclose(got.target, target, atol=1e-5, rtol=1e-5)
    assert np.any(advantage)


@each_rule
def test_one_sample_a_problem_equals_the_reference(name):
    rollout, evidence = example(subject(name), samples=1)
    got = subject(name).assign(rollout, evidence).advantage
    np.testing.assert_allclose(got, referenced(name, rollout, evidence)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("property_", PROPERTIES)
@each_rule
def test_has_every_property(name, property_):
    finding = find(property_, subject(name))
    assert finding.outcome in ("passed", "not claimed"), finding.detail


def claiming(pattern):
    return {name for name in RULES if pattern.search(subject(name).documentation)}


def test_the_rules_that_claim_zero_for_equal_returns_are_found():
    assert {"grpo", "dr_grpo", "rloo", "reinforce_baseline"} <= claiming(properties.CLAIMS_ZERO)


def test_only_a_batch_statistic_needs_communication():
    """The property finds no collective in the others, and one in what claims it."""
    assert claiming(properties.CLAIMS_BATCH) == {"reinforce_baseline"}
