"""Evidence that sampling gives anew with every batch, drawn from the exact trees.

In training a Monte Carlo value is drawn for each episode. A report that measured it once for every
row of the trees would take its noise for a bias; here it is drawn with every batch, from the
continuations that the exact probabilities give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit import units
from rlcredit.evidence import Probing
from rlcredit.evidence.continuations import SUCCESS
from rlcredit.exact.tree import Tree
from rlcredit.oracle.batch import Batch, continuation
from rlcredit.types import Array, Rollout


class Source(NamedTuple):
    """What continuations are drawn from."""

    tree: Tree
    probability: Array  # [N, M] of the rows under the policy
    ref_probability: Array  # [N, M] under the reference
    total: Array  # [N, M] returns


def branch_value(source: Source, rollout: Rollout, unit: Array, batch: Batch, probing: Probing):
    """As the evidence of that name."""
    return _mean(source, source.probability, unit, batch, probing)


def prover_value(source: Source, rollout: Rollout, unit: Array, batch: Batch, probing: Probing):
    """As the evidence of that name."""
    return _mean(source, source.ref_probability, unit, batch, probing)


def shepherd_label(source: Source, rollout: Rollout, unit: Array, batch: Batch, probing: Probing):
    """As the evidence of that name."""
    return units.of_unit(_succeeds(source, unit, batch, probing), unit)


def omega_label(source: Source, rollout: Rollout, unit: Array, batch: Batch, probing: Probing):
    """As the evidence of that name, but that it looks at every unit and not at a few of them."""
    succeeds = jnp.cumprod(_succeeds(source, unit, batch, probing), axis=-1)
    solved = _total(source, batch) >= SUCCESS  # not searched
    return units.of_unit(jnp.where(solved[..., None], 1.0, succeeds), unit)


REDRAWN: dict[str, Callable[..., Array]] = {
    "branch_value": branch_value,
    "prover_value": prover_value,
    "shepherd_label": shepherd_label,
    "omega_label": omega_label,
}


def _mean(source: Source, probability: Array, unit: Array, batch: Batch, probing: Probing) -> Array:
    """[N, K, T] mean return of continuations from where the token's unit starts."""
    mean = jnp.mean(_returns(source, probability, unit, batch, probing), axis=-1)
    return units.of_unit(units.per_unit(jnp.where(units.opens(unit), mean, 0), unit), unit)


def _succeeds(source: Source, unit: Array, batch: Batch, probing: Probing) -> Array:
    """[N, K, T] by unit: 1.0 where a continuation after it succeeds; the row, after the last."""
    returns = _returns(source, source.probability, unit, batch, probing)
    best = jnp.max(returns, axis=-1)
    at_start = units.per_unit(jnp.where(units.opens(unit), best, 0), unit)
    following = jnp.concatenate([at_start[..., 1:], jnp.zeros_like(at_start[..., :1])], axis=-1)
    total = _total(source, batch)
    last = jnp.arange(unit.shape[-1])[None, None] >= jnp.max(unit, axis=-1, keepdims=True)
    return (jnp.where(last, total[..., None], following) >= SUCCESS).astype(jnp.float32)


def _total(source: Source, batch: Batch) -> Array:
    """[N, K] the rows' returns."""
    return jax.vmap(lambda of_row, row: of_row[row])(source.total, batch.row)


def _returns(source, probability, unit: Array, batch: Batch, probing: Probing) -> Array:
    """[N, K, T, continuations] returns of episodes that go on from before each token."""
    shape = (*unit.shape, probing.continuations)
    row = jnp.broadcast_to(batch.row[..., None, None], shape)
    at = jnp.broadcast_to(jnp.arange(unit.shape[-1])[None, None, :, None], shape)
    drawn = continuation(source.tree, probability, row[None], at[None], batch.key)[0]
    return jax.vmap(lambda total, row: total[row])(source.total, drawn)
