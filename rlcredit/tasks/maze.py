"""A maze: moves lead from a start to an exit, seen cell by cell or as a map.

Regimes. `walk`: the prompt says where the exit is, and every move is answered by an observation
`row column sides`: where it led, and in which directions that cell can be left. An aliased
observation is the sides alone, so that different cells look the same. `plan`: the prompt holds the
sides of all cells, the start and the exit; the moves are one chain, and nothing is observed.

Rules. A move into a wall, like any token that is not legal, changes nothing but the count of moves.
With `slip` a move goes, by chance, in one of the three other directions, each as likely. With
`door` the exit is closed like a wall until the cell of the key has been visited; the prompt says
where the key is, and observations end in `no-key` or `has-key`. A trap is a dead end that can be
entered and not left; its sides read `[]`. Up to `think` thoughts may be written before each move:
they change and cost nothing, and nothing answers them. The episode terminates on entering the exit
and is truncated at move number `limit`.

Reward. `ding` is 1 for entering the exit. `warmer` is ding + potential(next) - potential(now), see
`potential`: shaping that leaves the optimal actions of every state as they are (Ng, Harada &
Russell 1999) where all episodes reach the exit or go on in a bootstrap. At a discount below 1 the
term that does so is discount * potential(next) - potential(now): take `ding` and add it. An episode
that the limit cuts has earned potential(last) - potential(first). The value of its last state is
lower by potential(last), so a bootstrap makes that good; without one, to end nearer is worth more.

Held-out problems differ from those for training in layout, exit or start; see `maze_problems`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.tasks import grid
from rlcredit.tasks import maze_view as view
from rlcredit.tasks.maze_problems import Problem, distinct, draw_problem, hash_of
from rlcredit.types import Array, InputError, Task, Transition

SMALLEST = 3


class State(NamedTuple):
    """Where the walker is."""

    cell: Array  # int32
    has_key: Array  # bool; True where there is no door
    thoughts: Array  # int32 since the last move
    moves: Array  # int32


class Rules(NamedTuple):
    """What moves and observations depend on beside the problem; see `maze`."""

    size: int
    walks: bool  # the regime
    warmer: bool  # the reward
    slip: float
    aliased: bool
    think: int
    limit: int


def maze(
    *,
    size: int = 4,
    regime: str = "walk",
    reward: str = "ding",
    braid: float = 0.0,
    slip: float = 0.0,
    aliased: bool = False,
    door: bool = False,
    traps: float = 0.0,
    think: int = 0,
    limit: int = 0,
) -> Task:
    """The task for random mazes of size * size cells.

    Args:
      size: 3 to 15; regime: `walk` or `plan`; reward: `ding` or `warmer`.
      braid: chance that a dead end gets a second opening; 0 leaves one path between any two cells,
        1 leaves no dead end.
      slip: chance that a move goes in another direction.
      aliased: observations do not say where they were made.
      door: the exit is closed until the key's cell has been visited.
      traps: chance that a dead end other than start, exit and key is a trap.
      think: most thoughts before a move.
      limit: moves until truncation, at least 2, with a door 3; 0 for size * size, one more than any
        two cells can be apart. Only problems that need no more than the limit are drawn.
    Raises: InputError for a value outside these ranges.
    """
    limit = limit or size * size
    _check_choices(size, regime, reward, aliased)
    _check_numbers(think, limit, door, {"braid": braid, "slip": slip, "traps": traps})
    walks = regime == "walk"
    rules = Rules(size, walks, reward == "warmer", slip, aliased, think, limit)
    draw = functools.partial(
        draw_problem, size=size, braid=braid, door=door, traps=traps, limit=limit
    )
    draw_held_out = jax.jit(jax.vmap(functools.partial(draw, held_out=True)))
    observed = (1 if aliased else 3) + door if walks else 0
    return Task(
        name="maze",
        vocabulary=view.vocabulary(size),
        prompt_capacity=(3 if walks else size * size + 6) + 3 * door + observed,
        horizon=limit * (think + 1 + observed),
        draw=draw,
        prompt=functools.partial(_prompt, rules),
        start=_start,
        step=functools.partial(_step, rules),
        legal=functools.partial(_legal, rules),
        fingerprint=fingerprint,
        held_out=functools.partial(distinct, draw_held_out),
        text=view.text,
        observation_capacity=observed,
        expert=expert,
        potential=potential,
        outcomes=functools.partial(_outcomes, rules) if slip else None,
    )


def potential(problem: Problem, state: State) -> Array:
    """float32 from -1, the exit is out of reach, to 0 at the exit.

    -(moves to the exit, by way of a key that is still needed) / C, or / (2 * C) with a door.
    """
    farthest = problem.to_exit.shape[0]
    left = problem.to_exit[state.cell]
    if problem.key_cell is not None:
        to_key, beyond = problem.to_key[state.cell], problem.to_exit[problem.key_cell]
        left = jnp.where(state.has_key, left, jnp.where(to_key < 0, -1, to_key + beyond))
        farthest = 2 * farthest
    return jnp.where(left < 0, -1, -left / farthest).astype(jnp.float32)


def expert(problem: Problem, state: State) -> Array:
    """int32: the move on a shortest path, to the key while it is needed and then to the exit.

    The first direction of `grid.DIRECTIONS` among equals, and where there is no way. It does not
    allow for slips.
    """
    left = problem.to_exit
    if problem.key_cell is not None:
        left = jnp.where(state.has_key, left, problem.to_key)
    onward = left[_neighbours(problem)[state.cell]]
    usable = problem.openings[state.cell] & (onward >= 0)
    direction = jnp.argmin(jnp.where(usable, onward, left.shape[0]))
    return (view.FIRST_MOVE + direction).astype(jnp.int32)


def fingerprint(problem: Problem, state: State) -> Array:
    """uint32 of the maze, its goals, the cell, the key and the thoughts since the last move.

    The count of moves is left out, though the limit makes it matter: it is the same place. What is
    seen does not enter either: aliased places have fingerprints of their own.
    """
    goals = [problem.exit_cell]
    if problem.key_cell is not None:
        goals.append(problem.key_cell)
    return hash_of(problem.openings, [*goals, state.cell, state.has_key, state.thoughts])


def draw_map(problem: Problem) -> str:
    """The problem in ASCII: walls, S start, E exit, K key, x trap."""
    traps = np.flatnonzero(~np.asarray(problem.openings).any(axis=1))
    letters = {int(cell): "x" for cell in traps}
    letters |= {int(problem.start_cell): "S", int(problem.exit_cell): "E"}
    if problem.key_cell is not None:
        letters[int(problem.key_cell)] = "K"
    return view.picture(problem.openings, letters)


def _start(problem: Problem) -> State:
    has_key = jnp.bool_(problem.key_cell is None)
    return State(problem.start_cell, has_key, thoughts=jnp.int32(0), moves=jnp.int32(0))


def _step(rules: Rules, problem: Problem, state: State, token: Array, key: Array) -> Transition:
    direction = _direction(token)
    if rules.slip:
        direction = _slipped(rules.slip, direction, key)
    return _turn(rules, problem, state, token, direction)


def _outcomes(rules: Rules, problem: Problem, state: State, token: Array):
    """(chances [4], transitions): the move that was meant, and those in the other directions."""
    sides = len(grid.DIRECTIONS)
    directions = (_direction(token) + jnp.arange(sides)) % sides
    chances = jnp.full(sides, rules.slip / (sides - 1)).at[0].set(1 - rules.slip)
    return chances, jax.vmap(lambda to: _turn(rules, problem, state, token, to))(directions)


def _turn(
    rules: Rules, problem: Problem, state: State, token: Array, direction: Array
) -> Transition:
    """What a token does if a move goes in `direction`."""
    thought = view.is_thought(token) & (state.thoughts < rules.think)
    after = _moved(problem, state, token, direction)
    pondering = state._replace(thoughts=state.thoughts + 1)
    after = jax.tree.map(lambda a, b: jnp.where(thought, a, b), pondering, after)
    terminated = ~thought & (after.cell == problem.exit_cell)
    truncated = ~terminated & (after.moves >= rules.limit)
    reward = terminated.astype(jnp.float32)
    if rules.warmer:
        reward = reward + potential(problem, after) - potential(problem, state)
    seen = jnp.where(thought, 0, _observe(rules, problem, after)) if rules.walks else None
    return Transition(
        state=after,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        step_ended=~thought,
        turn_ended=~thought if rules.walks else terminated | truncated,
        observation=seen,
    )


def _direction(token: Array) -> Array:
    return jnp.clip(token - view.FIRST_MOVE, 0, len(grid.DIRECTIONS) - 1)


def _moved(problem: Problem, state: State, token: Array, direction: Array) -> State:
    """The state after a token that is not a thought."""
    target = _neighbours(problem)[state.cell, direction]
    closed = (target == problem.exit_cell) & ~state.has_key
    goes = view.is_move(token) & problem.openings[state.cell, direction] & ~closed
    cell = jnp.where(goes, target, state.cell)
    has_key = state.has_key
    if problem.key_cell is not None:
        has_key = has_key | (cell == problem.key_cell)
    return State(cell, has_key, thoughts=jnp.int32(0), moves=state.moves + 1)


def _slipped(slip: float, direction: Array, key: Array) -> Array:
    drawn = jax.random.uniform(key)
    others = len(grid.DIRECTIONS) - 1
    turn = 1 + (others * drawn / slip).astype(jnp.int32)  # below `slip` it is uniform again
    return (direction + jnp.where(drawn < slip, turn, 0)) % len(grid.DIRECTIONS)


def _legal(rules: Rules, problem: Problem, state: State) -> Array:
    del problem
    token = jnp.arange(len(view.vocabulary(rules.size)))
    return view.is_move(token) | (view.is_thought(token) & (state.thoughts < rules.think))


def _observe(rules: Rules, problem: Problem, state: State) -> Array:
    """[observation_capacity] int32: what is seen from a cell."""
    parts = [] if rules.aliased else [view.place(state.cell, rules.size)]
    parts.append(view.sides(problem.openings[state.cell])[None])
    if problem.key_cell is not None:
        parts.append(jnp.where(state.has_key, view.HAS_KEY, view.NO_KEY)[None])
    return jnp.concatenate(parts).astype(jnp.int32)


def _prompt(rules: Rules, problem: Problem) -> tuple[Array, Array]:
    def marked(marker: int, cell: Array) -> Array:
        return jnp.append(jnp.int32(marker), view.place(cell, rules.size))

    parts = [marked(view.EXIT, problem.exit_cell)]
    if problem.key_cell is not None:
        parts.append(marked(view.KEY, problem.key_cell))
    if rules.walks:
        parts.append(_observe(rules, problem, _start(problem)))
    else:
        parts = [view.sides(problem.openings), marked(view.START, problem.start_cell), *parts]
    tokens = jnp.concatenate(parts)
    return tokens, jnp.int32(tokens.shape[0])


def _neighbours(problem: Problem) -> Array:
    return jnp.asarray(grid.neighbours(grid.side(problem.openings)), jnp.int32)


def _check_choices(size: int, regime: str, reward: str, aliased: bool) -> None:
    if not SMALLEST <= size <= view.LARGEST:
        raise InputError(f"{size=}: a maze has {SMALLEST} to {view.LARGEST} rows and columns")
    if regime not in ("walk", "plan"):
        raise InputError(f"{regime=}: a maze is for 'walk' or 'plan'")
    if reward not in ("ding", "warmer"):
        raise InputError(f"{reward=}: a maze pays 'ding' or 'warmer'")
    if aliased and regime == "plan":
        raise InputError(f"{aliased=}: with regime='plan' there are no observations to alias")


def _check_numbers(think: int, limit: int, door: bool, chances: dict[str, float]) -> None:
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            raise InputError(f"{name}={chance!r}: a chance lies between 0 and 1")
    if think < 0:
        raise InputError(f"{think=}: give the most thoughts before a move, 0 or more")
    if limit < 2 + door:
        raise InputError(f"{limit=}: with {door=} a maze needs at least {2 + door} moves")
