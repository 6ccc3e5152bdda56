"""SPO-tree: each edge of a tree by the value of where it leads over that of where it starts."""

from __future__ import annotations

from rlcredit import units
from rlcredit.advantages.vineppo import vineppo
from rlcredit.types import Array, Rollout


def spo_tree(rollout: Rollout, *, node_value: Array) -> Array:
    """A[t] = V(child) - V(parent) for the edge of t: the tokens between two forks of the tree.

    V(node) is the mean of its children's, that of a leaf its return. This is `vineppo` with the
    forks as borders and the tree's own rows as continuations. Rows that were sampled apart have one
    fork, before their first token, and the credit is that of `dr_grpo`. The scaled form of the
    paper is `treerpo`. Guo et al., 2025, arXiv 2505.23564.

    Args:
      node_value: [N, K, T] evidence.
    Returns: [N, K, T] float32; the same on tokens that rows share.
    """
    return vineppo(rollout, unit=units.fork(rollout), branch_value=node_value)
