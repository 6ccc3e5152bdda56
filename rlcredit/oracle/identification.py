"""Does a credit find the tokens that matter? Credit against the exact advantage, on the host.

Every figure is of one batch, so that what is reported has a mean and an interval over batches. A
token *hardly matters* where its advantage is below 1% of the return's standard deviation: under a
network even filler matters a little, since the network reads it. A *decision* is a choice with at
least 1% of the return's variance, E[advantage^2 | prefix] >= 0.01 * Var(R), which needs nobody to
say what a decision is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from rlcredit.oracle.batch import Batch
from rlcredit.oracle.ground import Ground, return_variance
from rlcredit.types import Array

NEGLIGIBLE = 0.01


class Judged(NamedTuple):
    """Batches [J, N, K, T] and what is true of them."""

    credit: np.ndarray  # float
    advantage: np.ndarray  # float, exact
    mask: np.ndarray  # bool
    matters: np.ndarray  # bool
    decision: np.ndarray  # bool


def judged(ground: Ground, batches: Batch, credit: Array) -> Judged:
    """What a rule's credit [J, N, K, T] of J batches is compared with; shared tokens count once."""
    variance = np.asarray(return_variance(ground.truth))[:, None, None]
    mask = np.asarray(ground.tree.rollout.mask)
    advantage = np.asarray(ground.truth.advantage)
    matters = mask & (np.abs(advantage) > NEGLIGIBLE * np.sqrt(variance))
    decision = mask & (_spread(ground) >= NEGLIGIBLE * variance) & (variance > 0)
    problem = np.arange(mask.shape[0])[None, :, None]
    at = (problem, np.asarray(batches.row))
    position = np.arange(mask.shape[2])
    own = position >= np.asarray(batches.branch_at)[..., None]
    own &= np.asarray(batches.present)[..., None]
    masks = (leaf[at] & own for leaf in (mask, matters, decision))
    return Judged(np.asarray(credit), advantage[at], *masks)


def identification(batches: Judged) -> dict[str, np.ndarray]:
    """Name -> [J] figures, nan where a batch has nothing to judge by.

    - rmse: root of the mean squared distance to the exact advantage, over chosen tokens;
    - spearman: rank correlation with it, 0 for a constant credit;
    - sign_accuracy: share of the tokens that matter whose credit has the right sign;
    - leakage: share of all absolute credit that went to tokens that hardly matter;
    - recall: share of an episode's d decisions among its d tokens of largest absolute credit,
      tokens of equal credit taken in part; the mean over episodes with decisions and other tokens.
    """
    each = [
        _of_batch(Judged(*(leaf[number] for leaf in batches)))
        for number in range(batches.credit.shape[0])
    ]
    return {name: np.array([figures[name] for figures in each]) for name in each[0]}


def _of_batch(batch: Judged) -> dict[str, float]:
    credit, truth = batch.credit[batch.mask], batch.advantage[batch.mask]
    matters = batch.matters[batch.mask]
    absolute = np.abs(credit).sum()
    return {
        "rmse": float(np.sqrt(np.mean((credit - truth) ** 2))),
        "spearman": _rank_correlation(credit, truth),
        "sign_accuracy": _mean(np.sign(credit[matters]) == np.sign(truth[matters])),
        "leakage": float(np.abs(credit[~matters]).sum() / absolute) if absolute else np.nan,
        "recall": _recall(batch),
    }


def _rank_correlation(credit: np.ndarray, truth: np.ndarray) -> float:
    if np.ptp(credit) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(stats.spearmanr(credit, truth).statistic)


def _recall(batch: Judged) -> float:
    wanted = batch.decision.sum(axis=-1)
    size = np.where(batch.mask, np.abs(batch.credit), -1)
    last = np.take_along_axis(-np.sort(-size, axis=-1), np.maximum(wanted, 1)[..., None] - 1, -1)
    above, equal = size > last, size == last
    room = wanted - above.sum(axis=-1)
    share = above + equal * (room / equal.sum(axis=-1))[..., None]
    found = np.sum(share * batch.decision, axis=-1)
    undecided = (wanted > 0) & (wanted < batch.mask.sum(axis=-1))
    return _mean((found / np.maximum(wanted, 1))[undecided])


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan


def _spread(ground: Ground) -> np.ndarray:
    """[N, M, T] E[advantage^2 | prefix] of the choice at each token."""
    visit = np.asarray(ground.visit)
    squares = visit * np.asarray(ground.advantage) ** 2
    node, edge = np.asarray(ground.node), np.asarray(ground.edge)
    spread = np.zeros(edge.shape)
    for n in range(edge.shape[0]):
        _, place = np.unique(node[n], return_inverse=True)
        reached = np.bincount(place, visit[n])
        share = np.bincount(place, squares[n]) / np.where(reached > 0, reached, 1)
        spread[n] = np.append(share[place], 0)[edge[n]]
    return spread


def shift_invariant_rmse(ground: Ground, weight: Array) -> float:
    """Distance of a mean credit to the exact advantage after the best shift by a state's number.

    credit and credit + b(prefix) have the same expected gradient, so the mean over the policy's
    choices is taken off each prefix first. Weighted by how likely each edge is.

    Args: weight: [N, E] expected credit of each edge, times how likely it is.
    """
    total, mass = 0.0, 0.0
    visit, advantage = np.asarray(ground.visit, float), np.asarray(ground.advantage, float)
    for n, weighted in enumerate(np.asarray(weight, float)):
        _, place = np.unique(np.asarray(ground.node[n]), return_inverse=True)
        reached = np.bincount(place, visit[n])
        shift = np.bincount(place, weighted) / np.where(reached > 0, reached, 1)
        mean = weighted / np.where(visit[n] > 0, visit[n], 1) - shift[place]
        total += np.sum(visit[n] * (mean - advantage[n]) ** 2)
        mass += np.sum(visit[n])
    return float(np.sqrt(total / mass))
