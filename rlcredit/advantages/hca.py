"""HCA: the return to go, by how much likelier a choice is once the return is known."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.recurrence import discounted_return, last_chosen
from rlcredit.types import Array, Rollout


def hca(rollout: Rollout, *, exact_hindsight: Array) -> Array:
    """A[t] = (1 - pi[t] / h[t]) * Z[t], where Z is the return from t on, pi = exp(log_prob) and h
    the chance of the choice given the prefix and Z, exp(exact_hindsight).

    With the exact h its mean over what comes after the choice is Q - V if the choice leaves every
    return but 0 possible. A return that it rules out is missing from its V, which is a bias: where
    success is lost for good this gives 0, not -V. The source was not read in full: Harutyunyan et
    al., 2019, arXiv 1912.02503, learns h.

    Args:
      exact_hindsight: [N, K, T] evidence, by enumeration.
    Returns: [N, K, T] float32.
    """
    mask = rollout.mask
    to_go = discounted_return(rollout.reward, mask, last_chosen(mask), discount=1.0)
    ratio = jnp.exp(jnp.where(mask, rollout.log_prob - exact_hindsight, 0))
    return jnp.where(mask, (1 - ratio) * to_go, 0)
