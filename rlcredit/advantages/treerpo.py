"""TreeRPO: each edge of a tree relative to its siblings, in their standard deviations."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import trees, units
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.unit_values import at_end, at_start
from rlcredit.types import Array, Rollout


def treerpo(rollout: Rollout, *, node_value: Array, eps: float = 1e-6) -> Array:
    """A[t] = (V(child) - mean V) / (std V + eps) over the children of the node that the edge of t
    starts from.

    V(node) is the mean of its children's, that of a leaf its return; population std. The source was
    not read in full: Yang et al., 2025, arXiv 2506.05183, is known here from a summary. It is also
    the scaled form of SPO-tree, arXiv 2505.23564.

    Args:
      node_value: [N, K, T] evidence.
    Returns: [N, K, T] float32; 0 for a node with one child; the same on tokens that rows share.
    """
    mask, unit = rollout.mask, units.fork(rollout)
    child = at_end(node_value, unit, episode_return(rollout)[0])
    node, once = trees.nodes(rollout), trees.first_of_edge(rollout)
    count = jnp.maximum(trees.by_node(once, node, mask), 1)
    relative = child - trees.by_node(once * child, node, mask) / count
    deviation = jnp.sqrt(trees.by_node(once * jnp.square(relative), node, mask) / count)
    return at_start(jnp.where(count > 1, relative / (deviation + eps), 0), unit)
