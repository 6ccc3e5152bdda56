"""TurnLOO: turn by turn, the return to go relative to the mean of the samples still in play."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.recurrence import running_sum
from rlcredit.types import Array, Rollout


def turn_loo(rollout: Rollout) -> Array:
    """A_i[t] = G_i[u] - mean over j != i, alive at turn u, of G_j[u], where u is the turn of t;
    G[u] is the undiscounted return from turn u on.

    A sample is alive at turn u if it chose a token there. Where no other one is, A_i[t] = G_i[u]:
    credit 0 would take the last turns of the longest episodes out of the gradient. Who else is
    alive, and what they earn, depends on the other samples alone; so with samples drawn
    independently the policy gradient is unbiased. With one turn an episode this is `rloo`, but for
    a group of one. After `TurnLOO` of AgentCreditBench 0.5.0
    (github.com/hectopascal/agent-credit-bench), which takes the whole return for G.

    Returns: [N, K, T] float32; where two or more are alive, with equal returns to go, exactly 0.
    """
    mask = rollout.mask
    turn = jnp.where(mask, rollout.turn, -1)
    earned = units.per_unit(rollout.reward, turn)
    alive = units.per_unit(mask.astype(jnp.float32), turn) > 0
    to_go = running_sum(earned, reverse=True)
    size = masked.count(alive, axis=1, keepdims=True)
    relative = size / jnp.maximum(size - 1, 1) * masked.center(to_go, alive, axis=1)
    return units.of_unit(jnp.where(size > 1, relative, to_go), turn)
