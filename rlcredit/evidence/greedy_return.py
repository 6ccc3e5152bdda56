"""The return of the greedy answer to each problem."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.evidence.context import Context
from rlcredit.rollout import sample
from rlcredit.types import Array, Price, Rollout


def greedy_return(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N] float32: the undiscounted return of one greedy episode of each problem."""
    del key  # greedy choices need none; the task's chances come from keys of the problems
    greedy = sample(
        context.policy,
        context.params,
        context.task,
        rollout.problem,
        rollout.key[:, 0],
        samples=1,
        sampling=context.sampling._replace(greedy=True),
    )
    sampled = jnp.sum(greedy.mask, dtype=jnp.int32)
    total = masked.sum(greedy.reward, greedy.mask, axis=(1, 2))
    return total, Price(tokens_sampled=sampled, environment_steps=sampled)
