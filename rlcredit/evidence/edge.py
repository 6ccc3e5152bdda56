"""Which tokens of a problem were the same choice after the same text."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit.evidence.context import Context
from rlcredit.evidence.prefixes import prefixes
from rlcredit.types import Array, Price, Rollout


def edge(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] int32: names the prefix that ends with each chosen token; -1 off the mask.

    As `node`, with the token itself.
    """
    del context, key
    return jnp.where(rollout.mask, prefixes(rollout)[..., 1:], -1), Price()
