"""The policy update: epochs and minibatches as one scan inside the jit.

A minibatch is one optimiser step. It is taken over whole problems, so that groups stay together,
and may be split further into micro-batches whose gradients add up: token weights are made for the
whole minibatch first, so the split changes nothing but memory. Packed, the rows of a micro-batch
hold several episodes each (`packing`), which changes nothing but the work. A step whose loss or
gradient is not finite leaves parameters and optimiser as they were and is counted
(`optax.apply_if_finite`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rlcredit import gradient
from rlcredit.credit import Credit
from rlcredit.gradient import Batch, Objective
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


class Schedule(NamedTuple):
    """How a batch is gone through."""

    epochs: int = 1
    minibatches: int = 1  # optimiser steps an epoch
    accumulate: int = 1  # micro-batches a minibatch
    packed: bool = False  # several episodes in a row; a micro-batch keeps its number of rows


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
    counts = (schedule.epochs, schedule.minibatches, schedule.accumulate, problems)
    if min(counts) < 1 or problems % (schedule.minibatches * schedule.accumulate):
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
    how = (policy, objective, sampling, schedule.accumulate)
    learn = gradient.packed if schedule.packed else gradient.in_rows

    def optimiser_step(carry: tuple, minibatch: Batch) -> tuple[tuple, dict]:
        params, opt_state = carry
        loss, metrics, grads = learn(*how, params, minibatch)
        # apply_if_finite looks at the gradient alone.
        poisoned = jax.tree.map(lambda g: jnp.where(jnp.isfinite(loss), g, jnp.nan), grads)
        updates, opt_state = optimizer.update(poisoned, opt_state, params)
        norm = optax.global_norm(grads)
        return (optax.apply_updates(params, updates), opt_state), (loss, norm, metrics)

    def epoch(carry: tuple, epoch_key: Array) -> tuple[tuple, dict]:
        state, batch = carry
        order = jax.random.permutation(epoch_key, batch.mask.shape[0])
        minibatches = gradient.split(
            jax.tree.map(lambda leaf: leaf[order], batch), schedule.minibatches
        )
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
