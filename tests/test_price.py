"""What a rule costs is counted in tokens of the episodes and of the evidence."""

from unittest import mock

import jax
import pytest
from stubs import network, quick_jit

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Context
from rlcredit.oracle import make_pricer, price
from rlcredit.rollout import draw_problems
from rlcredit.tasks import TASKS
from rlcredit.types import Sampling

TASK = TASKS["bifurcation"](preset="recovery", delay=0)
POLICY, PARAMS = network(vocabulary=len(TASK.vocabulary), value_head="shared")
CONTEXT = Context(POLICY, PARAMS, PARAMS, TASK, Sampling(legal=True))
PROBLEMS, SAMPLES = 2, 3
EPISODES, LENGTH = PROBLEMS * SAMPLES, TASK.prompt_capacity + TASK.horizon
ROWS, EDGES = 16, 30  # of each tree


@pytest.fixture(scope="module")
def price_of():
    """(rule, critic) -> figures."""
    drawn, _ = draw_problems(TASK, jax.random.key(0), PROBLEMS)

    def figures(rule, critic="trained"):
        return pricer(credit.bind(rule, ADVANTAGES, "advantage"), critic, PARAMS, PARAMS)

    with mock.patch.object(jax, "jit", quick_jit):
        pricer = make_pricer(CONTEXT, drawn, jax.random.key(1), samples=SAMPLES)
        yield figures


def test_a_rule_without_evidence_costs_its_episodes(price_of):
    figures = price_of("reinforce")
    assert figures["tokens_sampled"] == EPISODES * TASK.horizon
    assert figures["environment_steps"] == EPISODES * TASK.horizon
    assert figures["tokens_scored"] == PROBLEMS * TASK.prompt_capacity
    assert figures["charged"] == figures["tokens_sampled"] + figures["tokens_scored"]
    assert 0 < figures["seconds"] < 5


@pytest.mark.parametrize(
    "rule, critic, scored, sampled, steps",
    [
        ("reinforce_pp", "trained", EPISODES * LENGTH, 0, 0),  # a pass of the reference
        ("gae", "trained", EPISODES * LENGTH, 0, 0),
        ("gae", "constant", 0, 0, 0),
        ("gae", "exact", PROBLEMS * ROWS * LENGTH, 0, PROBLEMS * EDGES),
        (
            *("remax", "trained", PROBLEMS * TASK.prompt_capacity),  # a greedy episode a problem
            *(PROBLEMS * TASK.horizon, PROBLEMS * TASK.horizon),
        ),
    ],
)
def test_evidence_is_charged_on_top(price_of, rule, critic, scored, sampled, steps):
    bare, figures = price_of("reinforce"), price_of(rule, critic)
    assert figures["tokens_scored"] - bare["tokens_scored"] == scored
    assert figures["tokens_sampled"] - bare["tokens_sampled"] == sampled
    assert figures["environment_steps"] - bare["environment_steps"] == steps
    assert figures["charged"] - bare["charged"] == scored + sampled


def test_seconds_are_the_median_of_five(monkeypatch):
    clock = iter([0, 5, 10, 11, 20, 22, 30, 33, 40, 90])
    monkeypatch.setattr(price.time, "perf_counter", lambda: next(clock))
    runs = []
    assert price._median_seconds(lambda: runs.append(1)) == 3
    assert len(runs) == 5
