"""What an episode is worth when some of its units are kept and the policy makes the others anew."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import coalitions, masked, units
from rlcredit.episode import begin
from rlcredit.evidence.context import Context
from rlcredit.evidence.unit import unit
from rlcredit.keys import branch_keys
from rlcredit.lanes import Queue, Read, finished, prompt_rows, spent, work_off
from rlcredit.rollout import check_request
from rlcredit.sharding import each_device
from rlcredit.types import Array, Price, PyTree, Rollout, Task


def coalition_value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, 2**U] float32: mean return of new episodes that keep exactly the units whose bit is
    set in the index; of more than `coalitions.MOST` players [N, K, orders, U + 1], along orders.

    U = `probing.players` units of each row form the coalitions, the last one with all that follow.
    A new episode starts from the prompt. Its j-th choice is the row's j-th token if that belongs to
    a kept unit, and is legal there where `sampling.legal` is set; otherwise the policy draws it, as
    everything after the row's last token. So the full coalition is the row again: its value is the
    row's return where the task takes no chances. The task's chances are new.

    There are `probing.continuations` episodes of each coalition. Coalitions that keep the same
    tokens, since the row has fewer units or orders meet, are the same episodes and paid once. A
    kept token is charged as a drawn one: it takes the same turn of the loop. A row without a chosen
    token has value 0.

    Raises: InputError as `unit` and `branch`, and for `probing.players` and `orders` out of range.
    """
    probing = context.probing
    formed = coalitions.formed(probing.players, probing.orders)
    check_request(
        context.policy, context.task, rollout.problem, probing.continuations, context.sampling
    )
    player, price = unit(context, rollout, key)
    player = units.capped(player, probing.players)
    number = _numbers(formed.reshape(-1, probing.players), player)
    keys = branch_keys(rollout.key, key, number, probing.continuations)

    def on_device(params: PyTree, rollout: Rollout, player: Array, number: Array, keys: Array):
        prompts, lengths = jax.vmap(context.task.prompt)(rollout.problem)
        read = Read(*context.policy.extend(params, None, prompts, jnp.zeros(1, jnp.int32)))
        first = _first(number)
        queue = _queue(context, rollout, prompts, lengths, keys, first)
        kept = _kept_tokens(context.task, rollout, player, number)
        queue = queue._replace(kept=_each(kept, keys))
        lanes = work_off(
            context.policy, params, context.task, rollout.problem, queue, read,
            lanes=context.layout.lanes, sampling=context.sampling,
        )  # fmt: skip
        rows = finished(lanes, rollout.problem, keys.reshape(keys.shape[0], -1))
        total = masked.sum(rows.reward, rows.mask, axis=-1).reshape(keys.shape)
        value = jnp.take_along_axis(jnp.mean(total, axis=-1), first, axis=-1)
        return value, spent(lanes, rows.mask, lengths)

    value, cost = each_device(
        context.layout.mesh, on_device, context.params, rollout, player, number, keys
    )
    return value.reshape(*value.shape[:2], *formed.shape[:-1]), price + cost


def _numbers(formed: np.ndarray, player: Array) -> Array:
    """[N, K, C] int32 with the bits of the players that a coalition keeps of a row.

    A player whom a row does not have changes nothing.

    Args: formed: [C, U]; player: [N, K, T].
    """
    everyone = jnp.arange(formed.shape[1], dtype=jnp.int32)
    there = jnp.any(player[..., None] == everyone[None, None, None], axis=2)
    bit = jnp.where(there, jnp.left_shift(1, everyone)[None, None], 0)
    return jnp.sum(jnp.where(formed[None, None], bit[:, :, None], 0), axis=-1, dtype=jnp.int32)


def _first(number: Array) -> Array:
    """[N, K, C] int32: the first coalition of the row that has the same number."""

    def of_row(number: Array) -> Array:
        order = jnp.argsort(number, stable=True).astype(jnp.int32)
        return order[jnp.searchsorted(number[order], number)]

    return jax.vmap(jax.vmap(of_row))(number)


def _kept_tokens(task: Task, rollout: Rollout, player: Array, number: Array) -> Array:
    """[N, K, C, horizon] int32: the tokens that a coalition keeps, in the order they were chosen;
    -1 for one that is drawn.
    """
    mask = rollout.mask
    at = jnp.argsort(~mask, axis=-1, stable=True)[..., : task.horizon]
    token, whose = (jnp.take_along_axis(a, at, axis=-1) for a in (rollout.tokens, player))
    bit = jnp.right_shift(number[..., None], jnp.maximum(whose, 0)[:, :, None]) & 1
    kept = (bit == 1) & jnp.take_along_axis(mask, at, axis=-1)[:, :, None]
    return jnp.where(kept, token[:, :, None], -1)


def _each(leaf: Array, keys: Array) -> Array:
    """[N, K, C, ...] -> [N * K * C * continuations, ...]."""
    spread = jnp.broadcast_to(leaf[:, :, :, None], (*keys.shape, *leaf.shape[3:]))
    return spread.reshape(keys.size, *leaf.shape[3:])


def _queue(
    context: Context, rollout: Rollout, prompts: Array, lengths: Array, keys: Array, first: Array
) -> Queue:
    """One episode a key, those of rows with a token and of coalitions that are their `first`."""
    problem = jnp.repeat(jnp.arange(keys.shape[0], dtype=jnp.int32), keys[0].size)
    start = jax.vmap(lambda *one: begin(context.task, *one))(rollout.problem, lengths)
    own = first == jnp.arange(first.shape[-1])[None, None]
    exists = _each(own & jnp.any(rollout.mask, axis=-1)[..., None], keys)
    return Queue(
        episode=jax.tree.map(lambda leaf: leaf[problem], start),
        rows=prompt_rows(context.task, prompts[problem], context.sampling.legal),
        key=keys.reshape(-1),
        problem=problem,
        source=problem,
        order=jnp.argsort(~exists, stable=True).astype(jnp.int32),
        count=jnp.sum(exists, dtype=jnp.int32),
    )
