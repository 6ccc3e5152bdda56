"""What a network's tree is worth: exact values, advantages and chances of every prefix.

The whole tree is scored by the pass that training uses, in pieces, and values are folded back from
the leaves. Values are of the undiscounted return within the horizon; an episode that is cut is
worth what it earned.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.exact.tree import Tree, present
from rlcredit.score import score
from rlcredit.types import Array, Policy, PyTree, Sampling

# Rows in one forward pass: what is held at a time, whatever the size of the tree.
PIECE = 1024


class Truth(NamedTuple):
    """Exact under the policy, for every row of a tree."""

    log_prob: Array  # [N, M, T] float32; 0 off the mask
    value: Array  # [N, M, T + 1] float32: E[return from t on | all that came before t]
    advantage: Array  # [N, M, T] float32: Q[t] - value[t]; 0 off the mask
    probability: Array  # [N, M] float32 of the whole episode
    total: Array  # [N, M] float32 its return


def exact(policy: Policy, params: PyTree, tree: Tree, sampling: Sampling) -> Truth:
    """Values by backward induction over the tree, with what happened before t called h[t]:

    Q[t]         = sum over answers of chance * (reward[t] + value[t + 1])
    value[t]     = sum over tokens of pi(token | h[t]) * Q[t]
    advantage[t] = Q[t] - value[t]

    h[t] holds the answers of the task too, also those that the policy was not told of. A problem
    whose tree is not whole has nan everywhere.

    Args: sampling: its temperature and legal tokens, those that the tree was made with.
    """
    log_prob = log_probs(policy, params, tree, sampling)
    value, advantage = jax.vmap(_fold)(tree, log_prob)
    whole = tree.count <= tree.chance.shape[1]

    def known(values: Array) -> Array:
        return jnp.where(jnp.expand_dims(whole, tuple(range(1, values.ndim))), values, jnp.nan)

    return Truth(
        log_prob,
        known(value),
        known(advantage),
        known(probabilities(tree, log_prob)),
        jnp.sum(tree.rollout.reward, axis=-1),
    )


def log_probs(policy: Policy, params: PyTree, tree: Tree, sampling: Sampling) -> Array:
    """[N, M, T] float32 of the chosen tokens, 0 off the mask; differentiable, piece by piece."""
    rollout = tree.rollout
    rows = (rollout.tokens, rollout.legal if sampling.legal else None)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)

    @jax.checkpoint
    def piece(rows: tuple[Array, Array | None]) -> Array:
        tokens, legal = rows
        return score(policy, params, tokens, sampling=sampling, legal=legal).log_prob

    count = flat[0].shape[0]
    pieces = -(-count // PIECE)
    size = -(-count // pieces)

    def cut(leaf: Array) -> Array:
        padded = jnp.pad(leaf, [(0, pieces * size - count)] + [(0, 0)] * (leaf.ndim - 1))
        return padded.reshape(pieces, size, *leaf.shape[1:])

    scored = jax.lax.map(piece, jax.tree.map(cut, flat))
    log_prob = scored.reshape(pieces * size, -1)[:count].reshape(rollout.mask.shape)
    return jnp.where(rollout.mask, log_prob, 0)


def probabilities(tree: Tree, log_prob: Array) -> Array:
    """[N, M] float32 of each episode: the product of its choices' and answers' chances."""
    chance = jnp.sum(log_prob, axis=-1) + jnp.sum(jnp.log(tree.chance), axis=-1)
    return jnp.where(present(tree), jnp.exp(chance), 0)


def visits(tree: Tree, probability: Array) -> Array:
    """[N, M, T + 1] float32: how likely an episode begins with what came before t.

    Args: probability: [N, M] of the episodes.
    """
    rows = probability.shape[1]

    def below(probability: Array, node: Array) -> Array:
        return jax.ops.segment_sum(probability, node, rows)[node]

    over_columns = jax.vmap(below, (None, 1), 1)
    return jax.vmap(over_columns)(probability, tree.node)


def _fold(tree: Tree, log_prob: Array) -> tuple[Array, Array]:
    """(value [M, T + 1], advantage [M, T]) of one problem."""
    rows = log_prob.shape[0]
    row = jnp.arange(rows)

    def gather(worth: Array, first: Array, into: Array) -> Array:
        """Each part once, by the row that names it, summed into what it belongs to."""
        return jax.ops.segment_sum(jnp.where(first == row, worth, 0), into, rows)[into]

    def back(after: Array, column: tuple) -> tuple[Array, tuple[Array, Array]]:
        log_prob, reward, chance, node, edge, following = column
        q = gather(chance * (reward + after), following, edge)
        value = gather(jnp.exp(log_prob) * q, edge, node)
        return value, (value, q - value)

    columns = (
        *(log_prob, tree.rollout.reward, tree.chance),
        *(tree.node[:, :-1], tree.edge, tree.node[:, 1:]),
    )
    time_major = jax.tree.map(lambda leaf: leaf.T, columns)
    over = jnp.zeros(rows, jnp.float32)
    _, (value, advantage) = jax.lax.scan(back, over, time_major, reverse=True)
    value = jnp.concatenate([value.T, over[:, None]], axis=1)
    return value, jnp.where(tree.rollout.mask, advantage.T, 0)
