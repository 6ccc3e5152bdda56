"""Keys of random draws: by episode and position, so that no result depends on how work is laid out.

An episode has one key. At position t of its row the policy draws with `choice_key` and the task
with `chance_key`; a row that branches off another has a key of its own from `branch_at` on.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.trees import owners
from rlcredit.types import Array, Rollout

# Folded in before a branch's own numbers; no position of a row is ever this large.
_BRANCH = 2**31 - 1


def episode_keys(problem_keys: Array, samples: int) -> Array:
    """[N, K] keys: sample k of a problem depends on the problem's key and on k alone."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(fold, (0, None))(problem_keys, jnp.arange(samples))


def choice_key(key: Array, position: Array) -> Array:
    """What the policy draws the token at `position` with."""
    return jax.random.fold_in(key, 2 * position)


def chance_key(key: Array, position: Array) -> Array:
    """What the task answers the token at `position` with."""
    return jax.random.fold_in(key, 2 * position + 1)


def branch_keys(keys: Array, key: Array, positions: Array, continuations: int) -> Array:
    """[N, K, P, continuations] keys of the rows that leave rows [N, K] at positions [N, K, P]."""
    salt = jax.random.bits(key)

    def one(row_key: Array, position: Array, number: Array) -> Array:
        fresh = jax.random.fold_in(jax.random.fold_in(row_key, _BRANCH), salt)
        return jax.random.fold_in(jax.random.fold_in(fresh, position), number)

    fold = one
    for axes in ((None, None, 0), (None, 0, None), (0, 0, None), (0, 0, None)):
        fold = jax.vmap(fold, axes)
    return fold(keys, positions, jnp.arange(continuations))


def position_keys(rollout: Rollout) -> Array:
    """[N, K, T] the key that each position was drawn with: its row's, or that of the ancestor that
    the position was copied from.
    """
    owner = owners(rollout.parent, rollout.branch_at, rollout.tokens.shape[-1])
    return jax.vmap(lambda key, owner: key[owner])(rollout.key, owner)
