"""PPO's generalised advantage estimation with a learned critic."""

from __future__ import annotations

from rlcredit import recurrence
from rlcredit.types import Array, Rollout


def gae(rollout: Rollout, *, value: Array, discount: float = 1.0, lambda_: float = 1.0) -> Array:
    """A[t] = sum over chosen k >= t of (discount * lambda_)**(k - t) * delta[k],
    delta[t] = reward[t] + discount * value[next chosen t] - value[t].

    lambda_ 1 uses the critic as a baseline only and, where episodes terminate, leaves the gradient
    unbiased; lambda_ 0 trusts it entirely: with an exact critic that is the exact advantage. A
    truncated episode bootstraps with `value[length]`, so at any lambda_ the error of the critic
    there is a bias. Schulman et al., 2015, arXiv 1506.02438.

    Args:
      value: [N, K, T + 1] evidence, the value of every prefix.
    Returns: [N, K, T] float32.
    """
    final = recurrence.final_value(value, rollout.length, rollout.terminated)
    arrays = (rollout.reward, value[..., :-1], rollout.mask, final)
    return recurrence.gae(*arrays, discount=discount, lambda_=lambda_)[0]
