"""What the nodes of a tree are worth, by the returns of the rows that share them."""

from __future__ import annotations

from rlcredit import masked, trees
from rlcredit.evidence.context import Context
from rlcredit.types import Array, Price, Rollout


def node_value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: the mean over the children of the node before each chosen token of what
    they are worth, the end of a row being worth its return; 0 off the mask.

    Returns are whole ones, what was earned before the node included. Rows share a node if they were
    sampled from it (`branching.grow`), or have chosen nothing yet. Nothing is sampled or scored.
    """
    del context, key
    total = masked.sum(rollout.reward, rollout.mask, axis=-1)
    return trees.node_value(rollout, total), Price()
