"""Steps per second of the environments, beside jumanji's maze: random play, side by side."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from contest import absent, absent_row, stamp
from timing import Program, interleaved, ratio, row

from rlcredit.tasks import TASKS
from rlcredit.types import Array, Task

STEPPED = {"maze": {"size": 10, "limit": 100}, "bifurcation": {}, "repair": {}, "arithmetic": {}}
PEER = "jumanji Maze-v0"


def environments(count: int, steps: int, peers: bool, repeats: int) -> list[dict]:
    """Rows of random play, `count` environments side by side."""
    what = {"op": "step", "shape": f"{count} x {steps}"}
    programs = {}
    for name, dials in STEPPED.items():
        task = TASKS[name](**dials)
        programs[f"rlcredit {name}"] = random_play(task, count, steps)
    gone = absent(PEER, ("jumanji",)) if peers else None
    if peers and gone is None:
        programs[PEER] = _random_jumanji(count, steps)
    seconds = interleaved(programs, repeats)
    rows = []
    for name, own in seconds.items():
        rate = {"per_second": round(count * steps / float(np.median(own)))}
        against = {"times_jumanji": ratio(seconds[PEER], own)} if PEER in seconds else {}
        packages = ("jax", "jaxlib", *(("jumanji",) if name == PEER else ()))
        rows.append(row(*what.values(), name, own, **rate, **against) | stamp(packages))
    return rows if gone is None else [*rows, absent_row(what, gone)]


def random_play(task: Task, count: int, steps: int) -> Program:
    """Random legal tokens; an episode that ended starts again with the same problem."""
    problems = jax.jit(jax.vmap(task.draw))(jax.random.split(jax.random.key(0), count))

    def move(problem, state, key):
        choice_key, chance_key = jax.random.split(key)
        token = any_of(task.legal(problem, state), choice_key)
        after = task.step(problem, state, token, chance_key)
        over = after.terminated | after.truncated
        again = jax.tree.map(
            lambda new, old: jnp.where(over, new, old), task.start(problem), after.state
        )
        return again, after.reward

    return _scanned(move, problems, jax.vmap(task.start)(problems), count, steps)


def _random_jumanji(count: int, steps: int) -> Program:
    """jumanji's 10 x 10 maze stepped in the same way: random moves that its mask allows."""
    import jumanji

    environment = jumanji.make("Maze-v0")
    first, timestep = jax.jit(jax.vmap(environment.reset))(
        jax.random.split(jax.random.key(0), count)
    )

    def move(start, carry, key):
        state, mask = carry
        state, timestep = environment.step(state, any_of(mask, key))
        after = (state, timestep.observation.action_mask)
        again = jax.tree.map(lambda new, old: jnp.where(timestep.last(), new, old), start, after)
        return again, timestep.reward

    start = (first, timestep.observation.action_mask)
    return _scanned(move, start, start, count, steps)


def any_of(allowed: Array, key: Array) -> Array:
    """int32 index of one of the True entries, each as likely, from a single random number."""
    number = jnp.cumsum(allowed)
    return jnp.argmax(number > jax.random.uniform(key) * number[-1]).astype(jnp.int32)


def _scanned(move: Callable, fixed, start, count: int, steps: int) -> Program:
    """`move(fixed, state, key) -> (state, reward)` of all environments, `steps` times."""

    @jax.jit
    def play(fixed, state, key):
        def step(state, step_key):
            keys = jax.random.split(step_key, count)
            state, reward = jax.vmap(move)(fixed, state, keys)
            return state, jnp.sum(reward)

        return jax.lax.scan(step, state, jax.random.split(key, steps))

    return lambda: play(fixed, start, jax.random.key(2))
