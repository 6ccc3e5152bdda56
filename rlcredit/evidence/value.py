"""The critic's value of every prefix."""

from __future__ import annotations

from rlcredit.evidence.context import Context, score_rollout
from rlcredit.types import Array, InputError, Price, Rollout


def value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T + 1] float32: entry t is the value of `tokens[:t]`; one forward pass.

    Raises: InputError if the policy has no critic.
    """
    del key
    if not context.policy.has_value:
        raise InputError("evidence 'value' needs a critic: give the policy a value head")
    scores, price = score_rollout(context, context.params, rollout)
    return scores.value, price
