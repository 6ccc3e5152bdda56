"""How likely the policy finds what it chose when it also reads how the episode ended."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.unit import unit as unit_of
from rlcredit.score import score
from rlcredit.types import Array, Price, Rollout


def hindsight_log_prob(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: log-probability of each chosen token with the tokens of the episode's last
    unit put between the prompt and the response; 0 off the mask.

    The hindsight of HCAPO, arXiv 2603.08754, where a language model is told the final state in
    words. A small policy has never read such a prompt, so what it makes of it is not a posterior.
    One forward pass over longer rows.
    """
    unit, price = unit_of(context, rollout, key)
    mask = rollout.mask
    length = mask.shape[-1]
    last = mask & (unit == jnp.max(unit, axis=-1, keepdims=True))
    told = jnp.sum(last, axis=-1, keepdims=True)
    order = jnp.argsort(~last, axis=-1, stable=True)
    ending = jnp.take_along_axis(rollout.tokens, order, axis=-1)
    first = jnp.argmax(mask, axis=-1, keepdims=True)
    room = min(context.task.horizon, length)

    place = jnp.arange(length + room)[None, None]
    source = jnp.where(place < first, place, place - told)
    inside = (place >= first) & (place < first + told)
    own = _taken(jnp.pad(rollout.tokens, ((0, 0), (0, 0), (0, room))), source)
    row = jnp.where(inside, _taken(ending, place - first), own)
    legal = rollout.legal
    if legal is not None:
        padded = jnp.pad(legal, ((0, 0), (0, 0), (0, room), (0, 0)))
        at = jnp.clip(source, 0, length + room - 1)[..., None]
        # What is told need not be legal where it stands; no one asks how likely it is.
        legal = jnp.take_along_axis(padded, at, axis=2)
    scored = score(context.policy, context.params, row, sampling=context.sampling, legal=legal)
    found = _taken(scored.log_prob, jnp.arange(length)[None, None] + told)
    read = price.tokens_scored + jnp.sum(rollout.length) + jnp.sum(told)
    return jnp.where(mask, found, 0), price._replace(tokens_scored=read)


def _taken(rows: Array, at: Array) -> Array:
    return jnp.take_along_axis(rows, jnp.clip(at, 0, rows.shape[-1] - 1), axis=-1)
