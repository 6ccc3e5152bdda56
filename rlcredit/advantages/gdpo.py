"""GDPO: the return and each channel of feedback in their own standard deviations, summed."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def gdpo(rollout: Rollout, *, eps: float = 1e-6) -> Array:
    """A[t] = sum over channels c of (R_c - mean_group R_c) / (std_group R_c + eps)

    The channels are the return and each channel of `rollout.feedback`, summed over the chosen
    tokens of the episode. Every channel in which a group differs has the same weight, however small
    its numbers are. Without feedback this is `grpo`. So it does not climb the return alone, and
    feedback that is bad to have must be recorded below 0.

    The method whitens this over the whole batch: `masked.whiten`, in the experiment `--whiten`.
    Standard deviations are the population's. Liu et al., 2026, arXiv 2601.05242.

    Returns: [N, K, T] float32, not whitened; exactly 0 for a group that is equal in every channel.
    """
    total, present = episode_return(rollout)
    channel = total[..., None]
    if rollout.feedback is not None:
        extra = masked.sum(rollout.feedback, rollout.mask[..., None], axis=2)
        channel = jnp.concatenate([channel, extra], axis=-1)
    present = present[..., None]
    deviation = masked.std(channel, present, axis=1, keepdims=True)
    score = masked.center(channel, present, axis=1) / (deviation + eps)
    return spread(jnp.sum(score, axis=-1), rollout)
