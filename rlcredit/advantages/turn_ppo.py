"""Turn-PPO: generalised advantage estimation over turns, one number for all tokens of a turn."""

from __future__ import annotations

from rlcredit import recurrence, units
from rlcredit.advantages.unit_values import at_start
from rlcredit.types import Array, Rollout


def turn_ppo(
    rollout: Rollout, *, unit: Array, value: Array, discount: float = 1.0, lambda_: float = 1.0
) -> tuple[Array, Array]:
    """A[t] = sum over units k >= u of (discount * lambda_)**(k - u) * delta[k], u the unit of t,
    delta[u] = earned[u] + discount * V[u + 1] - V[u].

    V[u] is the value before the first token of u; after the last unit it is 0 where the episode
    terminated, else `value[length]`. The critic's target is A + V[u] on all tokens of u. With one
    unit an episode and without truncation this is a bandit with a baseline, R - V[0]; with units of
    one token it is `gae`. The source was not read in full: its equations are known from a summary,
    arXiv 2512.17008, which also has one probability ratio a turn (loss `sorl`). Meant with the unit
    `turn`.

    Args:
      unit: [N, K, T] evidence; value: [N, K, T + 1] evidence, the value of every prefix.
    Returns: (advantage, target), both [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    first = units.opens(unit)
    earned = units.of_unit(units.per_unit(rollout.reward, unit), unit)
    final = recurrence.final_value(value, rollout.length, rollout.terminated)
    of_first = recurrence.gae(
        earned, value[..., :-1], first, final, discount=discount, lambda_=lambda_
    )
    return tuple(at_start(array, unit) for array in of_first)
