"""Optimal token baseline: the return to go less a mean that weighs samples by squared score."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.advantages import weighted
from rlcredit.recurrence import running_sum
from rlcredit.types import Array, Rollout


def optimal_token_baseline(rollout: Rollout, *, collision: Array) -> Array:
    """A_i[t] = G_i[u] - B[u], t the chosen token number u of sample i

    B[u]   = sum over samples alive at u of W_j[u] * G_j[u] / sum of W_j[u]
    W_j[u] = sum over chosen tokens v <= u of (1 - 2 * pi(a_v) + sum over actions of pi**2)
    G_j[u] = the undiscounted return from chosen token u on

    A summand of W is the squared gradient of log pi(a_v) by the logits, and W stands for the
    squared score of the sample up to u; with it B is the number b of least
    sum of W_j[u] * (G_j[u] - b)**2. Samples that were sure of all they chose do not count.

    A sample is alive at u if it has chosen more than u tokens; observations do not count, so what
    is compared are equal numbers of choices and not positions. Where only one is alive, A = 0: the
    end of the longest sample of a group gets no credit. B contains the sample itself, so the
    gradient is biased. Li et al., 2026, arXiv 2602.07078; the code adds an eps to the sum of W,
    here the mean is the plain one where that sum is 0.

    Args:
      collision: [N, K, T] evidence, sum over the vocabulary of squared probability.
    Returns: [N, K, T] float32; exactly 0 where all who are alive have equal returns to go.
    """
    number = units.token(rollout)
    probability = jnp.exp(jnp.where(rollout.mask, rollout.log_prob, 0))
    energy = units.per_unit(jnp.maximum(1 - 2 * probability + collision, 0), number)
    reward = units.per_unit(rollout.reward, number)
    to_go = running_sum(reward, reverse=True)
    alive = units.per_unit(rollout.mask.astype(jnp.int32), number) > 0
    relative = weighted.center(to_go, running_sum(energy), alive)
    return units.of_unit(relative, number)
