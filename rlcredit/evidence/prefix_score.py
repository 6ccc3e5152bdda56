"""What each prefix is worth, by the scorer that the settings name."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.evidence import scorers
from rlcredit.evidence.context import Context
from rlcredit.types import Array, InputError, Price, Rollout


def prefix_score(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32: score of the prefix before each token + noise; 0 off the mask.

    The score is that of `probing.scorer`, see `rlcredit.evidence.scorers`. The noise is normal with
    deviation `probing.noise`, one draw a prefix of each row, also where rows of a tree share it.

    Raises: InputError naming an unknown scorer, one that scores no prefixes, or what it misses.
    """
    name = context.probing.scorer
    scorer = scorers.find(name)
    if scorer.prefix is None:
        able = ", ".join(key for key, other in scorers.SCORERS.items() if other.prefix)
        raise InputError(f"scorer {name!r} scores steps alone; {able} score prefixes too")
    score_key, noise_key = jax.random.split(key)
    score, price = scorer.prefix(context, rollout, score_key)
    noise = context.probing.noise * jax.random.normal(noise_key, rollout.mask.shape)
    return jnp.where(rollout.mask, score + noise, 0), price
