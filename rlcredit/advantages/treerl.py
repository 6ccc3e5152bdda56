"""TreeRL: each edge of a tree by where it leads, against the root and against its start."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import trees, units
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.unit_values import at_end, at_start
from rlcredit.types import Array, Rollout


def treerl(rollout: Rollout, *, node_value: Array) -> Array:
    """A[t] = ([V(child) - V(root)] + [V(child) - V(parent)]) / sqrt(leaves below the child).

    The paper's form, for the edge of t between two forks. The authors' code adds up, over the
    leaves below, returns less the mean of the other leaves, and divides by the same root. Hou et
    al., 2025, arXiv 2506.11902.

    Args:
      node_value: [N, K, T] evidence.
    Returns: [N, K, T] float32; the same on tokens that rows share.
    """
    mask, unit = rollout.mask, units.fork(rollout)
    child = at_end(node_value, unit, episode_return(rollout)[0])
    root = jnp.sum(jnp.where(units.opens(unit) & (unit == 0), node_value, 0), axis=-1)
    leaves = trees.by_node(mask, trees.edges(rollout), mask)
    gain = 2 * child - root[..., None] - at_start(node_value, unit)
    return jnp.where(mask, gain / jnp.sqrt(jnp.maximum(at_start(leaves, unit), 1)), 0)
