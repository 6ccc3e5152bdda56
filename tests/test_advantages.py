"""Every credit rule: equal to its slow reference, and all that every rule is held to."""

import functools

import numpy as np
import pytest
import reference
import reference_branches
import reference_groups
import reference_information
import reference_scores
import reference_turns
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import PROPERTIES, properties
from rlcredit.testing.check import find
from rlcredit.testing.subject import example, make_subject

FAMILIES = (
    reference_groups,
    reference_branches,
    reference_turns,
    reference_information,
    reference_scores,
)
REFERENCES = dict(reference.ADVANTAGES)
SETTINGS = {
    "reinforce": [{"discount": 0.9}],
    "reinforce_pp": [{"discount": 0.9, "kl_coef": 0.5}],
    "grpo": [{"eps": 0.1}],
    "gae": [{"discount": 0.9, "lambda_": 0.8}, {"lambda_": 0.0}],
    "td_lambda": [{"discount": 0.9, "lambda_": 0.8, "actor_lambda": 0.5}],
}
for family in FAMILIES:
    REFERENCES |= family.ADVANTAGES
    SETTINGS |= family.SETTINGS
RULES = list(ADVANTAGES)
RULES_AND_SETTINGS = [(name, own) for name in RULES for own in [{}, *SETTINGS.get(name, [])]]
SIZES = {"problems": 4, "samples": 3, "length": 12}, {"problems": 1, "samples": 1, "length": 6}
each_rule = pytest.mark.parametrize("name", RULES)


@functools.cache
def subject(name, settings=()):
    """Shared by all tests, so that a shape is compiled once."""
    return make_subject(name, hyperparameters=dict(settings))


def referenced(name, rollout, evidence, **settings):
    """(advantage, target or None) of the slow reference."""
    if name not in REFERENCES:
        pytest.fail(f"rule {name!r} has no reference: add one to tests/reference.py")
    returned = REFERENCES[name](rollout, **evidence, **settings)
    return returned if isinstance(returned, tuple) else (returned, None)


@pytest.mark.parametrize("name, own", RULES_AND_SETTINGS)
@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**31), sizes=st.sampled_from(SIZES))
def test_equals_its_reference(name, own, seed, sizes):
    """On rollouts of random lengths, masks, units, groups and trees; also one sample a problem."""
    rule = subject(name, tuple(own.items()))
    rollout, evidence = example(rule, seed, **sizes)
    got = rule.assign(rollout, evidence)
    advantage, target = referenced(name, rollout, evidence, **own)
    np.testing.assert_allclose(got.advantage, advantage, atol=1e-5, rtol=1e-5)
    if target is not None:
        np.testing.assert_allclose(got.target, target, atol=1e-5, rtol=1e-5)


@each_rule
def test_gives_credit(name):
    rollout, evidence = example(subject(name))
    assert np.any(subject(name).assign(rollout, evidence).advantage)


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
    assert claiming(properties.CLAIMS_BATCH) == {"reinforce_baseline", "top_entropy"}
