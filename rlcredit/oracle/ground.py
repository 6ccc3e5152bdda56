"""What reports on credit rules stand on: trees, the truth of them, and the score of every choice.

All rules are judged on one ground. An *edge* is a token after all that came before it; its score is
the gradient of its log-probability. The gradient that any credit gives is a weighted sum of scores,
so once these are known a rule costs no further pass of the network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from rlcredit.evidence import Context
from rlcredit.exact.size import tree_size
from rlcredit.exact.tree import Tree, enumerate_episodes
from rlcredit.exact.values import Truth, exact
from rlcredit.score import score
from rlcredit.types import Array, InputError, Policy, PyTree, Sampling

MOST_ROWS = 2**13  # of one problem
MOST_SCORES = 2**29  # numbers in all scores together, 2 GB
_AT_A_TIME = 32  # edges whose scores are computed together


class Ground(NamedTuple):
    """N problems of M episodes and E edges each, under one policy of P parameters."""

    context: Context
    tree: Tree
    truth: Truth
    edge: Array  # [N, M, T] int32 in [0, E) of each chosen token; E elsewhere
    visit: Array  # [N, E] float32: how likely an episode comes that way; 0 for padding
    advantage: Array  # [N, E] float32 exact
    node: Array  # [N, E] int32: edges of a number start from the same prefix
    scores: Array  # [N, E, P] float32 gradient of log_prob of each edge
    gradient: Array  # [P] exact gradient of the objective


def prepare(context: Context, problems: PyTree) -> Ground:
    """The ground of some problems, under the context's parameters.

    Args: problems: leaves [N, ...].
    Raises: InputError, naming the size, if a tree or the scores are too large.
    """
    return make_prepare(context, problems)(context.params, context.ref_params)


def make_prepare(context: Context, problems: PyTree) -> Callable[[PyTree, PyTree], Ground]:
    """`prepare(params, ref_params) -> Ground`: `prepare` for several policies, compiled once."""
    rows, sampling = _rows(context, problems), context.sampling

    @jax.jit
    def grow(params: PyTree) -> tuple[Tree, Truth]:
        tree = enumerate_episodes(context.task, problems, legal=sampling.legal, capacity=rows)
        return tree, exact(context.policy, params, tree, sampling)

    scores_of = jax.jit(functools.partial(_scores, context.policy, sampling))

    def ground(params: PyTree, ref_params: PyTree) -> Ground:
        tree, truth = grow(params)
        edge, row, column = _number_edges(tree)
        count, edges = row.shape
        _check_scores(params, count, edges)
        real, at = row >= 0, (np.arange(count)[:, None], np.maximum(row, 0), column)
        visited = jnp.broadcast_to(truth.probability[..., None], edge.shape)
        visit = sum_by_edge(edge, visited, edges)
        advantage = jnp.where(real, truth.advantage[at], 0)
        scores = jnp.where(real[..., None], scores_of(params, tree.rollout, *at), 0)
        return Ground(
            context=context._replace(params=params, ref_params=ref_params),
            tree=tree,
            truth=truth,
            edge=edge,
            visit=visit,
            advantage=advantage,
            node=tree.node[at] * edge.shape[2] + column,
            scores=scores,
            gradient=jnp.einsum("ne,nep->p", visit * advantage, scores) / count,
        )

    return ground


def sum_by_edge(edge: Array, worth: Array, edges: int) -> Array:
    """[N, R, T] numbers of tokens, summed over all that are the same edge: [N, edges]."""

    def one(edge: Array, worth: Array) -> Array:
        return jax.ops.segment_sum(worth.ravel(), edge.ravel(), edges + 1)[:-1]

    return jax.vmap(one)(edge, worth)


def gradients(ground: Ground, weight: Array) -> Array:
    """[..., N, E] weights of the edges -> [..., P] gradients, means over the problems."""
    return jnp.einsum("...ne,nep->...p", weight, ground.scores) / ground.visit.shape[0]


def return_variance(truth: Truth) -> Array:
    """[N] float32 of the return of one episode."""
    mean = jnp.sum(truth.probability * truth.total, axis=1, keepdims=True)
    return jnp.sum(truth.probability * jnp.square(truth.total - mean), axis=1)


def _rows(context: Context, problems: PyTree) -> int:
    most = 0
    for number in range(jax.tree.leaves(problems)[0].shape[0]):
        problem = jax.tree.map(lambda leaf, n=number: leaf[n], problems)
        size = tree_size(context.task, problem, legal=context.sampling.legal)
        if size.rows > MOST_ROWS or not size.exact:
            raise InputError(
                f"a problem of task {context.task.name!r} has {size} episodes, a report takes at "
                f"most {MOST_ROWS:,}"
            )
        most = max(most, size.rows)
    return most


def _number_edges(tree: Tree) -> tuple[Array, np.ndarray, np.ndarray]:
    """(edge [N, M, T], row [N, E], column [N, E]): each edge's number and first token; -1 pads."""
    first, mask = np.asarray(tree.edge), np.asarray(tree.rollout.mask)
    count, rows, length = mask.shape
    own = mask & (first == np.arange(rows)[None, :, None])
    edges = int(own.sum(axis=(1, 2)).max())
    number = np.full(mask.shape, edges, np.int32)
    row, column = np.full((count, edges), -1), np.zeros((count, edges), int)
    for n in range(count):
        at = np.argwhere(own[n])
        row[n, : len(at)], column[n, : len(at)] = at.T
        named = np.full((rows, length), edges, np.int32)
        named[tuple(at.T)] = np.arange(len(at))
        number[n] = np.where(mask[n], named[first[n], np.arange(length)[None]], edges)
    return jnp.asarray(number), row, column


def _scores(policy: Policy, sampling: Sampling, params, rollout, problem, row, column) -> Array:
    """[N, E, P] gradients of the log-probability of the tokens at (problem, row, column)."""
    flat, unravel = ravel_pytree(params)

    def one(edge: tuple) -> Array:
        tokens, legal, column = edge

        def log_prob(flat: Array) -> Array:
            allowed = None if legal is None else legal[None]
            scored = score(policy, unravel(flat), tokens[None], sampling=sampling, legal=allowed)
            return scored.log_prob[0, column]

        return jax.grad(log_prob)(flat)

    tokens, legal = (
        None if leaf is None else leaf[problem, row].reshape(row.size, *leaf.shape[2:])
        for leaf in (rollout.tokens, rollout.legal)
    )
    whole = -row.size % _AT_A_TIME  # a last batch of another size would be compiled for itself
    edges = jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, leaf[:1].repeat(whole, axis=0)]),
        (tokens, legal, jnp.asarray(column).reshape(-1)),
    )
    scores = jax.lax.map(one, edges, batch_size=_AT_A_TIME)
    return scores[: row.size].reshape(*row.shape, -1)


def _check_scores(params: PyTree, problems: int, edges: int) -> None:
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    if problems * edges * parameters > MOST_SCORES:
        raise InputError(
            f"{problems} problems of {edges:,} choices under {parameters:,} parameters are too "
            "many for exact gradients; take fewer problems or a smaller network"
        )
