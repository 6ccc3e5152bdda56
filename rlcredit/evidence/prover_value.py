"""What new episodes earn that the reference policy samples from before each unit."""

from __future__ import annotations

from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import value_of_units
from rlcredit.types import Array, Price, Rollout


def prover_value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: as `branch_value`, where the reference samples the new episodes.

    The prover of process advantage verifiers: another policy than the one that is trained.
    Setlur et al., 2024, arXiv 2410.08146.
    """
    return value_of_units(context, context.ref_params, rollout, key)
