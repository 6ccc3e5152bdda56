"""Entropy of the distribution that each token was drawn from."""

from __future__ import annotations

from rlcredit.evidence.context import Context, score_rollout
from rlcredit.types import Array, Price, Rollout


def entropy(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32 in nats, 0 off the mask; one forward pass."""
    del key
    scores, price = score_rollout(context, context.params, rollout)
    return scores.entropy, price
