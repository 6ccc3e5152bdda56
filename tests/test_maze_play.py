"""A million random moves through mazes with every dial turned: no rule of a task is ever broken."""

import jax
import jax.numpy as jnp
import pytest
from stubs import quick_jit

from rlcredit.tasks import maze_view as view
from rlcredit.tasks.maze import maze

LANES, STEPS, SIZE, LIMIT, THINK = 1024, 256, 3, 24, 2
EVERYTHING = {"door": True, "traps": 0.5, "braid": 0.3, "slip": 0.1, "reward": "warmer"}
TASKS = {
    regime: maze(size=SIZE, limit=LIMIT, think=THINK, regime=regime, **EVERYTHING)
    for regime in ("walk", "plan")
}


def broken(task, problem, state, token, after):
    """{rule: bool} of one step."""
    new, legal = after.state, task.legal(problem, state)
    thought = view.is_thought(token) & (state.thoughts < THINK)
    rows, columns = jnp.divmod(jnp.stack([state.cell, new.cell]), SIZE)
    apart = abs(rows[1] - rows[0]) + abs(columns[1] - columns[0])
    over = after.terminated | after.truncated
    ids = jnp.arange(len(task.vocabulary))
    gain = task.potential(problem, new) - task.potential(problem, state)
    trapped = ~problem.openings[state.cell].any()
    rules = {
        "reward": jnp.abs(after.reward - after.terminated - gain) < 1e-6,
        "reward is bounded": jnp.abs(after.reward) <= 2,  # False for nan
        "one end": ~(after.terminated & after.truncated),
        "terminated at the exit": after.terminated == (new.cell == problem.exit_cell),
        "over or moves left": over == ((new.moves >= LIMIT) | after.terminated),
        "counters": (new.moves == state.moves + ~thought) & (new.moves <= LIMIT),
        "thoughts": new.thoughts == jnp.where(thought, state.thoughts + 1, 0),
        "inside": (new.cell >= 0) & (new.cell < SIZE**2),
        "one cell a move": (apart <= 1) & ((apart == 0) | view.is_move(token)),
        "the key stays": new.has_key >= state.has_key,
        "the key opens the exit": ~after.terminated | new.has_key,
        "a trap holds": ~trapped | (apart == 0),
        "steps": after.step_ended == ~thought,
        "something is legal": legal.any() & ~legal[0],
        "only moves and thoughts": ~(legal & ~view.is_move(ids) & ~view.is_thought(ids)).any(),
    }
    if task.observation_capacity:
        seen = after.observation
        row, column, sides, held = seen - jnp.asarray([view.FIRST_NUMBER] * 2 + [0, view.NO_KEY])
        # What was seen tells the place: a state made of it has the same fingerprint.
        place = new._replace(cell=row * SIZE + column, has_key=held == 1, moves=jnp.int32(0))
        same = task.fingerprint(problem, place) == task.fingerprint(problem, new)
        rules |= {
            "observation": jnp.where(thought, (seen == 0).all(), (seen > 0).all()),
            "known tokens": ((seen >= 0) & (seen < len(task.vocabulary))).all(),
            "sides": thought | (sides == view.sides(problem.openings[new.cell])),
            "fingerprint": thought | same,
            "turns": after.turn_ended == ~thought,
        }
    else:
        rules["turns"] = after.turn_ended == over
    return {rule: ~kept for rule, kept in rules.items()}


def play_lane(task, problems, any_token, lane, lane_key):
    """One episode after another; how often each rule was broken, and how episodes ended."""

    def problem_number(number):
        return jax.tree.map(lambda leaf: leaf[(lane + number) % LANES], problems)

    def advance(carry, key):
        number, state = carry
        problem = problem_number(number)
        choice_key, chance_key = jax.random.split(key)
        allowed = task.legal(problem, state) | any_token
        drawn = jax.random.uniform(choice_key, allowed.shape)
        token = jnp.argmax(jnp.where(allowed, drawn, -1)).astype(jnp.int32)
        after = task.step(problem, state, token, chance_key)
        marks = broken(task, problem, state, token, after), (after.terminated, after.truncated)
        over = after.terminated | after.truncated
        number = number + over
        fresh = task.start(problem_number(number))
        following = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, after.state)
        return (number, following), marks

    first = jnp.int32(0), task.start(problem_number(0))
    marks = jax.lax.scan(advance, first, jax.random.split(lane_key, STEPS))[1]
    return jax.tree.map(lambda leaf: leaf.sum(axis=0), marks)


@pytest.fixture(scope="module", params=TASKS)
def play(request):
    """`play(any_token)`: counts over all lanes."""
    task = TASKS[request.param]

    @quick_jit
    def run(any_token):
        problem_key, lane_key = jax.random.split(jax.random.key(0))
        problems = jax.vmap(task.draw)(jax.random.split(problem_key, LANES))
        lanes = jax.vmap(lambda lane, key: play_lane(task, problems, any_token, lane, key))
        counts = lanes(jnp.arange(LANES), jax.random.split(lane_key, LANES))
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), counts)

    return run


@pytest.mark.parametrize("any_token", [False, True], ids=["legal", "any"])
def test_random_play_breaks_no_rule(play, any_token):
    broken_rules, ends = jax.tree.map(int, play(any_token))
    assert {rule: count for rule, count in broken_rules.items() if count} == {}
    assert min(ends) > 100
    assert LANES * STEPS * 2 * len(TASKS) >= 10**6
