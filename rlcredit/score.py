"""Teacher-forced scoring: what a policy says of tokens that are already there."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.kernels.token_log_prob import token_log_prob
from rlcredit.packing import Slots
from rlcredit.types import Array, Policy, PyTree, Sampling


class Scores(NamedTuple):
    """One entry per token; the first token of a row has no prefix and scores 0."""

    log_prob: Array  # [..., T] float32
    entropy: Array  # [..., T] float32 of the distribution that the token was drawn from
    value: Array | None  # [..., T + 1] float32 of every prefix; 0 for the empty one


def score(
    policy: Policy,
    params: PyTree,
    tokens: Array,
    *,
    sampling: Sampling,
    legal: Array | None = None,
) -> Scores:
    """One forward pass over whole rows, at the temperature and legal tokens of `sampling`.

    Args:
      tokens: [..., T] int32; legal: [..., T, V] bool, used where `sampling.legal`.
    """
    *lead, length = tokens.shape
    rows = tokens.reshape(-1, length)
    hidden, value = policy.forward(params, rows)
    allowed = legal.reshape(*rows.shape, -1)[:, 1:] if sampling.legal else None
    log_prob, entropy = token_log_prob(
        hidden[:, :-1],
        policy.head(params),
        rows[:, 1:],
        temperature=sampling.temperature,
        legal=allowed,
    )
    scores = Scores(*(_after_a_zero(a) for a in (log_prob, entropy)), None)
    if value is not None:
        scores = scores._replace(value=_after_a_zero(value))
    return jax.tree.map(lambda a: a.reshape(*lead, a.shape[-1]), scores)


def score_packed(
    policy: Policy,
    params: PyTree,
    tokens: Array,
    slots: Slots,
    *,
    sampling: Sampling,
    legal: Array | None = None,
) -> Scores:
    """As `score`, of the tokens after those that lie in packed rows; 0 for all others.

    A slot scores the token that follows its own, and the value of the prefix that its own ends: so
    the first token of an episode, which no slot of that episode comes before, is scored by none.

    Args:
      tokens: [..., T] int32; legal: [..., T, V] bool, used where `sampling.legal`.
      slots: [R, S] of the rows of `tokens` in their order.
    """
    *lead, length = tokens.shape
    rows = tokens.reshape(-1, length)
    own, following = (slots.episode, slots.position), (slots.episode, slots.position + 1)
    hidden, value = policy.forward(params, _at(rows, own), slots.episode)
    allowed = None
    if sampling.legal:
        allowed = _at(legal.reshape(*rows.shape, -1), following)
    log_prob, entropy = token_log_prob(
        hidden,
        policy.head(params),
        _at(rows, following),
        temperature=sampling.temperature,
        legal=allowed,
    )

    def in_place(packed: Array, entries: int) -> Array:
        # Adding to zeros is linear, so its transpose is one gather.
        empty = jnp.zeros((rows.shape[0], entries), packed.dtype)
        return empty.at[following].add(packed, mode="drop").reshape(*lead, entries)

    scores = Scores(in_place(log_prob, length), in_place(entropy, length), None)
    return scores if value is None else scores._replace(value=in_place(value, length + 1))


def _at(rows: Array, place: tuple[Array, Array]) -> Array:
    """rows[place]; 0 for an empty slot."""
    return rows.at[place].get(mode="fill", fill_value=0)


def _after_a_zero(rows: Array) -> Array:
    return jnp.pad(rows, ((0, 0), (1, 0)))
