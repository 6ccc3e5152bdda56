"""GACA: the less sure a step was, the more it is judged by its state instead of its episode."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.state_groups import step_advantage
from rlcredit.types import Array, Rollout


def gaca(
    rollout: Rollout, *, fingerprint: Array, discount: float = 1.0, eps: float = 1e-6
) -> Array:
    """A[t] = (1 - lambda[u]) * A_E + lambda[u] * A_S[u], where u is the step of t

    A_E       = `grpo`
    A_S[u]    = the step part of `gigpo`
    lambda[u] = 1 - exp(mean over the tokens of u of log_prob)

    1 - lambda is the geometric mean of the probabilities of the step's tokens. A step that was
    certain has A_E, an unlikely one nearly A_S, which is 0 where it is alone in its state: there
    the unlikely steps get little credit. Liang et al., 2026, arXiv 2609.12424. The source was not
    read in full; the form of lambda, which there rises with the negative log-likelihood, is our own
    operationalisation.

    Args:
      fingerprint: [N, K, T] evidence, the state before each chosen token.
    Returns: [N, K, T] float32.
    """
    step = units.step(rollout)
    tokens = units.per_unit(rollout.mask.astype(jnp.float32), step)
    log_prob = units.per_unit(rollout.log_prob, step) / jnp.maximum(tokens, 1)
    certain = units.of_unit(jnp.exp(log_prob), step)
    of_step = step_advantage(rollout, fingerprint, discount=discount, eps=eps)
    return certain * grpo(rollout, eps=eps) + (1 - certain) * of_step
