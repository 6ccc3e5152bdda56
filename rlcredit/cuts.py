"""Where trees branch: a cut is `(rollout, stage) -> [N, K] int32` positions, -1 for none.

Stages count from 1. `find` reads a name such as `every:8`.
"""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import units
from rlcredit.branching import Cut
from rlcredit.types import Array, InputError, Rollout

KINDS = "every:TOKENS, unit:NAME and surprising"


def every(tokens: int) -> Cut:
    """Before chosen token number `stage * tokens`, counted from 0: segments of one length."""

    def cut(rollout: Rollout, stage: int) -> Array:
        number = jnp.cumsum(rollout.mask, axis=-1, dtype=jnp.int32) - 1
        return _first(rollout.mask & (number == stage * tokens))

    return cut


def before_unit(name: str) -> Cut:
    """Before unit number `stage`, counted from 0, of a kind of `rlcredit.units` without entropy.

    Raises: InputError naming a unit that is unknown or asks for entropy.
    """
    function, by_entropy = units.find(name)
    if by_entropy:
        raise InputError(f"cut 'unit:{name}': entropy is not measured before trees are grown")

    def cut(rollout: Rollout, stage: int) -> Array:
        return _first(function(rollout) == stage)

    return cut


def surprising(rollout: Rollout, stage: int) -> Array:
    """At the least likely token of what is a row's own: where the policy knew least what to do.

    The first token of an episode is left out: to go another way there is to sample again. What is a
    row's own does not change when others branch off it, so every stage cuts it at the same token.
    In the manner of CARL, arXiv 2512.04949, which forks where the mean surprise of a state over the
    number of its visits is highest, and so moves on.
    """
    del stage
    mask = rollout.mask
    position = jnp.arange(mask.shape[-1])[None, None]
    own = mask & (position > rollout.branch_at[..., None]) & (jnp.cumsum(mask, axis=-1) > 1)
    surprise = jnp.where(own, -rollout.log_prob, -jnp.inf)
    return _first(own & (surprise == jnp.max(surprise, axis=-1, keepdims=True)))


def find(name: str) -> Cut:
    """The cut of a name: `every:8`, `unit:step`, `surprising`.

    Raises: InputError naming what is unknown or cannot be read.
    """
    kind, _, rest = name.partition(":")
    if kind == "every" and rest.isdecimal() and int(rest):
        return every(int(rest))
    if kind == "unit" and rest:
        return before_unit(rest)
    if name == "surprising":
        return surprising
    raise InputError(f"unknown cut {name!r}; there are {KINDS}")


def _first(here: Array) -> Array:
    """[N, K] the first True of each row, -1 where there is none."""
    return jnp.where(jnp.any(here, axis=-1), jnp.argmax(here, axis=-1), -1).astype(jnp.int32)
