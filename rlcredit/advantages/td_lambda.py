"""TD(lambda): the lambda-return as the critic's target, what it adds to the value as the credit."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import recurrence
from rlcredit.types import Array, Rollout


def td_lambda(
    rollout: Rollout,
    *,
    value: Array,
    discount: float = 1.0,
    lambda_: float = 0.95,
    actor_lambda: float = 1.0,
) -> tuple[Array, Array]:
    """A[t] = G(actor_lambda)[t] - value[t], target[t] = G(lambda_)[t], with the lambda-return

    G(l)[t] = reward[t] + discount * ((1 - l) * value[next chosen t] + l * G(l)[next chosen t]).

    By default the credit uses the critic as a baseline only, so its gradient is unbiased where
    episodes terminate, while the critic learns from a target of less variance. Two lambdas are from
    VC-PPO, Yuan et al., 2025, arXiv 2503.01491, which sets them the other way round. With both
    equal the credit is that of `gae`, written forwards. Sutton, 1988.

    Args:
      value: [N, K, T + 1] evidence, the value of every prefix.
    Returns: (advantage, target), both [N, K, T] float32.
    """
    mask = rollout.mask
    following = recurrence.next_value(value, mask, rollout.length, rollout.terminated)
    ends = recurrence.last_chosen(mask)

    def lambda_return(mixing: float) -> Array:
        return recurrence.lambda_return(
            rollout.reward, following, mask, ends, discount=discount, lambda_=mixing
        )

    advantage = jnp.where(mask, lambda_return(actor_lambda) - value[..., :-1], 0)
    return advantage, lambda_return(lambda_)
