"""Where the sampled episodes of a rollout stand in the trees of its problems."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.episode import states
from rlcredit.exact.tree import Tree, present, which_answer
from rlcredit.keys import chance_key, position_keys
from rlcredit.types import Array, Rollout, Task


def find(task: Task, tree: Tree, rollout: Rollout) -> Array:
    """[N, K] int32: the row of the tree that each episode is; -1 where there is none.

    An episode is known by its tokens and, where the task leaves something to chance, by its
    answers, which a replay tells apart even where the policy saw no difference.
    """
    answer = _answers(task, rollout)

    def one(tokens: Array, answer: Array, tree_tokens: Array, tree_answer: Array) -> Array:
        """[K, M] of one problem."""
        alike = tokens[:, None] == tree_tokens[None]
        if task.outcomes is not None:
            alike &= answer[:, None] == tree_answer[None]
        return jnp.all(alike, axis=-1)

    alike = jax.vmap(one)(rollout.tokens, answer, tree.rollout.tokens, tree.answer)
    alike &= present(tree)[:, None]
    row = jnp.argmax(alike, axis=-1).astype(jnp.int32)
    return jnp.where(jnp.any(alike, axis=-1), row, -1)


def _answers(task: Task, rollout: Rollout) -> Array:
    """[N, K, T] int32 number of the task's answer to each chosen token; 0 elsewhere."""
    if task.outcomes is None:
        return jnp.zeros(rollout.tokens.shape, jnp.int32)

    def one(problem, keys: Array, tokens: Array, mask: Array) -> Array:
        before = jax.tree.map(lambda leaf: leaf[:-1], states(task, problem, keys, tokens, mask))
        chances = jax.vmap(chance_key)(keys, jnp.arange(tokens.shape[0]))
        answer = jax.vmap(lambda *move: which_answer(task, problem, *move))(before, tokens, chances)
        return jnp.where(mask, answer, 0)

    in_group = jax.vmap(one, (None, 0, 0, 0))
    keys = position_keys(rollout)
    return jax.vmap(in_group)(rollout.problem, keys, rollout.tokens, rollout.mask)
