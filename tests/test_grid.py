"""Layouts: one path between any two cells, loops and traps as often as asked, true distances."""

import functools
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit

from rlcredit.tasks import grid

STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # N E S W


@functools.cache
def perfect(size, count=256):
    keys = jax.random.split(jax.random.key(size), count)
    return np.asarray(quick_jit(jax.vmap(lambda key: grid.perfect(key, size)))(keys))


@functools.cache
def braided(chance, count=2048, size=5):
    keys = jax.random.split(jax.random.key(9), count)
    open_more = jax.vmap(grid.braided, (0, 0, None))
    return np.asarray(quick_jit(open_more)(keys, perfect(size, count), chance))


def beside(cell, direction, size):
    """The cell that lies there, None outside."""
    row, column = cell // size + STEPS[direction][0], cell % size + STEPS[direction][1]
    inside = 0 <= row < size and 0 <= column < size
    return row * size + column if inside else None


def search(openings, goal):
    """Moves from each cell to the goal, one breadth-first search a cell; -1: no way."""
    size = int(len(openings) ** 0.5)
    moves = []
    for start in range(len(openings)):
        reached, waiting = {start: 0}, deque([start])
        while waiting:
            cell = waiting.popleft()
            for direction in np.flatnonzero(openings[cell]):
                following = beside(cell, direction, size)
                if following not in reached:
                    reached[following] = reached[cell] + 1
                    waiting.append(following)
        moves.append(reached.get(goal, -1))
    return moves


def assert_both_ways(openings):
    """No opening leads outside, and each can be passed from both sides."""
    size = int(len(openings) ** 0.5)
    for cell, direction in np.argwhere(openings):
        other = beside(cell, direction, size)
        assert other is not None and openings[other, (direction + 2) % 4]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_neighbours(size):
    for cell, row in enumerate(grid.neighbours(size)):
        expected = [beside(cell, direction, size) for direction in range(4)]
        assert row.tolist() == [cell if other is None else other for other in expected]


@pytest.mark.parametrize("size", [3, 4, 10])
def test_a_perfect_maze_has_one_path_between_any_two_cells(size):
    for openings in perfect(size)[:12]:
        assert_both_ways(openings)
        assert openings.sum() == 2 * (size**2 - 1)  # connected with as few edges: a tree
        assert min(search(openings, 0)) == 0


def test_a_perfect_maze_is_the_minimum_spanning_tree_of_its_weights():
    size = 4
    keys = jax.random.split(jax.random.key(size), 256)[:16]  # those that `perfect` draws with
    for key, openings in zip(keys, perfect(size)[:16], strict=True):
        drawn = np.asarray(jax.random.uniform(key, (size**2, 4)))
        edges = []
        for cell, direction in np.ndindex(size**2, 4):
            other = beside(cell, direction, size)
            if other is not None:
                weight = min(drawn[cell, direction], drawn[other, (direction + 2) % 4])
                edges.append((weight, cell, direction, other))
        tree, part = np.zeros((size**2, 4), bool), np.arange(size**2)
        for _, cell, direction, other in sorted(edges):  # Kruskal; both sides of a tie are one edge
            if part[cell] != part[other]:
                part[part == part[other]] = part[cell]
                tree[cell, direction] = tree[other, (direction + 2) % 4] = True
        np.testing.assert_array_equal(openings, tree)


def test_every_spanning_tree_occurs():
    layouts = perfect(3, 2**14).reshape(2**14, -1)
    counts = np.unique(layouts, axis=0, return_counts=True)[1]
    assert len(counts) == 192  # Kirchhoff's count for 3 x 3 cells
    assert counts.max() < 10 * counts.min()


@pytest.mark.parametrize("size", [3, 4])
def test_dead_ends_are_cells_with_one_neighbour(size):
    for openings in perfect(size)[:8]:
        expected = [sum(row) == 1 for row in openings.tolist()]
        assert np.asarray(grid.dead_ends(openings)).tolist() == expected


def test_braiding_opens_walls_of_dead_ends_only():
    np.testing.assert_array_equal(braided(0.0), perfect(5, 2048))
    for before, after in zip(perfect(5, 2048)[:256], braided(0.5)[:256], strict=True):
        assert_both_ways(after)
        assert after[before].all()
        dead = before.sum(axis=1) == 1
        for cell, direction in np.argwhere(after & ~before):
            assert dead[cell] or dead[beside(cell, direction, 5)]
        assert (after & ~before).sum() <= 2 * dead.sum()
    assert (braided(1.0).sum(axis=2) >= 2).all()


def test_each_dead_end_is_opened_with_the_chance_and_at_any_of_its_walls():
    """Of those that no other dead end adjoins, so that nobody else opens a wall of theirs."""
    stayed, ranks = [], []
    for before, after in zip(perfect(5, 2048), braided(0.5), strict=True):
        dead = before.sum(axis=1) == 1
        for cell in np.flatnonzero(dead):
            adjoining = [beside(cell, direction, 5) for direction in range(4)]
            if any(other is not None and dead[other] for other in adjoining):
                continue
            stayed.append((after[cell] == before[cell]).all())
            if not stayed[-1] and None not in adjoining:
                walls = np.flatnonzero(~before[cell])
                [opened] = np.flatnonzero(after[cell] & ~before[cell])
                ranks.append(walls.tolist().index(opened))
    assert len(stayed) > 2000 and np.mean(stayed) == pytest.approx(0.5, abs=0.04)
    shares = np.bincount(ranks) / len(ranks)
    assert len(ranks) > 400 and shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.08)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_traps_are_dead_ends_that_can_only_be_entered(chance):
    count, size = 512, 5
    layouts = perfect(size, 2048)[:count]
    spared = np.random.default_rng(0).random((count, size**2)) < 0.3
    keys = jax.random.split(jax.random.key(5), count)
    after = quick_jit(jax.vmap(grid.trapped, (0, 0, None, 0)))(keys, layouts, chance, spared)
    traps = ~np.asarray(after).any(axis=2)
    may_be = (layouts.sum(axis=2) == 1) & ~spared
    assert not traps[~may_be].any()
    assert traps[may_be].mean() == pytest.approx(chance, abs=0.04)
    np.testing.assert_array_equal(after, layouts & ~traps[..., None])
    rows = zip(layouts[:16], np.asarray(after)[:16], traps[:16], strict=True)
    for before, openings, closed in rows:
        goal = int(np.flatnonzero(~closed)[-1])
        kept = np.where(closed, -1, search(before, goal))
        assert search(openings, goal) == kept.tolist()


@pytest.mark.parametrize("size", [3, 5])
def test_distances_are_those_of_a_search_on_one_way_streets(size):
    rng = np.random.default_rng(size)
    inside = [[beside(c, d, size) is not None for d in range(4)] for c in range(size**2)]
    streets = (rng.random((64, size**2, 4)) < 0.45) & np.asarray(inside)[None]
    goals = rng.integers(0, size**2, 64)
    found = np.asarray(quick_jit(jax.vmap(grid.distances))(streets, jnp.asarray(goals)))
    expected = [search(openings, goal) for openings, goal in zip(streets, goals, strict=True)]
    assert found.tolist() == expected and (found == -1).any() and (found > size).any()


# The log's grids have walls as cells; each is set into a square of closed cells.
@pytest.mark.parametrize(
    "walls, goal, distance",
    [
        ([[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], (4, 3), 13),
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], (2, 2), -1),
    ],
    ids=["FL-141-around-walls", "FL-141-no-diagonal"],
)
def test_distance_around_walls(walls, goal, distance):
    size = max(len(walls), len(walls[0]))
    free = np.zeros((size, size), bool)
    free[: len(walls), : len(walls[0])] = np.asarray(walls) == 0
    flat = free.ravel()
    openings = np.zeros((size**2, 4), bool)
    for cell, direction in np.ndindex(size**2, 4):
        other = beside(cell, direction, size)
        openings[cell, direction] = other is not None and flat[cell] and flat[other]
    found = grid.distances(jnp.asarray(openings), goal[0] * size + goal[1])
    assert int(found[0]) == distance
