"""Trees among random rollouts: rows that go on from a prefix of another row."""

from __future__ import annotations

import numpy as np

from rlcredit.types import Rollout

SHARED = ("tokens", "mask", "reward", "log_prob", "step", "turn")


def graft(rng: np.random.Generator, rollout: Rollout, chance: float = 0.4) -> Rollout:
    """The rollout with rows that, by `chance`, begin with a copy of an earlier row of their problem
    up to one of its chosen tokens, and choose another one there.
    """
    fields = {name: np.array(getattr(rollout, name)) for name in SHARED}
    parent, branch_at, length = (
        np.array(leaf) for leaf in (rollout.parent, rollout.branch_at, rollout.length)
    )
    for n, k in np.ndindex(*parent.shape):
        earlier = rng.integers(k) if k else 0
        places = np.flatnonzero(fields["mask"][n, earlier]) if k else []
        if not len(places) or rng.random() > chance:
            continue
        at = rng.choice(places)
        parent[n, k], branch_at[n, k] = earlier, at
        length[n, k] = max(length[n, k], at + 1)
        _copy(fields, n, k, earlier, at)
    return rollout._replace(parent=parent, branch_at=branch_at, length=length, **fields)


def _copy(fields: dict[str, np.ndarray], n: int, k: int, source: int, at: int) -> None:
    """Row k takes over the first `at` tokens of another, and chooses one there."""
    mask = fields["mask"][n]
    if not mask[k, at]:
        mask[k, at] = True
        for name, number in {"tokens": 1, "log_prob": -1.0, "step": 0, "turn": 0}.items():
            fields[name][n, k, at] = number
    for name in ("step", "turn"):  # numbers go on from those of the other row
        own = fields[name][n, k]
        later = mask[k] & (np.arange(mask.shape[1]) > at)
        shift = fields[name][n, source, at] - own[at]
        own[later] = np.maximum(own[later], own[at]) + shift
        own[at] += shift
    for array in fields.values():
        array[n, k, :at] = array[n, source, :at]


def in_other_order(parent: np.ndarray, order: np.ndarray) -> np.ndarray:
    """[N, K] parents when row i of a problem was row `order[i]` of it before."""
    place = np.argsort(order, axis=1)
    old = np.take_along_axis(parent, order, axis=1)
    return np.take_along_axis(place, old, axis=1).astype(parent.dtype)
