"""Which tokens of a problem were chosen after the same text."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.prefixes import prefixes
from rlcredit.types import Array, Price, Rollout


def node(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] int32: names the prefix before each chosen token, what was observed included; -1
    off the mask. Equal for rows of a problem that begin with the same tokens, sampled apart or not.

    Names lie in [0, K * (T + 1)). Nothing is sampled or scored.
    """
    del context, key
    return jnp.where(rollout.mask, prefixes(rollout)[..., :-1], -1), Price()
