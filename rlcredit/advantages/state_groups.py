"""What rules that compare steps share: steps by their number, and those of a problem in groups.

A group has a name: entries [N, K, ...] of one problem with the same name are in it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from rlcredit import trees, units
from rlcredit.recurrence import reverse_affine
from rlcredit.types import Array, Rollout


def at_start(x: Array, unit: Array) -> Array:
    """[N, K, T] by number of the unit: `x` at its first token, 0 where there is no unit."""
    return units.per_unit(jnp.where(units.opens(unit), x, 0), unit)


def exists(unit: Array) -> Array:
    """[N, K, T] bool by number of the unit: whether the row has one."""
    return at_start(jnp.ones(unit.shape, jnp.int32), unit) > 0


def return_to_go(rollout: Rollout, step: Array, discount: float) -> Array:
    """[N, K, T] by number of the step: the return from it on, discounted once a step."""
    next_opens = jnp.roll(units.opens(step), -1, axis=-1)
    reward = jnp.where(rollout.mask, rollout.reward, 0)
    return at_start(reverse_affine(reward, jnp.where(next_opens, discount, 1.0)), step)


def groups(member: Array, *keys: Array) -> Array:
    """Names in [0, entries of a problem): equal for members of a problem with the same keys.

    A group is named by the place of its first member. What is no member has no meaning.
    """

    def of_problem(member: Array, *keys: Array) -> Array:
        keys = [jnp.where(member, key, 0) for key in keys]
        order = jnp.lexsort((*keys, ~member))
        opens = functools.reduce(jnp.logical_or, map(_differs, (k[order] for k in (*keys, member))))
        first = jax.lax.cummax(jnp.where(opens, jnp.arange(order.size), 0))
        return jnp.zeros(order.size, jnp.int32).at[order].set(order[first].astype(jnp.int32))

    names = jax.vmap(of_problem)(*(a.reshape(a.shape[0], -1) for a in (member, *keys)))
    return names.reshape(member.shape)


def sum_in_group(x: Array, group: Array, member: Array) -> Array:
    """The sum over the members of each entry's group; 0 for what is no member.

    Args: group: names in [0, entries of a problem + K).
    """
    count, samples = x.shape[:2]
    names = x[0].size + samples

    def of_problem(x: Array, group: Array) -> Array:
        sums = jax.ops.segment_sum(x, group, num_segments=names + 1, mode=trees.IN_BOUNDS)
        return sums[group]

    x, group = jnp.where(member, x, 0), jnp.where(member, group, names)
    sums = jax.vmap(of_problem)(x.reshape(count, -1), group.reshape(count, -1))
    return jnp.where(member, sums.reshape(x.shape), 0)


def mean_in_group(x: Array, group: Array, member: Array, weight: Array | float = 1.0) -> Array:
    """sum(weight * x) / sum(weight) over the members of each entry's group."""
    weight = jnp.broadcast_to(weight, x.shape)
    total = sum_in_group(weight, group, member)
    return sum_in_group(weight * x, group, member) / jnp.where(total > 0, total, 1)


def relative_in_group(x: Array, group: Array, member: Array, *, eps: float) -> Array:
    """(x - mean) / (std + eps) among the members of a group; exactly 0 where all are equal.

    Args: group: as `groups` names them.
    """
    count = x.shape[0]
    x = jnp.where(member, x, 0)
    first = jnp.take_along_axis(x.reshape(count, -1), group.reshape(count, -1), axis=1)
    relative = jnp.where(member, x - first.reshape(x.shape), 0)  # equal entries: exactly 0
    relative = relative - mean_in_group(relative, group, member)
    variance = mean_in_group(jnp.square(relative), group, member)
    return relative / (jnp.sqrt(variance) + eps)


def step_advantage(rollout: Rollout, fingerprint: Array, *, discount: float, eps: float) -> Array:
    """[N, K, T] the return to go of each token's step, relative to the steps from its state.

    (G - mean G) / (std G + eps) over the steps of the problem, of all its samples, that start in
    the same state; 0 for a step that is alone in its state, and off the mask.
    """
    step = units.step(rollout)
    here = exists(step)
    to_go = return_to_go(rollout, step, discount)
    same_state = groups(here, at_start(fingerprint, step))
    return units.of_unit(relative_in_group(to_go, same_state, here, eps=eps), step)


def _differs(key: Array) -> Array:
    """[size] bool: whether an entry differs from the one before it; True for the first."""
    return jnp.pad(key[1:] != key[:-1], (1, 0), constant_values=True)
