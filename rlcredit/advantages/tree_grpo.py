"""Tree-GRPO: each row relative to its own tree, plus relative to all rows of the problem."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, trees
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def tree_grpo(rollout: Rollout, *, eps: float = 1e-6) -> Array:
    """A[t] = mean over the rows k through t of z_tree(R_k) + z_problem(R_k).

    z = (R - mean) / (std + eps), population std, over the rows of the same root, and of the
    problem. The source trains on every row in full, so that what rows share is learned from once a
    leaf, with their advantages in turn; here it is learned from once, with the mean of them. Ji et
    al., 2025, arXiv 2509.21240.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns; the same on tokens that rows
      share.
    """
    mask = rollout.mask
    total, present = episode_return(rollout)
    root = trees.owners(rollout.parent, rollout.branch_at, mask.shape[-1])[..., 0]
    together = (root[:, :, None] == root[:, None]) & present[:, None]
    of_tree = jnp.broadcast_to(total[:, None], together.shape)
    centered = jnp.diagonal(masked.center(of_tree, together, axis=2), axis1=1, axis2=2)
    in_tree = spread(centered / (masked.std(of_tree, together, axis=2) + eps), rollout)
    of_row = in_tree + grpo(rollout, eps=eps)
    edge = trees.edges(rollout)
    return trees.by_node(of_row, edge, mask) / jnp.maximum(trees.by_node(mask, edge, mask), 1)
