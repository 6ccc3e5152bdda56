"""How likely two draws of a token would have been the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.kernels.token_log_prob import logits
from rlcredit.types import Array, Price, Rollout


def collision(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: sum over the vocabulary of probability**2, of the distribution that each
    chosen token was drawn from; 0 off the mask.

    1 where the policy was certain, 1 / V where it was uniform over V tokens; never below the
    squared probability of the token itself. One forward pass at the policy's temperature and legal
    tokens; the logits of all rows are held at once.
    """
    del key
    tokens = rollout.tokens
    rows = tokens.reshape(-1, tokens.shape[-1])
    hidden, _ = context.policy.forward(context.params, rows)
    legal = rollout.legal.reshape(*rows.shape, -1)[:, 1:] if context.sampling.legal else None
    head = context.policy.head(context.params)
    scaled = logits(hidden[:, :-1], head, context.sampling.temperature, legal)
    squares = jnp.sum(jnp.square(jax.nn.softmax(scaled)), axis=-1)
    found = jnp.pad(squares, ((0, 0), (1, 0))).reshape(tokens.shape)
    return jnp.where(rollout.mask, found, 0), Price(tokens_scored=jnp.sum(rollout.length))
