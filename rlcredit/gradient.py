"""The gradient of a minibatch, a micro-batch at a time.

Token weights are made for the whole minibatch first, so how it is split changes nothing but memory.
The rows of a micro-batch are worked on by all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit import masked, packing
from rlcredit.credit import Bound
from rlcredit.losses import kl_loss, value_loss
from rlcredit.losses.kl import Estimator
from rlcredit.losses.reducers import Reducer
from rlcredit.score import Scores, score, score_packed
from rlcredit.sharding import spread
from rlcredit.types import Array, Policy, PyTree, Sampling


class Batch(NamedTuple):
    """What the losses need of a rollout and its credit."""

    tokens: Array  # [N, K, T]
    mask: Array  # [N, K, T]
    old_log_prob: Array  # [N, K, T]
    advantage: Array  # [N, K, T] final: after whitening, where the experiment wants it
    target: Array | None  # [N, K, T] for the critic
    old_value: Array | None  # [N, K, T]
    legal: Array | None  # [N, K, T, V]
    evidence: dict[str, Array]  # [N, K, T] each: what the loss and the KL penalty ask for


class Objective(NamedTuple):
    """policy loss + value_coef * value loss - entropy_coef * entropy + kl_coef * KL."""

    loss: Bound
    reduce: Reducer
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # needs evidence ref_log_prob
    kl_estimator: Estimator = "k2"
    value_coef: float = 0.5
    value_clip: float = float("inf")


def in_rows(
    policy: Policy,
    objective: Objective,
    sampling: Sampling,
    accumulate: int,
    params: PyTree,
    batch: Batch,
) -> tuple[Array, dict, PyTree]:
    """(loss, metrics, gradient) of a minibatch, `1 / accumulate` of its rows at a time."""

    def loss(params: PyTree, piece: tuple[Batch, Array]) -> tuple[Array, dict]:
        own, weight = spread(piece)
        scores = score(policy, params, own.tokens, sampling=sampling, legal=own.legal)
        return _loss(objective, scores, own, weight)

    def fold(add: Callable, total: PyTree) -> PyTree:
        return jax.lax.scan(lambda total, piece: (add(total, piece), None), total, pieces)[0]

    pieces = split((batch, objective.reduce(batch.mask)), accumulate)
    return _accumulate(loss, params, jax.tree.map(lambda a: a[0], pieces), fold)


def packed(
    policy: Policy,
    objective: Objective,
    sampling: Sampling,
    accumulate: int,
    params: PyTree,
    batch: Batch,
) -> tuple[Array, dict, PyTree]:
    """As `in_rows`; of as many packed rows at a time.

    The losses see all rows of the minibatch, each episode whole, with weight 0 where it is not in
    the piece: a loss of sequences needs no version for packed rows.
    """

    def loss(params: PyTree, piece: packing.Piece) -> tuple[Array, dict]:
        scores = score_packed(
            policy, params, batch.tokens, spread(piece.slots), sampling=sampling, legal=batch.legal
        )
        present = piece.present.reshape(*batch.mask.shape[:-1], 1)
        own = batch._replace(mask=batch.mask & present)
        return _loss(objective, scores, own, jnp.where(present, weight, 0))

    def fold(add: Callable, total: PyTree) -> PyTree:
        return packing.fold(add, total, filled, rows)

    weight = objective.reduce(batch.mask)
    size = packing.tokens_read(batch.mask).reshape(-1)
    filled, rows = packing.pack(size, batch.mask.shape[-1] - 1), len(size) // accumulate
    return _accumulate(loss, params, packing.take(filled, 0, rows), fold)


def _loss(
    objective: Objective, scores: Scores, batch: Batch, weight: Array
) -> tuple[Array, dict[str, Array]]:
    """The objective on one piece; metrics are sums over its tokens."""
    evidence = {name: batch.evidence[name] for name in objective.loss.evidence}
    loss, metrics = objective.loss.function(
        scores.log_prob, batch.old_log_prob, batch.advantage, weight, **evidence
    )
    metrics["entropy"] = masked.mean(scores.entropy, batch.mask)
    if objective.entropy_coef:
        loss -= objective.entropy_coef * masked.sum(weight * scores.entropy, batch.mask)
    if objective.kl_coef:
        penalty, kl_metrics = kl_loss(
            scores.log_prob,
            batch.evidence["ref_log_prob"],
            weight,
            estimator=objective.kl_estimator,
        )
        loss += objective.kl_coef * penalty
        metrics |= kl_metrics
    if batch.target is not None:
        critic, critic_metrics = value_loss(
            scores.value[..., :-1],
            batch.target,
            batch.old_value,
            weight,
            clip=objective.value_clip,
        )
        loss += objective.value_coef * critic
        metrics |= critic_metrics
    tokens = masked.count(batch.mask)
    return loss, {name: mean * tokens for name, mean in metrics.items()} | {"tokens": tokens}


def _accumulate(piece_loss: Callable, params: PyTree, piece: PyTree, fold: Callable) -> tuple:
    """Sums of loss, metrics and gradient over the pieces that `fold` visits, shaped as `piece`."""

    def one(piece: PyTree) -> tuple:
        (loss, metrics), gradient = jax.value_and_grad(piece_loss, has_aux=True)(params, piece)
        return loss, metrics, gradient

    def add(total: tuple, piece: PyTree) -> tuple:
        return jax.tree.map(jnp.add, total, one(piece))

    shapes = jax.eval_shape(one, piece)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return fold(add, zeros)


def split(tree: PyTree, pieces: int) -> PyTree:
    """[N, ...] -> [pieces, N / pieces, ...]."""
    return jax.tree.map(lambda a: a.reshape(pieces, a.shape[0] // pieces, *a.shape[1:]), tree)
