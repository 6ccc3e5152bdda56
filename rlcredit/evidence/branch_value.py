"""What new episodes earn that the policy samples from before each unit."""

from __future__ import annotations

from rlcredit.evidence.context import Context
from rlcredit.evidence.continuations import value_of_units
from rlcredit.types import Array, Price, Rollout


def branch_value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: the mean of the whole returns, what was earned before included, of
    `probing.continuations` new episodes that begin with all before the token's unit.

    The same on all tokens of a unit, 0 off the mask. Its expectation is what was earned before the
    unit plus the exact value there. Rows of a tree that share a unit are continued each by itself.
    Charged as `branch`: the tokens sampled, and each row read once up to its last unit.
    """
    return value_of_units(context, context.params, rollout, key)
