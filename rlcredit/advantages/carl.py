"""CARL: critical actions alone: edges from where a tree forks, by the change of value."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import trees, units
from rlcredit.advantages.spo_tree import spo_tree
from rlcredit.advantages.unit_values import at_start
from rlcredit.types import Array, Rollout


def carl(rollout: Rollout, *, node_value: Array) -> Array:
    """A[t] = V(child) - V(parent) for the edge of t if its start has more than one child, else 0.

    With values that are means of children the others are 0 in `spo_tree` too: what is CARL's own is
    where it forks, at states where the policy is least sure (`--cut surprising`), and that it
    divides by no deviation. Its equations are known from a third-party note; arXiv 2512.04949.

    Args:
      node_value: [N, K, T] evidence.
    Returns: [N, K, T] float32; the same on tokens that rows share.
    """
    forks = at_start(trees.children(rollout), units.fork(rollout)) > 1
    return jnp.where(forks, spo_tree(rollout, node_value=node_value), 0)
