"""The unit that each token belongs to, of the kind that the settings name."""

from __future__ import annotations

from rlcredit import units
from rlcredit.evidence.context import Context, score_rollout
from rlcredit.types import Array, Price, Rollout


def unit(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] int32: 0, 1, 2, ... along each row, -1 off the mask; see `rlcredit.units`.

    A row has at most `probing.most_units`. Units cut by entropy take one
    forward pass, others nothing.

    Raises: InputError naming an unknown unit or one of its settings.
    """
    del key
    function, by_entropy = units.find(context.probing.unit)
    measured, price = {}, Price()
    if by_entropy:
        scores, price = score_rollout(context, context.params, rollout)
        measured = {"entropy": scores.entropy}
    return units.capped(function(rollout, **measured), context.probing.most_units), price
