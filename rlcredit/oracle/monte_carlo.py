"""Values by branching, for what cannot be enumerated; never without an interval and its count."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from scipy import stats

from rlcredit import masked
from rlcredit.branching import branch
from rlcredit.evidence import Context
from rlcredit.types import Array, InputError, Price, Rollout, owned


class MonteCarlo(NamedTuple):
    """Estimated values, 95% intervals, and what they rest on."""

    value: Array  # [N, K, P] float32
    low: Array  # [N, K, P] float32
    high: Array  # [N, K, P] float32
    continuations: int  # of each prefix


def monte_carlo_value(
    context: Context, rollout: Rollout, positions: Array, continuations: int, key: Array
) -> tuple[MonteCarlo, Price]:
    """E[return from t on | what came before t], from fresh continuations under the policy.

    value = mean of the returns G; low and high = value -+ t * std(G) / sqrt(continuations), with t
    the 97.5% point of Student's distribution. Where all continuations return the same the interval
    has no width, and says little if they are few.

    Args:
      positions: [N, K, P] int32 of chosen tokens; nan is returned where no token was chosen.
      continuations: of each prefix, 2 or more.
    Raises: InputError for fewer continuations; and as `branch`.
    """
    if continuations < 2:
        raise InputError(f"{continuations=}: an interval needs 2 or more")
    rows, price = branch(
        context.policy, context.params, context.task, rollout, positions, continuations, key,
        sampling=context.sampling, layout=context.layout,
    )  # fmt: skip
    shape = (*positions.shape, continuations)
    total = masked.sum(rows.reward, owned(rows), axis=-1).reshape(shape)
    exists = jnp.any(owned(rows), axis=-1).reshape(shape)
    value = jnp.where(exists[..., 0], masked.mean(total, exists, axis=-1), jnp.nan)
    error = masked.std(total, exists, axis=-1, sample=True) * continuations**-0.5
    width = float(stats.t.ppf(0.975, continuations - 1)) * error
    return MonteCarlo(value, value - width, value + width, continuations), price
