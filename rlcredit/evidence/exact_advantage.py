"""The exact advantage of every chosen token under the live policy, by enumeration."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.exact_rows import exact_rows
from rlcredit.types import Array, Price, Rollout


def exact_advantage(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: Q[t] - value[t], 0 off the mask; see `rlcredit.exact`.

    Q is the mean over what the task might have answered, not the answer that was given.

    Raises: as `exact_value`.
    """
    del key
    truth, price = exact_rows(context, rollout)
    return jnp.where(rollout.mask, truth.advantage, 0), price
