"""TEMPO: GRPO, and at each token the change of the mean return of those that agree so far."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.advantages.state_groups import mean_in_group
from rlcredit.types import Array, Rollout


def tempo(rollout: Rollout, *, node: Array, edge: Array, eps: float = 1e-6) -> Array:
    """A[t] = (R - mean_group R + mean_B R - mean_P R) / (std_group R + eps)

    P are the samples that chose a token after the prefix before t, B those that chose the same one
    there, the sample among them. The difference of means is a temporal difference; it is 0 where
    all of P go on alike. From where a sample is alone A is `grpo`. At the token where it leaves the
    others B is the sample alone: if all first tokens differ, each has twice its `grpo`.

    What a task answers by chance splits P without a choice; that is nobody's credit. Rows count
    once each: in trees that were sampled, a prefix from which more rows were grown weighs more in
    the group's mean and deviation, and in those of the prefixes that it began with. Tran et al.,
    2025, arXiv 2509.18314.

    Args:
      node, edge: [N, K, T] evidence, names of the prefix before and with each token.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    mask = rollout.mask
    total, present = episode_return(rollout)
    centered = spread(masked.center(total, present, axis=1), rollout)
    change = mean_in_group(centered, edge, mask) - mean_in_group(centered, node, mask)
    deviation = masked.std(total, present, axis=1, keepdims=True)[..., None]
    return jnp.where(mask, (centered + change) / (deviation + eps), 0)
