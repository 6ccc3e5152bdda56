"""The policy update: epochs and minibatches as one scan inside the jit.

A minibatch is one optimiser step. It is taken over whole problems, so that groups stay together,
and may be split further into micro-batches whose gradients add up: token weights are made for the
whole minibatch first, so the split changes nothing but memory. A step whose loss or gradient is not
finite leaves parameters and optimiser as they were and is counted (`optax.apply_if_finite`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rlcredit import masked
from rlcredit.credit import Bound, Credit
from rlcredit.losses import kl_loss, value_loss
from rlcredit.losses.kl import Estimator
from rlcredit.losses.reducers import Reducer
from rlcredit.score import score
from rlcredit.types import (
    Array,
    InputError,
    Policy,
    PyTree,
    Rollout,
    Sampling,
    TrainState,
    owned,
)

# More failures in a row than any run has steps: apply_if_finite must never give in.
_NEVER_GIVE_IN = 2**31 - 1


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


class Schedule(NamedTuple):
    """How a batch is gone through."""

    epochs: int = 1
    minibatches: int = 1  # optimiser steps an epoch
    accumulate: int = 1  # micro-batches a minibatch


class Objective(NamedTuple):
    """policy loss + value_coef * value loss - entropy_coef * entropy + kl_coef * KL."""

    loss: Bound
    reduce: Reducer
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # needs evidence ref_log_prob
    kl_estimator: Estimator = "k2"
    value_coef: float = 0.5
    value_clip: float = float("inf")


def initial_state(
    params: PyTree, optimizer: optax.GradientTransformation, key: Array
) -> TrainState:
    """A stage's first state. The reference is a copy: a step that is given the state's arrays to
    write over must not find the same array in it twice.
    """
    reference = jax.tree.map(jnp.copy, params)
    return TrainState(params, reference, optimizer.init(params), key, jnp.int32(0))


def make_batch(rollout: Rollout, credit: Credit, evidence: dict[str, Array]) -> Batch:
    """The batch of a rollout; evidence that is not per token stays with the rule it was for.

    The mask is that of each row's own tokens: one that rows of a tree share is learned from once.
    """
    per_token = {name: e for name, e in evidence.items() if e.shape == rollout.mask.shape}
    value = evidence.get("value")
    return Batch(
        tokens=rollout.tokens,
        mask=owned(rollout),
        old_log_prob=rollout.log_prob,
        advantage=credit.advantage,
        target=credit.target,
        old_value=None if credit.target is None else value[..., :-1],
        legal=rollout.legal,
        evidence=per_token,
    )


def guarded(
    learning_rate: optax.ScalarOrSchedule, *, max_norm: float = 1.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """AdamW after clipping by the global norm, skipping steps that are not finite.

    The clip sees the gradient of the whole minibatch, accumulation included.
    """
    chain = optax.chain(
        optax.clip_by_global_norm(max_norm),
        optax.adamw(learning_rate, b2=0.98, weight_decay=weight_decay),
    )
    return optax.apply_if_finite(chain, max_consecutive_errors=_NEVER_GIVE_IN)


def inverse_sqrt(peak: float, *, rise: int = 10, plateau: int = 50) -> optax.Schedule:
    """rate[t] = peak * min(t / rise, 1 / sqrt(1 + t / plateau)).

    It falls without knowing how long the run will be, so that a run can be extended.
    """

    def rate(count: Array) -> Array:
        return peak * jnp.minimum(count / rise, jax.lax.rsqrt(1 + count / plateau))

    return rate


def check_schedule(schedule: Schedule, problems: int) -> None:
    """Raises: InputError if the problems do not divide into the schedule's pieces."""
    pieces = schedule.minibatches * schedule.accumulate
    if min(*schedule, problems) < 1 or problems % pieces:
        raise InputError(
            f"{problems} problems do not divide into minibatches={schedule.minibatches} times "
            f"accumulate={schedule.accumulate}, with epochs={schedule.epochs} >= 1"
        )


def make_update(
    policy: Policy,
    optimizer: optax.GradientTransformation,
    objective: Objective,
    schedule: Schedule,
    sampling: Sampling,
) -> Callable[[TrainState, Batch, Array], tuple[TrainState, dict[str, Array]]]:
    """A pure `update(state, batch, key) -> (state, metrics)`.

    Metrics are token means over the whole update, pooled by token count; `loss` is the mean of the
    minibatch losses, `grad_norm` that of the gradient norms before clipping, `skipped_updates`
    counts the steps in a row, up to the last, that were not finite.
    """

    def piece_loss(params: PyTree, piece: tuple[Batch, Array]) -> tuple[Array, dict]:
        return _loss(policy, params, objective, sampling, *piece)

    def optimiser_step(carry: tuple, minibatch: Batch) -> tuple[tuple, dict]:
        params, opt_state = carry
        weight = objective.reduce(minibatch.mask)
        pieces = _split((minibatch, weight), schedule.accumulate)
        loss, metrics, gradient = _accumulate(piece_loss, params, pieces)
        # apply_if_finite looks at the gradient alone.
        poisoned = jax.tree.map(lambda g: jnp.where(jnp.isfinite(loss), g, jnp.nan), gradient)
        updates, opt_state = optimizer.update(poisoned, opt_state, params)
        norm = optax.global_norm(gradient)
        return (optax.apply_updates(params, updates), opt_state), (loss, norm, metrics)

    def epoch(carry: tuple, epoch_key: Array) -> tuple[tuple, dict]:
        state, batch = carry
        order = jax.random.permutation(epoch_key, batch.mask.shape[0])
        minibatches = _split(jax.tree.map(lambda leaf: leaf[order], batch), schedule.minibatches)
        state, history = jax.lax.scan(optimiser_step, state, minibatches)
        return (state, batch), history

    def update(state: TrainState, batch: Batch, key: Array):
        epoch_keys = jax.random.split(key, schedule.epochs)
        carry = ((state.params, state.opt_state), batch)
        (carry, _), (loss, norm, sums) = jax.lax.scan(epoch, carry, epoch_keys)
        params, opt_state = carry
        tokens = jnp.maximum(jnp.sum(sums.pop("tokens")), 1)
        metrics = {name: jnp.sum(total) / tokens for name, total in sums.items()}
        metrics |= {"loss": jnp.mean(loss), "grad_norm": jnp.mean(norm)}
        metrics["skipped_updates"] = opt_state.notfinite_count
        return state._replace(params=params, opt_state=opt_state), metrics

    return update


def _loss(
    policy: Policy,
    params: PyTree,
    objective: Objective,
    sampling: Sampling,
    batch: Batch,
    weight: Array,
) -> tuple[Array, dict[str, Array]]:
    """The objective on one piece; metrics are sums over its tokens."""
    scores = score(policy, params, batch.tokens, sampling=sampling, legal=batch.legal)
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


def _accumulate(piece_loss: Callable, params: PyTree, pieces: PyTree) -> tuple:
    """Sums of loss, metrics and gradient over the leading axis of `pieces`."""

    def one(piece: PyTree) -> tuple:
        (loss, metrics), gradient = jax.value_and_grad(piece_loss, has_aux=True)(params, piece)
        return loss, metrics, gradient

    shapes = jax.eval_shape(one, jax.tree.map(lambda a: a[0], pieces))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total: tuple, piece: PyTree) -> tuple:
        return jax.tree.map(jnp.add, total, one(piece)), None

    return jax.lax.scan(add, zeros, pieces)[0]


def _split(tree: PyTree, pieces: int) -> PyTree:
    """[N, ...] -> [pieces, N / pieces, ...]."""
    return jax.tree.map(lambda a: a.reshape(pieces, a.shape[0] // pieces, *a.shape[1:]), tree)
