"""Random rollouts with all that a row may hold, and changes to them and to evidence about them.

Everything here is numpy, on the host: what a rule makes of it is the question, not how it was made.
"""

from __future__ import annotations

import jax
import numpy as np

from rlcredit.testing.grafts import in_other_order
from rlcredit.testing.measured import Evidence
from rlcredit.types import Rollout

VOCABULARY = 7
TOKEN_FIELDS = {"tokens": 0, "mask": False, "reward": 0, "log_prob": 0, "step": -1, "turn": -1}


def random_rollout(
    rng: np.random.Generator, problems: int = 4, samples: int = 3, length: int = 12
) -> Rollout:
    """A valid rollout: prompts, observations between and after chosen tokens, rewards at several.

    Rows are roots, differ in length, end either way or both; the first has no chosen token. Rewards
    are multiples of 1/8, so that float32 sums of them are exact in any order.
    """
    shape = (problems, samples, length)
    position = np.arange(length)
    start = rng.integers(1, length // 3 + 1, shape[:2])
    used = rng.integers(start + 1, length + 1)
    empty = rng.random(shape[:2]) < 0.1
    empty.flat[0] = True
    used[empty] = start[empty]
    inside = (position >= start[..., None]) & (position < used[..., None])
    mask = inside & (rng.random(shape) < 0.7)
    terminated = rng.random(shape[:2]) < 0.5
    number = np.cumsum(rng.random(shape) < 0.3, axis=-1)
    return Rollout(
        tokens=np.where(position < used[..., None], rng.integers(1, VOCABULARY, shape), 0).astype(
            np.int32
        ),
        mask=mask,
        reward=np.where(mask, rng.integers(-8, 17, shape) / 8, 0).astype(np.float32),
        log_prob=np.where(mask, -rng.exponential(1.0, shape), 0).astype(np.float32),
        step=np.where(mask, number, -1).astype(np.int32),
        turn=np.where(mask, number // 2, -1).astype(np.int32),
        length=used.astype(np.int32),
        terminated=terminated,
        truncated=~terminated | (rng.random(shape[:2]) < 0.2),
        legal=None,
        feedback=None,
        parent=np.broadcast_to(np.arange(samples, dtype=np.int32), shape[:2]),
        branch_at=np.zeros(shape[:2], np.int32),
        problem=np.arange(problems, dtype=np.int32),
        key=jax.random.split(jax.random.key(int(rng.integers(2**31))), shape[:2]),
    )


def with_garbage(
    rollout: Rollout, evidence: Evidence, garbage: float
) -> tuple[Rollout, dict[str, np.ndarray]]:
    """Both with `garbage` wherever the conventions say that nothing is read.

    Integers, which hold neither nan nor inf, become their complement there.
    """
    unread = ~rollout.mask
    prefix = np.arange(rollout.mask.shape[2] + 1)
    bootstrap = (prefix == rollout.length[..., None]) & ~rollout.terminated[..., None]
    unread_value = np.concatenate([unread, np.ones_like(unread[..., :1])], axis=-1) & ~bootstrap

    def spoil(array: np.ndarray) -> np.ndarray:
        places = {unread.shape: unread, unread_value.shape: unread_value}.get(array.shape)
        if places is None:
            return array
        whole = np.issubdtype(array.dtype, np.integer)
        return np.where(places, ~array if whole else np.float32(garbage), array)

    spoiled = rollout._replace(reward=spoil(rollout.reward), log_prob=spoil(rollout.log_prob))
    return spoiled, {name: spoil(array) for name, array in evidence.items()}


def move(
    rollout: Rollout, evidence: Evidence, source: np.ndarray
) -> tuple[Rollout, dict[str, np.ndarray]]:
    """Tokens rearranged along the rows.

    Args:
      source: [N, K, T'] the old position of each token, -1 for an observation put in between, and
        T (the old row length) for new padding; increasing but for the -1.
    Returns: (rollout, evidence) of rows of T' tokens; new entries hold `nan` or are empty.
    """
    old_length = rollout.mask.shape[2]
    here = (source >= 0) & (source < old_length)
    index = np.clip(source, 0, old_length - 1)
    observed = source == -1

    def row(array: np.ndarray, empty: float) -> np.ndarray:
        return np.where(here, np.take_along_axis(array, index, axis=-1), empty).astype(array.dtype)

    def prefix_row(array: np.ndarray) -> np.ndarray:
        moved = np.pad(row(array[..., :-1], np.nan), ((0, 0), (0, 0), (0, 1)))
        final = np.take_along_axis(array, rollout.length[..., None], axis=-1)
        np.put_along_axis(moved, length[..., None], final, axis=-1)
        return moved

    length = rollout.length + observed.sum(axis=-1, dtype=np.int32)
    fields = {name: row(getattr(rollout, name), e) for name, e in TOKEN_FIELDS.items()}
    fields["tokens"] = np.where(observed, 1, fields["tokens"]).astype(np.int32)
    moved = {}
    for name, array in evidence.items():
        by_token = {old_length: lambda a: row(a, 0), old_length + 1: prefix_row}
        change = by_token.get(array.shape[2]) if array.ndim == 3 else None
        moved[name] = change(array) if change else array
    reached = source == rollout.branch_at[..., None]
    branch_at = np.where(rollout.branch_at > 0, reached.argmax(axis=-1), 0)
    return rollout._replace(**fields, length=length, branch_at=branch_at.astype(np.int32)), moved


def padding(rollout: Rollout, extra: int) -> np.ndarray:
    """`source` of `move` for rows that are longer by `extra` padding tokens."""
    shape = rollout.mask.shape
    return np.broadcast_to(
        np.minimum(np.arange(shape[2] + extra), shape[2]), (*shape[:2], shape[2] + extra)
    )


def observations(rng: np.random.Generator, rollout: Rollout, extra: int) -> np.ndarray:
    """`source` of `move` for rows with `extra` observation tokens inside, anywhere; what a row
    shares with its parent holds those of the parent.
    """
    problems, samples, old_length = rollout.mask.shape
    before = np.empty((problems, samples, extra), int)  # old tokens; the length: at the end
    source = np.empty((problems, samples, old_length + extra), int)
    for n, k in np.ndindex(problems, samples):
        at = rollout.branch_at[n, k]
        shared = before[n, rollout.parent[n, k]] if at else np.empty(0, int)
        shared = shared[shared <= at]
        own = rng.integers(at + 1, rollout.length[n, k] + 1, extra - len(shared))
        before[n, k] = np.concatenate([shared, own])
        source[n, k] = np.insert(np.arange(old_length), before[n, k], -1)
    return source


def permute_problems(
    rollout: Rollout, evidence: Evidence, order: np.ndarray
) -> tuple[Rollout, dict[str, np.ndarray]]:
    """Both with the problems in another order, [N]."""

    def take(leaf: np.ndarray) -> np.ndarray:
        return leaf[order]

    return jax.tree.map(take, rollout), {name: take(array) for name, array in evidence.items()}


def permute_samples(
    rollout: Rollout, evidence: Evidence, order: np.ndarray
) -> tuple[Rollout, dict[str, np.ndarray]]:
    """Both with the samples of each problem in another order, [N, K]."""
    problems = np.arange(order.shape[0])[:, None]

    def take(leaf: np.ndarray) -> np.ndarray:
        return leaf[problems, order] if leaf.ndim >= 2 else leaf

    parent = in_other_order(rollout.parent, order)
    moved = jax.tree.map(take, rollout)._replace(parent=parent)
    return moved, {name: take(array) for name, array in evidence.items()}
