"""What scores steps and prefixes, in the place of a trained reward model or a judge.

A scorer is a pair of functions. `step(context, rollout, unit, key) -> ([N, K, T], Price)` says of
each unit whether it was right, from -1 to 1, the same on all of its tokens. `prefix(context,
rollout, key) -> ([N, K, T], Price)` says what the prefix before each token is worth as a return;
None where a scorer knows no such thing. What lies off the mask is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.episode import states
from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import after, starts
from rlcredit.evidence.exact_value import exact_value
from rlcredit.evidence.omega_label import omega_label
from rlcredit.evidence.shepherd_label import shepherd_label
from rlcredit.evidence.value import value
from rlcredit.keys import position_keys
from rlcredit.sharding import each_device
from rlcredit.types import Array, InputError, Price, PyTree, Rollout, Task

ROUNDING = 1e-6  # a potential that fell by less did not fall


class Scorer(NamedTuple):
    """What says whether steps are right, and what prefixes are worth."""

    step: Callable
    prefix: Callable | None


def find(name: str) -> Scorer:
    """The scorer of that name. Raises: InputError listing those there are."""
    if name not in SCORERS:
        raise InputError(f"unknown scorer {name!r}; known are {', '.join(SCORERS)}")
    return SCORERS[name]


def checked_step(
    context: Context, rollout: Rollout, unit: Array, key: Array
) -> tuple[Array, Price]:
    """The task's own checker of the states before and after a unit; in a task without one, -1 where
    the potential fell and 1 elsewhere. Takes a replay.

    Raises: InputError if the task has neither.
    """
    del key  # the chances of a replay are those of the rollout
    begins = starts(context, unit)
    ends = after(begins, unit.shape[-1], unit)
    score, price = _replayed(context, rollout, _checker(context.task), begins, ends)
    return units.of_unit(score, unit), price


def potential_of_prefix(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """The task's potential before each token. Takes a replay.

    Raises: InputError if the task has none.
    """
    del key
    task = context.task
    if task.potential is None:
        raise InputError(f"task {task.name!r} has no potential, so its checker scores no prefix")
    every = jnp.broadcast_to(jnp.arange(rollout.mask.shape[-1])[None, None], rollout.mask.shape)
    return _replayed(context, rollout, task.potential, every)


def from_value(provider: Callable) -> Scorer:
    """The scorer that trusts a value [N, K, T + 1] of what is still to come.

    A prefix is worth what was earned and the value of the rest; a whole episode, truncated or not,
    what it earned. A step has the score 2 * clip(worth after it, 0, 1) - 1.
    """

    def prefix(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
        to_come, price = provider(context, rollout, key)
        reward = jnp.where(rollout.mask, rollout.reward, 0)
        return jnp.cumsum(reward, axis=-1) - reward + to_come[..., :-1], price

    def step(context: Context, rollout: Rollout, unit: Array, key: Array) -> tuple[Array, Price]:
        worth, price = prefix(context, rollout, key)
        before = jnp.take_along_axis(worth, jnp.maximum(starts(context, unit), 0), axis=-1)
        total = masked.sum(rollout.reward, rollout.mask, axis=-1)
        return units.of_unit(2 * jnp.clip(after(before, total, unit), 0, 1) - 1, unit), price

    return Scorer(step, prefix)


def from_label(provider: Callable) -> Scorer:
    """The scorer that gives a step 1 where its label [N, K, T] is 1, and -1 where it is 0."""

    def step(context: Context, rollout: Rollout, unit: Array, key: Array) -> tuple[Array, Price]:
        del unit  # the provider cuts the same ones
        label, price = provider(context, rollout, key)
        return 2 * label - 1, price

    return Scorer(step, None)


SCORERS = {
    "checker": Scorer(checked_step, potential_of_prefix),
    "exact": from_value(exact_value),
    "critic": from_value(value),
    "shepherd": from_label(shepherd_label),
    "omega": from_label(omega_label),
}


def _checker(task: Task) -> Callable:
    """(problem, state, state after) -> float32 in [-1, 1]."""
    if task.checker is not None:
        return task.checker
    if task.potential is None:
        raise InputError(f"task {task.name!r} has no checker and no potential to score steps with")

    def kept(problem: PyTree, state: PyTree, state_after: PyTree) -> Array:
        gained = task.potential(problem, state_after) - task.potential(problem, state)
        return jnp.where(gained < -ROUNDING, -1.0, 1.0)

    return kept


def _replayed(
    context: Context, rollout: Rollout, look: Callable, *positions: Array
) -> tuple[Array, Price]:
    """`look(problem, state, ...)` [N, K, P] of the states before these positions, each [N, K, P].

    Position T is the end of the row. Costs one environment step a chosen token.
    """

    def one(problem: PyTree, keys: Array, tokens: Array, mask: Array, *at: Array) -> Array:
        every = states(context.task, problem, keys, tokens, mask)
        found = [jax.tree.map(lambda leaf, p=p: leaf[jnp.maximum(p, 0)], every) for p in at]
        return jax.vmap(look, (None, *[0] * len(at)))(problem, *found)

    def on_device(_: None, rollout: Rollout, *at: Array) -> tuple[Array, Array]:
        rows = jax.vmap(jax.vmap(one, (None, *[0] * (3 + len(at)))))
        found = rows(rollout.problem, position_keys(rollout), rollout.tokens, rollout.mask, *at)
        return found, jnp.sum(rollout.mask, dtype=jnp.int32)

    found, replayed = each_device(context.layout.mesh, on_device, None, rollout, *positions)
    return found, Price(environment_steps=replayed)
