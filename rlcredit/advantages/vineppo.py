"""VinePPO: each step by the change of a Monte Carlo value, from new episodes at its borders."""

from __future__ import annotations

from rlcredit import units
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.unit_values import at_end, at_start
from rlcredit.types import Array, Rollout


def vineppo(rollout: Rollout, *, unit: Array, branch_value: Array) -> Array:
    """A[t] = V[u + 1] - V[u] for the unit u of t; V[u] is the mean return of new episodes from
    where u starts, V after the last unit the return itself.

    Returns are whole ones, so what u earned is in V[u + 1]. However few the continuations, the
    expected gradient is the true one; with many of them the credit of units of one token is the
    exact advantage. The noise at a border is in two units, with opposite signs.
    Kazemnejad et al., 2024, arXiv 2410.01679.

    Args:
      unit: [N, K, T] evidence; branch_value: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    total, _ = episode_return(rollout)
    return at_end(branch_value, unit, total) - at_start(branch_value, unit)
