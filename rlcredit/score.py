"""Teacher-forced scoring: what a policy says of tokens that are already there."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.kernels.token_log_prob import token_log_prob
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


def _after_a_zero(rows: Array) -> Array:
    return jnp.pad(rows, ((0, 0), (1, 0)))
