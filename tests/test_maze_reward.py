"""Shaping by potential: exact action values of all states of several mazes, with and without it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit

from rlcredit.tasks import maze_view as view
from rlcredit.tasks.maze import State, maze

SIZE, COUNT = 4, 6
MAZES = {
    "perfect": {},
    "loops": {"braid": 1.0},
    "traps": {"traps": 0.8},
    "door": {"door": True, "braid": 0.3, "traps": 0.6},
}
every_maze = pytest.mark.parametrize("name", MAZES)


class World(NamedTuple):
    """Tables over P problems, S states and 4 moves, as `step` gives them without a slip."""

    following: np.ndarray  # [P, S, 4] index of the next state
    ding: np.ndarray  # [P, S, 4] reward
    warmer: np.ndarray  # [P, S, 4] reward
    potential: np.ndarray  # [P, S] float64
    expert: np.ndarray  # [P, S] index of its move
    over: np.ndarray  # [P, S] bool; the exit
    inside: np.ndarray  # [P, S] bool; states in which a move can be made
    lost: np.ndarray  # [P, S] bool; no way to the exit

    def nearer(self):
        """[P, S, 4] bool: the move goes on a shortest path."""
        return self.after(self.potential) > self.potential[..., None]

    def after(self, numbers):
        """[P, S] numbers of states -> [P, S, 4] those of the states that moves lead to."""
        return np.take_along_axis(numbers[..., None], self.following, axis=1)


@functools.cache
def problems_of(name):
    return quick_jit(jax.vmap(maze(size=SIZE, **MAZES[name]).draw))(
        jax.random.split(jax.random.key(4), COUNT)
    )


def states_of(name):
    """All of them, [S]; without a door the key is always there."""
    keys = [False, True] if MAZES[name].get("door") else [True]
    has_key, cell = map(np.ravel, np.meshgrid(keys, np.arange(SIZE**2), indexing="ij"))
    zeros = jnp.zeros(len(cell), jnp.int32)
    return State(jnp.asarray(cell, jnp.int32), jnp.asarray(has_key), zeros, zeros)


@functools.cache
def world(name):
    ding, warmer = (maze(size=SIZE, reward=reward, **MAZES[name]) for reward in ("ding", "warmer"))
    moves = view.FIRST_MOVE + jnp.arange(4)

    def look(problem, state):
        def move(token):
            key = jax.random.key(0)  # nothing is left to chance
            plain, shaped = (task.step(problem, state, token, key) for task in (ding, warmer))
            return plain.state, plain.reward, shaped.reward

        advice = ding.expert(problem, state) - view.FIRST_MOVE
        return jax.vmap(move)(moves), ding.potential(problem, state), advice

    look_at_all = jax.vmap(jax.vmap(look, (None, 0)), (0, None))
    problems, states = problems_of(name), states_of(name)
    found = quick_jit(look_at_all)(problems, states)
    (after, plain, shaped), potential, advice = jax.tree.map(np.asarray, found)
    blocks = after.has_key if MAZES[name].get("door") else 0
    over = np.asarray(states.cell[None] == problems.exit_cell[:, None])
    keyless = np.zeros_like(over)  # at the key without it: no such state
    if MAZES[name].get("door"):
        keyless = (states.cell[None] == problems.key_cell[:, None]) & ~states.has_key[None]
    return World(
        following=after.cell + SIZE**2 * blocks,
        ding=plain.astype(float),
        warmer=shaped.astype(float),
        potential=potential.astype(float),
        expert=advice,
        over=over,
        inside=~over & ~np.asarray(keyless),
        lost=potential == -1,
    )


def action_values(tables, *, discount, slip, moves_left, shaped, bootstrap=False):
    """[P, S, 4] best expected return of each move; a cut is worth 0, or what its state is worth.

    Shaped: reward ding + discount * potential(next) - potential(now). What the last state is worth
    is 0 for the ding alone, so it is -potential(last) for the shaped reward.
    """
    went = np.where(np.eye(4, dtype=bool), 1 - slip, slip / 3)  # [asked for, gone]
    reward, value = tables.ding, np.zeros(tables.over.shape)
    if shaped:
        gain = discount * tables.after(tables.potential) - tables.potential[..., None]
        reward = reward + gain
        value = np.where(tables.over, 0, -tables.potential) if bootstrap else value
    for _ in range(moves_left):
        onward = tables.after(np.where(tables.over, 0, value))
        values = (reward + discount * onward) @ went.T
        value = values.max(axis=-1)
    return values


def best(values):
    """[P, S, 4] bool; equals within rounding are as good."""
    return values > values.max(axis=-1, keepdims=True) - 1e-6


@every_maze
def test_potential_is_the_way_left_as_a_share_of_the_longest(name):
    tables = world(name)
    way = np.where(tables.over, 0, np.inf)
    for _ in range(tables.over.shape[1]):
        way = np.minimum(way, 1 + tables.after(way).min(axis=-1))
    longest = SIZE**2 * (1 + MAZES[name].get("door", False))
    expected = np.where(np.isinf(way), -1, -way / longest)[tables.inside]
    np.testing.assert_allclose(tables.potential[tables.inside], expected, atol=1e-6)
    assert (expected > -1).any() and (expected == -1).any() == (name in ("traps", "door"))


@every_maze
def test_warmer_is_the_ding_and_the_gain_in_potential(name):
    tables = world(name)
    inside = tables.inside
    following = tables.after(tables.potential)
    expected = tables.ding + following - tables.potential[..., None]
    np.testing.assert_allclose(tables.warmer[inside], expected[inside], atol=1e-6)
    assert (following[inside][tables.ding[inside] == 1] == 0).all()


@every_maze
@pytest.mark.parametrize("discount", [0.9, 1.0])
@pytest.mark.parametrize("slip", [0.0, 0.3])
@pytest.mark.parametrize("moves_left", [1, 4, 9, 300])
def test_shaping_leaves_the_optimal_actions_of_every_state(name, discount, slip, moves_left):
    """However many moves are left, as long as a cut is bootstrapped."""
    tables = world(name)
    how = {"discount": discount, "slip": slip, "moves_left": moves_left}
    plain = action_values(tables, shaped=False, **how)
    shaped = action_values(tables, shaped=True, bootstrap=True, **how)
    inside = tables.inside
    np.testing.assert_array_equal(best(plain)[inside], best(shaped)[inside])
    expected = plain - tables.potential[..., None]
    np.testing.assert_allclose(shaped[inside], expected[inside], atol=1e-6)
    matters = ~best(plain)[inside].all(axis=-1)  # at a discount of 1 it does while time is short
    assert matters.any() or (discount == 1 and moves_left > 4)


@every_maze
@pytest.mark.parametrize("discount", [0.9, 1.0])
@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_without_a_limit_no_bootstrap_is_needed(name, discount, slip):
    """At a discount of 1 where the exit can always be reached."""
    tables = world(name)
    how = {"discount": discount, "slip": slip, "moves_left": 1500}
    plain, shaped = (action_values(tables, shaped=flag, **how) for flag in (False, True))
    asked = tables.inside & (discount < 1 or ~tables.lost.any(axis=1, keepdims=True))
    np.testing.assert_array_equal(best(plain)[asked], best(shaped)[asked])


@every_maze
def test_at_a_cut_without_bootstrap_to_be_nearer_is_worth_more(name):
    """One move is left and the exit is further away: the ding is indifferent."""
    tables = world(name)
    how = {"discount": 1.0, "slip": 0.0, "moves_left": 1}
    far = tables.inside & ~tables.lost & ~(tables.ding > 0).any(axis=-1)
    assert far.sum() > 20
    assert best(action_values(tables, shaped=False, **how))[far].all()
    shaped = best(action_values(tables, shaped=True, **how))
    np.testing.assert_array_equal(shaped[far], tables.nearer()[far])


@every_maze
def test_the_expert_is_optimal_in_every_state(name):
    tables = world(name)
    values = action_values(tables, discount=0.9, slip=0.0, moves_left=100, shaped=False)
    asked = tables.inside & ~tables.lost
    first = best(values).argmax(axis=-1)  # the first direction among equals
    np.testing.assert_array_equal(tables.expert[asked], first[asked])


def test_with_slips_a_step_earns_what_the_way_it_went_earns():
    tables = world("door")
    task = maze(size=SIZE, reward="warmer", slip=0.5, **MAZES["door"])
    problem, states = jax.tree.map(lambda leaf: leaf[0], problems_of("door")), states_of("door")
    north, keys = jnp.int32(view.FIRST_MOVE), jax.random.split(jax.random.key(0), 64)
    step = jax.vmap(jax.vmap(task.step, (None, None, None, 0)), (None, 0, None, None))
    after = jax.tree.map(np.asarray, quick_jit(step)(problem, states, north, keys))
    following = after.state.cell + SIZE**2 * after.state.has_key
    for s in np.flatnonzero(tables.inside[0]):
        went = set(zip(following[s].tolist(), after.reward[s].tolist(), strict=True))
        assert went == set(zip(tables.following[0, s], tables.warmer[0, s], strict=True))
