"""In which state of the task each token was chosen."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.episode import states
from rlcredit.evidence.context import Context
from rlcredit.keys import position_keys
from rlcredit.sharding import each_device
from rlcredit.types import Array, Price, PyTree, Rollout


def fingerprint(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] uint32: `task.fingerprint` of the state before each chosen token; 0 off the mask.

    Equal numbers of one problem are tokens chosen in the same state, also where a row has chance
    and observations in it, or is one of a tree. A replay: no network, one environment step a chosen
    token.
    """
    del key  # the chances of a replay are those of the rollout
    task = context.task

    def one(problem: PyTree, keys: Array, tokens: Array, mask: Array) -> Array:
        before = jax.tree.map(lambda leaf: leaf[:-1], states(task, problem, keys, tokens, mask))
        found = jax.vmap(task.fingerprint, (None, 0))(problem, before)
        return jnp.where(mask, found, 0)

    def on_device(_: None, rollout: Rollout) -> tuple[Array, Array]:
        rows = jax.vmap(jax.vmap(one, (None, 0, 0, 0)))
        found = rows(rollout.problem, position_keys(rollout), rollout.tokens, rollout.mask)
        return found, jnp.sum(rollout.mask, dtype=jnp.int32)

    found, replayed = each_device(context.layout.mesh, on_device, None, rollout)
    return found, Price(environment_steps=replayed)
