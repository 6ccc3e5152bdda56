"""How right each unit was, by the scorer that the settings name."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit import units
from rlcredit.evidence import scorers
from rlcredit.evidence.context import Context
from rlcredit.evidence.unit import unit
from rlcredit.types import Array, Price, Rollout


def step_score(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T] float32 in [-1, 1]: clip(score of the token's unit + noise, -1, 1); 0 off the mask.

    The score is that of `probing.scorer`, see `rlcredit.evidence.scorers`. The noise is normal with
    deviation `probing.noise`, one draw a unit of each row, also where rows of a tree share it.

    Raises: InputError naming an unknown scorer, or what the scorer misses.
    """
    scorer = scorers.find(context.probing.scorer)
    score_key, noise_key = jax.random.split(key)
    numbers, unit_price = unit(context, rollout, key)
    score, price = scorer.step(context, rollout, numbers, score_key)
    noise = context.probing.noise * jax.random.normal(noise_key, numbers.shape)
    noisy = jnp.clip(score + units.of_unit(noise, numbers), -1, 1)
    return jnp.where(rollout.mask, noisy, 0), unit_price + price
