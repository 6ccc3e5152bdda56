"""SCAR: each unit has its Shapley value, what it adds to coalitions of the episode's units."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.shapley import shapley_of_orders, shapley_value
from rlcredit.coalitions import orders
from rlcredit.recurrence import last_chosen
from rlcredit.types import Array, Rollout


def scar(rollout: Rollout, *, unit: Array, coalition_value: Array, alpha: float = 1.0) -> Array:
    """A[t] = alpha * phi[u] + (1 - alpha) * R * (t is the last chosen token), u the unit of t;
    phi is the Shapley value of the episode's units in the game `coalition_value`.

    Over the units the shares sum up to the value of the whole episode minus that of none of it,
    which is what the policy earns anew; nothing else is subtracted. With one unit an episode A is
    the return minus a sampled value of the prompt. Units beyond the players are one with the last.

    The source adds a KL term, gives these numbers as rewards to PPO, and values a coalition by
    what a reward model says of the text with the other units blanked out; here the policy makes
    them anew, so that a grader of final answers will do. Cao et al., 2025, arXiv 2505.20417.

    Args:
      unit: [N, K, T] evidence; coalition_value: [N, K, 2**U] evidence, or [N, K, orders, U + 1]
        along `coalitions.orders`.
    Returns: [N, K, T] float32; a row of a tree is taken as an episode by itself.
    """
    unit = units.chosen(unit, rollout.mask)
    if coalition_value.ndim == 3:
        phi = shapley_value(coalition_value)
    else:
        count, joining = coalition_value.shape[2:]
        phi = shapley_of_orders(coalition_value, orders(joining - 1, count))
    share = units.of_unit(phi, units.capped(unit, phi.shape[-1]))
    total, _ = episode_return(rollout)
    outcome = jnp.where(last_chosen(rollout.mask), total[..., None], 0)
    return jnp.where(rollout.mask, alpha * share + (1 - alpha) * outcome, 0)
