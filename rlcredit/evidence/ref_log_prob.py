"""Log-probability of the chosen tokens under the reference policy."""

from __future__ import annotations

from rlcredit.evidence.context import Context, score_rollout
from rlcredit.types import Array, Price, Rollout


def ref_log_prob(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32, 0 off the mask; one forward pass at the policy's temperature."""
    del key
    scores, price = score_rollout(context, context.ref_params, rollout)
    return scores.log_prob, price
