"""HGPO: each step relative to those from the same states, for histories of several lengths."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.state_groups import (
    at_start,
    exists,
    groups,
    relative_in_group,
    return_to_go,
    sum_in_group,
)
from rlcredit.types import Array, InputError, Rollout


def hgpo(
    rollout: Rollout,
    *,
    fingerprint: Array,
    history: int = 2,
    alpha: float = 1.0,
    discount: float = 1.0,
    eps: float = 1e-6,
) -> Array:
    """A[t] = sum over k of w_k * A_k[u] / sum of w_k, where u is the step of t, k in 1..history

    A_k[u] = (G[u] - mean G) / (std G + eps) over the steps of the group, of all its samples, with
             the same context k as u: the states at the start of the last k steps, u included
    w_k    = (k + 1)**alpha, 0 where no other step has the context
    G[u]   = sum over steps v >= u of discount**(v - u) * what step v earned

    A longer context has fewer steps to compare with, that agree in more. Step u is compared at
    most at k = u + 1, counted from 0. With history 1 this is the step part of `gigpo`. There is no
    credit of the episode as a whole: a step that is alone in its state has 0. That is the default
    of the authors' code; it can add the episode as a context 0. He et al., 2026, arXiv 2602.22817.

    Args:
      fingerprint: [N, K, T] evidence, the state before each chosen token.
    Returns: [N, K, T] float32; exactly 0 where steps from one state have equal returns to go.
    Raises: InputError for a `history` below 1.
    """
    if history < 1:
        raise InputError(f"hgpo has no {history=}; take 1 or more")
    step = units.step(rollout)
    to_go = return_to_go(rollout, step, discount)
    state, member = at_start(fingerprint, step), exists(step)
    context, sums, weights = groups(member, state), 0.0, 0.0
    for k in range(1, history + 1):
        if k > 1:
            member = member & _before(member)
            context = groups(member, _before(context), state)
        compared = sum_in_group(jnp.ones_like(to_go), context, member) > 1
        weight = jnp.where(compared, (k + 1.0) ** alpha, 0)
        sums += weight * relative_in_group(to_go, context, member, eps=eps)
        weights += weight
    return units.of_unit(sums / jnp.where(weights > 0, weights, 1), step)


def _before(x: Array) -> Array:
    """The entry of the step before; 0 or False for the first."""
    return jnp.pad(x[..., :-1], ((0, 0), (0, 0), (1, 0)))
