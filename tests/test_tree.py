"""The enumerated trees against a plain recursion over the task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import VOCABULARY, quick_jit, scripts, tape
from tree_reference import CASES, leaves, one_of, problems_of

from rlcredit.exact.tree import answers, enumerate_episodes, present

CAPACITY = 200  # more than any of these trees has


@functools.cache
def grown(name):
    task = CASES[name]
    grow = quick_jit(lambda p: enumerate_episodes(task, p, legal=True, capacity=CAPACITY))
    return jax.tree.map(np.asarray, hide_keys(grow(problems_of(task))))


@functools.cache
def expected(name):
    return [leaves(CASES[name], one_of(problems_of(CASES[name]), n)) for n in range(2)]


def hide_keys(tree):
    return tree._replace(rollout=tree.rollout._replace(key=None))


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_episodes_in_order(name):
    tree = grown(name)
    for n, episodes in enumerate(expected(name)):
        count = len(episodes)
        assert tree.count[n] == count
        np.testing.assert_array_equal(np.asarray(present(tree))[n], np.arange(CAPACITY) < count)
        of_rows = {"tokens", "mask", "reward", "step", "turn", "legal", "length", "terminated"}
        for field in of_rows:
            wanted = np.asarray([getattr(leaf, field) for leaf in episodes])
            found = getattr(tree.rollout, field)[n, :count]
            np.testing.assert_array_equal(found, wanted, err_msg=field)
        ended = tree.rollout.terminated[n] ^ tree.rollout.truncated[n]
        np.testing.assert_array_equal(ended, np.arange(CAPACITY) < count)
        for field in ("chance", "answer"):
            wanted = np.asarray([getattr(leaf, field) for leaf in episodes])
            np.testing.assert_allclose(getattr(tree, field)[n, :count], wanted, atol=1e-6)


def test_the_cases_differ_in_what_they_try():
    assert len({len(episodes) for episodes in expected("maze")}) == 2  # problems of two sizes
    assert np.unique(grown("maze").rollout.length[0]).size > 2
    assert {leaf.terminated for leaf in expected("slip")[0]} == {True, False}
    assert grown("slip").answer.max() >= 2 and grown("chance").answer.max() == 1


@pytest.mark.parametrize("name", CASES)
def test_nodes_and_edges_are_named_by_their_first_rows(name):
    tree = grown(name)
    for n, episodes in enumerate(expected(name)):
        for t in range(tree.node.shape[2]):
            histories = [leaf.history[t] for leaf in episodes]
            wanted = [histories.index(history) for history in histories]
            np.testing.assert_array_equal(tree.node[n, : len(episodes), t], wanted)
        for t in range(tree.edge.shape[2]):
            choices = [(leaf.history[t], leaf.tokens[t]) for leaf in episodes]
            wanted = [choices.index(choice) for choice in choices]
            np.testing.assert_array_equal(tree.edge[n, : len(episodes), t], wanted)


@pytest.mark.parametrize("name", CASES)
def test_rows_that_do_not_exist_are_empty(name):
    tree = grown(name)
    rollout = tree.rollout
    gone = ~np.asarray(present(tree))
    assert gone.any()
    for values in (rollout.tokens, rollout.mask, rollout.reward, rollout.legal, rollout.length):
        assert not values[gone].any()
    assert (rollout.step[gone] == -1).all() and (rollout.turn[gone] == -1).all()
    own = np.broadcast_to(np.arange(CAPACITY)[:, None], tree.node.shape[1:])
    for n in range(2):
        np.testing.assert_array_equal(tree.node[n][gone[n]], own[gone[n]])


def test_a_tree_without_room_says_that_it_is_not_whole():
    task, whole = CASES["maze"], grown("maze")
    large = int(whole.count.argmax())
    room = int(whole.count[large]) - 1
    grow = quick_jit(lambda p: enumerate_episodes(task, p, legal=True, capacity=room))
    small = grow(problems_of(task))
    other, kept = 1 - large, int(whole.count[1 - large])
    assert small.count[large] > room >= small.count[other] == kept
    found = small.rollout.tokens[other, :kept]
    np.testing.assert_array_equal(found, whole.rollout.tokens[other, :kept])


def test_without_legal_every_token_is_followed():
    task = tape(horizon=3)
    problems = scripts("!!!", horizon=3)  # what is legal is not asked
    capacity = 9**2 * 10 + 9 + 2
    grow = quick_jit(lambda p: enumerate_episodes(task, p, legal=False, capacity=capacity))
    tree = grow(problems)
    ending, others = 1, len(VOCABULARY) - 1
    assert int(tree.count[0]) == others**3 + others**2 + others + ending
    assert tree.rollout.legal is None
    episodes = leaves(task, one_of(problems, 0), legal=False)
    wanted = [leaf.tokens for leaf in episodes]
    np.testing.assert_array_equal(tree.rollout.tokens[0, : len(wanted)], wanted)


def test_answers_that_are_alike_are_one():
    """Slips into a wall leave the walker where it is, whichever wall it was."""
    task = CASES["slip"]
    problem = one_of(problems_of(task), 0)
    state = task.start(problem)
    ask = quick_jit(lambda *at: (answers(task, problem, *at), task.outcomes(problem, *at)))
    open_sides = int(problem.openings[state.cell].sum())
    for token in np.flatnonzero(task.legal(problem, state)):
        (chances, transitions), (plain, _) = ask(state, jnp.int32(token))
        kept = np.flatnonzero(chances > 0)
        assert kept.size == min(open_sides + 1, 4) and kept.size < 4
        cells = np.asarray(transitions.state.cell)
        assert np.unique(cells[kept]).size == kept.size
        for number in kept:
            alike = cells == cells[number]
            np.testing.assert_allclose(chances[number], plain[alike].sum(), atol=1e-6)
