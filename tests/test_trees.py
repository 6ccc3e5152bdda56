"""Rows that share prefixes: owners, nodes, children and their worth, against slow paths."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from reference import chosen
from reference_branches import hand_made, owner, path, segments

from rlcredit import trees, units
from rlcredit.testing.grafts import graft
from rlcredit.testing.rollouts import random_rollout

RNG = np.random.default_rng(9)
ROLLOUT = graft(RNG, random_rollout(RNG, 8, 5))
SHAPE = ROLLOUT.mask.shape
PATHS = {row: path(ROLLOUT, *row) for row in np.ndindex(SHAPE[:2]) if ROLLOUT.mask[row].any()}


def tokens():
    """((n, k), t, the path before it)"""
    for row, own in PATHS.items():
        for i, (_, t) in enumerate(own):
            yield row, t, tuple(own[:i])


def test_rows_of_random_trees_are_copies_of_their_parents():
    assert np.sum(ROLLOUT.branch_at > 0) > 5
    for n, k in np.argwhere(ROLLOUT.branch_at > 0):
        at, parent = ROLLOUT.branch_at[n, k], ROLLOUT.parent[n, k]
        assert ROLLOUT.mask[n, k, at]
        for field in (ROLLOUT.tokens, ROLLOUT.mask, ROLLOUT.reward, ROLLOUT.step):
            np.testing.assert_array_equal(field[n, k, :at], field[n, parent, :at])
        own = ROLLOUT.step[n, k][ROLLOUT.mask[n, k]]
        assert np.all(np.diff(own) >= 0)


def test_owners_are_found_through_all_ancestors():
    found = trees.owners(ROLLOUT.parent, ROLLOUT.branch_at, SHAPE[2])
    for n, k, t in np.ndindex(SHAPE):
        assert found[n, k, t] == owner(ROLLOUT, n, k, t)


def test_nodes_and_edges_are_equal_where_the_path_is():
    node, edge = np.asarray(trees.nodes(ROLLOUT)), np.asarray(trees.edges(ROLLOUT))
    for one, other in itertools.combinations(tokens(), 2):
        (row, t, before), (row_, t_, before_) = one, other
        if row[0] == row_[0]:
            assert (node[row][t] == node[row_][t_]) == (before == before_)
            own = (owner(ROLLOUT, *row, t), t) == (owner(ROLLOUT, *row_, t_), t_)
            assert (edge[row][t] == edge[row_][t_]) == own


def test_children_are_the_ways_that_rows_go_on():
    found = np.asarray(trees.children(ROLLOUT))
    assert not np.any(found[~ROLLOUT.mask])
    for (n, k), t, before in tokens():
        ways = {
            own[len(before)]
            for (m, _), own in PATHS.items()
            if m == n and len(own) > len(before) and tuple(own[: len(before)]) == before
        }
        assert found[n, k, t] == len(ways)


def worth(n, before, leaf):
    """The mean over children of what they are worth; a path that nobody goes beyond is a leaf."""
    size = len(before)
    through = {row: p for row, p in PATHS.items() if row[0] == n and tuple(p[:size]) == before}
    ends = [leaf[row] for row, p in through.items() if len(p) == size]
    if ends:
        return ends[0]
    ways = dict.fromkeys(p[size] for p in through.values())
    return np.mean([worth(n, (*before, way), leaf) for way in ways])


def test_a_node_is_worth_the_mean_of_its_children():
    leaf = np.random.default_rng(0).normal(size=SHAPE[:2]).astype(np.float32)
    found = np.asarray(trees.node_value(ROLLOUT, jnp.asarray(leaf)))
    assert not np.any(found[~ROLLOUT.mask])
    for (n, k), t, before in tokens():
        assert found[n, k, t] == pytest.approx(worth(n, before, leaf), abs=1e-5)


def test_a_tree_made_by_hand():
    """Children count once each, however many rows come of them: by rows the root would be 3.75."""
    rollout = hand_made()
    children, value, fork = (
        np.asarray(found)[0]
        for found in (
            trees.children(rollout),
            trees.node_value(rollout, jnp.asarray([[1.0, 2.0, 4.0, 8.0]])),
            units.fork(rollout),
        )
    )
    np.testing.assert_array_equal(children[0], [0, 2, 1, 2, 1])
    np.testing.assert_array_equal(children[1:3], [[0, 2, 1, 2, 2]] * 2)
    np.testing.assert_array_equal(children[3], [0, 2, 1, 0, 0])
    np.testing.assert_array_equal(value[0], [0, 5, 2, 2, 1])
    np.testing.assert_array_equal(value[1:3], [[0, 5, 2, 2, 3]] * 2)
    np.testing.assert_array_equal(value[3], [0, 5, 8, 0, 0])
    np.testing.assert_array_equal(fork[0], [-1, 0, 0, 1, 1])
    np.testing.assert_array_equal(fork[1:3], [[-1, 0, 0, 1, 2]] * 2)
    np.testing.assert_array_equal(fork[3], [-1, 0, 0, -1, -1])


def test_segments_cover_every_chosen_token_once():
    for row, pieces in segments(ROLLOUT):
        assert [t for _, piece in pieces for t in piece] == chosen(ROLLOUT.mask[row])
