"""Random evidence about a rollout: one maker a name, of the documented shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from rlcredit.types import Rollout

PLAYERS = 3

Evidence = Mapping[str, np.ndarray]
Makers = Mapping[str, Callable[[np.random.Generator, Rollout], np.ndarray]]


def evidence_for(
    rng: np.random.Generator, rollout: Rollout, names: Iterable[str], makers: Makers | None = None
) -> dict[str, np.ndarray]:
    """Random arrays of the documented shapes: integers as they are, all others float32.

    A name without a maker gets numbers below 0 at the chosen tokens, [N, K, T]. What is said of
    tokens is the same on all rows of a tree that share them.
    """
    makers = EVIDENCE if makers is None else makers
    made = {name: makers.get(name, _negative)(rng, rollout) for name in names}
    return {
        name: _shared(
            array if np.issubdtype(array.dtype, np.integer) else array.astype(np.float32), rollout
        )
        for name, array in made.items()
    }


def _shared(array: np.ndarray, rollout: Rollout) -> np.ndarray:
    """Rows take over what is said of the tokens that they share with their parents."""
    if array.ndim < 3 or array.shape[2] - rollout.mask.shape[2] not in (0, 1):
        return array
    array = array.copy()
    for n, k in np.argwhere(np.asarray(rollout.branch_at) > 0):
        ahead = rollout.branch_at[n, k] + array.shape[2] - rollout.mask.shape[2]
        array[n, k, :ahead] = array[n, rollout.parent[n, k], :ahead]
    return array


def _negative(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    return np.where(rollout.mask, -rng.exponential(1.0, rollout.mask.shape), 0)


def _number(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    return np.where(rollout.mask, rng.normal(size=rollout.mask.shape), 0)


def _share(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    return np.where(rollout.mask, rng.uniform(size=rollout.mask.shape), 0)


def _label(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    return np.where(rollout.mask, rng.integers(0, 2, rollout.mask.shape), 0).astype(float)


def _per_prefix(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    problems, samples, length = rollout.mask.shape
    return rng.normal(size=(problems, samples, length + 1))


def _unit(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    """Units that begin with a token of a third of the vocabulary, and with the first one."""
    del rng
    chosen = np.cumsum(rollout.mask, axis=-1)
    begins = rollout.mask & ((rollout.tokens % 3 == 0) | (chosen == 1))
    return np.where(rollout.mask, np.cumsum(begins, axis=-1) - 1, -1).astype(np.int32)


def _names(rollout: Rollout, ahead: int) -> np.ndarray:
    """Names of what was chosen before each token, or (ahead=1) with it: a token even or odd."""
    names = np.full(rollout.mask.shape, -1, np.int32)
    for n in range(rollout.mask.shape[0]):
        known = {}
        for k, t in np.argwhere(rollout.mask[n]):
            before = np.flatnonzero(rollout.mask[n, k, : t + ahead])
            text = tuple(rollout.tokens[n, k, before] % 2)
            names[n, k, t] = known.setdefault(text, len(known))
    return names


def _of_node(rng: np.random.Generator, rollout: Rollout) -> np.ndarray:
    """A number a node of the trees: what was sampled before a token, nothing being one node."""
    values = np.zeros(rollout.mask.shape)
    for n in range(rollout.mask.shape[0]):
        known = {}
        for k, t in np.argwhere(rollout.mask[n]):
            begun, row = rollout.mask[n, k, :t].any(), k
            while t - 1 < rollout.branch_at[n, row]:
                row = rollout.parent[n, row]
            values[n, k, t] = known.setdefault((row, t) if begun else (), rng.normal())
    return values


EVIDENCE: Makers = {
    "value": _per_prefix,
    "ref_log_prob": _negative,
    "entropy": lambda rng, rollout: -_negative(rng, rollout),
    "greedy_return": lambda rng, rollout: rng.integers(-8, 17, rollout.mask.shape[0]) / 8,
    "exact_value": _per_prefix,
    "fingerprint": lambda rng, r: (rng.integers(1, 4, r.mask.shape) * r.mask).astype(np.uint32),
    "unit": _unit,
    "node": lambda rng, rollout: _names(rollout, 0),
    "edge": lambda rng, rollout: _names(rollout, 1),
    "node_value": _of_node,
    "branch_value": _number,
    "prover_value": _number,
    "shepherd_label": _label,
    "omega_label": _label,
    "collision": _share,
    "step_score": lambda rng, rollout: 2 * _share(rng, rollout) - rollout.mask,
    "prefix_score": _number,
    "coalition_value": lambda rng, r: rng.normal(size=(*r.mask.shape[:2], 2**PLAYERS)),
}
