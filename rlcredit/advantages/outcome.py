"""What rules that compare whole episodes share: the return of each, and who takes part."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array, Rollout


def episode_return(rollout: Rollout) -> tuple[Array, Array]:
    """(total, present), both [N, K]: the undiscounted return, and whether any token was chosen.

    An episode without a chosen token (padding, or dropped as unscorable) is in no group statistic.
    """
    return masked.sum(rollout.reward, rollout.mask, axis=-1), jnp.any(rollout.mask, axis=-1)


def spread(per_episode: Array, rollout: Rollout) -> Array:
    """[N, K] -> [N, K, T]: the episode's number at each chosen token, 0 elsewhere."""
    return jnp.where(rollout.mask, per_episode[..., None], 0)
