"""PAV: the outcome, plus the progress that each step makes for another policy, the prover."""

from __future__ import annotations

from rlcredit import units
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.unit_values import at_end, at_start
from rlcredit.types import Array, Rollout


def pav(
    rollout: Rollout, *, unit: Array, prover_value: Array, coef: float = 1.0, best_of: int = 1
) -> Array:
    """A[t] = R - mean_group R + coef * (B(V[u + 1]) - B(V[u])), B(v) = 1 - (1 - v)**best_of.

    V[u] is the mean return of the prover's episodes from where the unit u of t starts, V after the
    last unit the return itself; the prover is the reference policy, or the best of `best_of` of its
    episodes, for which returns have to lie in [0, 1]. A prover must be able to tell steps apart and
    not be so strong that none matters. The source was not read in full: Setlur et al., 2024, arXiv
    2410.08146; the outcome relative to the group is ours.

    Args:
      unit: [N, K, T] evidence; prover_value: [N, K, T] evidence, equal on all tokens of a unit.
    Returns: [N, K, T] float32.
    """
    unit = units.chosen(unit, rollout.mask)
    total, _ = episode_return(rollout)
    before, after = at_start(prover_value, unit), at_end(prover_value, unit, total)
    progress = (1 - before) ** best_of - (1 - after) ** best_of
    return dr_grpo(rollout) + coef * progress
