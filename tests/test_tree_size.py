"""The size of a tree is known before it is grown."""

from unittest import mock

import jax
import numpy as np
import pytest
from stubs import quick_jit, scripts, talk, talks, tape
from tree_reference import CASES, leaves, one_of, problems_of

from rlcredit.exact import size
from rlcredit.exact.size import Size, row_capacity, tree_size
from rlcredit.exact.tree import enumerate_episodes
from rlcredit.tasks import TASKS
from rlcredit.types import InputError


@pytest.mark.parametrize("name", ["chance", "maze", "slip"])
def test_it_counts_the_episodes_that_there_are(name):
    task = CASES[name]
    for number in range(2):
        problem = one_of(problems_of(task), number)
        assert tree_size(task, problem, legal=True) == Size(len(leaves(task, problem)), True)


def test_without_legal_every_token_counts():
    task, problem = tape(horizon=3), one_of(scripts("!!!", horizon=3), 0)
    assert tree_size(task, problem, legal=False) == Size(9**3 + 9**2 + 9 + 1, True)
    assert tree_size(task, problem, legal=True) == Size(3**3 + 3**2 + 3 + 1, True)


def test_large_trees_are_counted_without_being_grown():
    task = TASKS["bifurcation"](filler=40)
    assert tree_size(task, one_of(problems_of(task), 0), legal=True) == Size(2**83, True)


def test_too_many_different_states_end_the_count(monkeypatch):
    monkeypatch.setattr(size, "_MOST_STATES", 1)
    task = CASES["chance"]  # after its first choice there are two states
    found = tree_size(task, one_of(problems_of(task), 0), legal=True)
    assert found == Size(2, False) and str(found) == "more than 2"
    assert str(Size(1234, True)) == "1,234"


def test_enough_for_a_task_is_the_most_of_its_problems():
    task = TASKS["maze"](size=3, limit=2)
    keys = jax.random.split(jax.random.key(0), 64)
    problems = quick_jit(jax.vmap(task.draw))(keys)
    grow = quick_jit(lambda p: enumerate_episodes(task, p, legal=True, capacity=16).count)
    counts = np.asarray(grow(problems))
    assert counts.min() < counts.max() <= 16
    with mock.patch.object(jax, "jit", quick_jit):
        assert row_capacity(task, legal=True, budget=16) == counts.max()


@pytest.mark.parametrize("legal", [True, False])
def test_a_budget_that_is_too_small_is_refused_with_the_size(legal):
    task, budget = TASKS["bifurcation"](filler=0), 7
    rows = f"{len(task.vocabulary) ** 3:,}" if not legal else "8"
    with pytest.raises(InputError, match="'bifurcation'") as refused:
        row_capacity(task, legal=legal, budget=budget)
    message = str(refused.value)
    assert f"has {rows} episodes" in message and "budget of 7" in message
    assert "oracle.monte_carlo_value" in message and ("legal=True" in message) == (not legal)


def test_chance_that_is_not_told_is_refused_by_name():
    with pytest.raises(InputError, match="task 'talk' leaves something to chance: its `outcomes`"):
        tree_size(talk(), one_of(talks(1), 0), legal=True)
    hidden = CASES["chance"]._replace(outcomes=None)
    with pytest.raises(InputError, match="'bifurcation'"):
        tree_size(hidden, one_of(problems_of(hidden), 0), legal=True)
