"""What credit is given to as one: tokens, steps, turns, or pieces that are cut by other rules.

A unit function is `(rollout, *, hyperparameter=default) -> [N, K, T] int32`: the number of each
chosen token's unit, 0, 1, 2, ... along its row, -1 off the mask. One that needs `entropy` asks for
it as a keyword-only argument without a default. `find` reads a name such as `segment:8`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlcredit import trees
from rlcredit.recurrence import running_max, running_sum
from rlcredit.types import Array, InputError, Rollout


def token(rollout: Rollout) -> Array:
    """Every chosen token by itself."""
    return numbered(rollout.mask, rollout.mask)


def step(rollout: Rollout) -> Array:
    """Reasoning steps, as the task ends them."""
    return numbered(_changes(rollout.step, rollout.mask), rollout.mask)


def turn(rollout: Rollout) -> Array:
    """Turns: what the policy chose between two observations."""
    return numbered(_changes(rollout.turn, rollout.mask), rollout.mask)


def episode(rollout: Rollout) -> Array:
    """The whole of what was chosen."""
    return jnp.where(rollout.mask, 0, -1)


def segment(rollout: Rollout, *, length: int = 8) -> Array:
    """Pieces of `length` chosen tokens; the last one may be shorter."""
    return jnp.where(rollout.mask, _chosen_before(rollout.mask) // length, -1)


def low_probability(rollout: Rollout, *, threshold: float = 0.9, every: int = 5) -> Array:
    """Pieces that begin with every `every`-th token whose probability was below `threshold`.

    The cut of SPO-chain, where a piece is made of equally many tokens at which the policy could
    well have gone on otherwise. Guo et al., 2025, arXiv 2505.23564.
    """
    mask = rollout.mask
    unsure = mask & (jnp.exp(jnp.where(mask, rollout.log_prob, 0)) < threshold)
    begins = unsure & (_chosen_before(unsure) % every == 0)
    return numbered(begins | (_chosen_before(mask) == 0), mask)


def high_entropy(rollout: Rollout, *, entropy: Array, share: float = 0.2) -> Array:
    """Pieces that begin with a token whose entropy is among the highest `share` of its episode."""
    mask = rollout.mask
    drawn = jnp.where(mask, entropy, -jnp.inf)
    rank = jnp.argsort(jnp.argsort(-drawn, axis=-1, stable=True), axis=-1)
    count = jnp.sum(mask, axis=-1, keepdims=True)
    return numbered((rank < jnp.ceil(share * count)) | (_chosen_before(mask) == 0), mask)


def fork(rollout: Rollout) -> Array:
    """Pieces of a tree: a new one begins where another row goes another way."""
    return numbered(
        (trees.children(rollout) > 1) | (_chosen_before(rollout.mask) == 0), rollout.mask
    )


UNITS: dict[str, Callable[..., Array]] = {
    "token": token,
    "step": step,
    "turn": turn,
    "episode": episode,
    "segment": segment,
    "low_probability": low_probability,
    "high_entropy": high_entropy,
    "fork": fork,
}


def find(name: str) -> tuple[Callable[..., Array], bool]:
    """(unit function, whether it asks for entropy) of a name such as `step`, `low_probability:0.8`.

    What follows a colon is its hyperparameters, in order.

    Raises: InputError naming what is unknown or cannot be read.
    """
    own, *values = name.split(":")
    if own not in UNITS:
        raise InputError(f"unknown unit {own!r}; known are {', '.join(UNITS)}")
    keywords = list(inspect.signature(UNITS[own]).parameters.values())[1:]
    settings = {p.name: p.default for p in keywords if p.default is not p.empty}
    if len(values) > len(settings):
        raise InputError(f"unit {name!r}: {own} has {len(settings)} settings, not {len(values)}")
    given = {}
    for (key, default), text in zip(settings.items(), values, strict=False):
        try:
            given[key] = type(default)(text)
        except ValueError as error:
            kind = type(default).__name__
            raise InputError(f"unit {name!r}: {key}={text!r} is not of type {kind}") from error
        if not given[key] > 0:
            raise InputError(f"unit {name!r}: {key}={text} must be above 0")
    return functools.partial(UNITS[own], **given), len(settings) < len(keywords)


def numbered(begins: Array, mask: Array) -> Array:
    """Unit numbers of rows [..., T] where `begins` marks the chosen tokens that open a unit."""
    return jnp.where(mask, running_sum(begins & mask) - 1, -1)


def chosen(unit: Array, mask: Array) -> Array:
    """Unit numbers as evidence, -1 off the mask whatever lies there."""
    return jnp.where(mask, unit, -1)


def capped(unit: Array, most: int) -> Array:
    """The same with at most `most` units a row; the last one takes all that follows."""
    return jnp.minimum(unit, most - 1)


def opens(unit: Array) -> Array:
    """[..., T] bool: the first token of each unit."""
    number = running_max(unit)
    before = jnp.concatenate([jnp.full_like(number[..., :1], -1), number[..., :-1]], axis=-1)
    return number > before


def closes(unit: Array) -> Array:
    """[..., T] bool: the last token of each unit."""
    at = jnp.where(unit >= 0, jnp.arange(unit.shape[-1]), -1)
    last = per_unit(at, unit, jax.ops.segment_max)
    return (unit >= 0) & (at == of_unit(last, unit))


def per_unit(x: Array, unit: Array, reduce: Callable = jax.ops.segment_sum) -> Array:
    """[..., T] with the sum of a unit's entries at its number; a row has at most T units.

    What lies off the mask is not read. Numbers without a unit hold 0 (what `reduce` gives for
    nothing, if another one is given).

    Args: reduce: as `jax.ops.segment_sum`.
    """
    length = x.shape[-1]

    def row(x: Array, unit: Array) -> Array:
        slot = jnp.where(unit < 0, length, unit)
        return reduce(x, slot, num_segments=length + 1, mode=trees.IN_BOUNDS)[:-1]

    for _ in range(x.ndim - 1):
        row = jax.vmap(row)
    return row(jnp.where(unit >= 0, x, 0), unit)


def of_unit(x: Array, unit: Array) -> Array:
    """[..., T] the entry of each token's unit, 0 off the mask; x: [..., T] by unit number."""
    taken = jnp.take_along_axis(x, jnp.maximum(unit, 0), axis=-1)
    return jnp.where(unit >= 0, taken, 0)


def _changes(number: Array, mask: Array) -> Array:
    """Where a chosen token has a higher number than all before it."""
    return opens(jnp.where(mask, number, -1)) & mask


def _chosen_before(mask: Array) -> Array:
    return running_sum(mask) - mask
