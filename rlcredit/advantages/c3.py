"""C3: each edge of a tree against what its siblings came to, in the same context."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import trees, units
from rlcredit.advantages.outcome import episode_return
from rlcredit.advantages.unit_values import at_start
from rlcredit.types import Array, Rollout


def c3(rollout: Rollout) -> Array:
    """A[t] = S(child) - mean of S over the siblings of the child, for the edge of t.

    S(node) is the mean return of the rows through it; siblings go on from the same prefix. An edge
    without a sibling has 0. Rows sampled apart are siblings from their first token on, and the
    credit is that of `rloo`. The source has agents that speak in turn where this has edges between
    forks. arXiv 2603.06859, `loo` on rewards alone.

    Returns: [N, K, T] float32; the same on tokens that rows share.
    """
    mask, unit = rollout.mask, units.fork(rollout)
    total, _ = episode_return(rollout)
    edge, once = trees.edges(rollout), trees.first_of_edge(rollout)
    through = jnp.maximum(trees.by_node(mask, edge, mask), 1)
    signal = trees.by_node(jnp.where(mask, total[..., None], 0), edge, mask) / through
    node = trees.nodes(rollout)
    count = trees.by_node(once, node, mask)
    mean = trees.by_node(once * signal, node, mask) / jnp.maximum(count, 1)
    left_out = count / jnp.maximum(count - 1, 1) * (signal - mean)
    return at_start(jnp.where(count > 1, left_out, 0), unit)
