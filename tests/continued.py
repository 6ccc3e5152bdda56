"""What tests of evidence by new episodes share: rows to continue, and returns from a table."""

import functools

import jax
import jax.numpy as jnp
from stubs import quick_jit, talk, talks

from rlcredit.episode import play
from rlcredit.types import Price

TALK = talk()


@functools.cache
def talked():
    """A row of each of four problems of `TALK`, and a copy of it that has another key.

    A copy is a branch at the very end: all that is in it was drawn with the key of the first row.
    """

    def choose(problem, state, number, key):
        return jax.random.randint(key, (), 1, 9)

    keys = jax.random.split(jax.random.key(0), 8)
    run = quick_jit(lambda *drawn: play(TALK, *drawn, choose))
    rows = run(talks(4, limits=(9, 2, 6)), keys[:4])
    twice = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=1), rows._replace(problem=None))
    is_copy = jnp.asarray([[False, True]])
    return twice._replace(
        key=twice.key.at[:, 1].set(keys[4:]),
        parent=jnp.zeros_like(twice.parent),
        branch_at=jnp.where(is_copy, twice.length, 0),
        problem=rows.problem,
        legal=jnp.zeros((*twice.mask.shape, len(TALK.vocabulary)), bool),
    )


def by_table(total, calls=None):
    """A `branch` whose one episode from position t returns total[..., t]; total: [N, K, T].

    Each new episode is charged one token. `calls` is a list that grows by the positions a row.
    """

    def branch(policy, params, task, rollout, positions, continuations, key, **how):
        assert continuations == 1
        if calls is not None:
            calls.append(positions.shape[-1])
        taken = jnp.take_along_axis(total, jnp.maximum(positions, 0), axis=-1)
        reward = jnp.where(positions < 0, 0, taken).reshape(len(positions), -1, 1)
        price = Price(tokens_sampled=jnp.sum(positions >= 0))
        return rollout._replace(reward=reward, mask=jnp.ones(reward.shape, bool)), price

    return branch
