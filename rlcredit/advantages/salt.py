"""SALT: a step that several samples took has the mean of their advantages, the rest their own."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.state_groups import (
    at_start,
    exists,
    groups,
    mean_in_group,
    sum_in_group,
)
from rlcredit.types import Array, Rollout


def salt(rollout: Rollout, *, fingerprint: Array, eps: float = 1e-6) -> Array:
    """A[t] = mean of `grpo` over the samples with a step from s to s', the state at the start of
    the step of t and that at the start of the next one.

    The steps of a group are edges of a graph of states. A step that all samples took has
    credit 0. A sample that took a step twice counts once in its mean. Where nothing is shared it is
    `grpo`. The last step of an episode keeps its own advantage: the state it led to is not
    measured, and what came of it is the return itself. Fingerprints that are equal for different
    states give false edges: steps that have nothing in common then share a mean.

    Li et al., 2025, arXiv 2510.20022. The source was not read in full; that an edge is a pair of
    states, however it was chosen, and the last step's, are our own operationalisation.

    Args:
      fingerprint: [N, K, T] evidence, the state before each chosen token.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    step = units.step(rollout)
    state, there = at_start(fingerprint, step), exists(step)
    follows = _after(there)
    edge = groups(follows, state, _after(state))
    sample = jnp.broadcast_to(jnp.arange(step.shape[1])[None, :, None], step.shape)
    passes = sum_in_group(jnp.ones(step.shape), groups(follows, edge, sample), follows)
    own = at_start(grpo(rollout, eps=eps), step)
    shared = mean_in_group(own, edge, follows, 1 / jnp.maximum(passes, 1))
    return units.of_unit(jnp.where(follows, shared, own), step)


def _after(x: Array) -> Array:
    """The entry of the step after; 0 or False behind the last."""
    return jnp.pad(x[..., 1:], ((0, 0), (0, 0), (0, 1)))
