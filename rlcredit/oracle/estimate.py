"""Figures of a gradient estimator, with intervals, from the gradients of a number of draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_NOTHING = 1e-5  # relative length of a gradient that is only the rounding of float32
Z = 1.96  # half the width of a 95% interval, in standard errors


class Estimate(NamedTuple):
    """A figure and its 95% interval; equal ends where it is exact."""

    value: float
    low: float
    high: float


def exactly(value: float) -> Estimate:
    """Without an error of sampling."""
    return Estimate(float(value), float(value), float(value))


def mean_of(figures: np.ndarray) -> Estimate:
    """The mean of independent figures [J], those that are nan left out; nan if all are."""
    known = figures[np.isfinite(figures)]
    if not known.size:
        return exactly(np.nan)
    error = Z * np.std(known, ddof=1) / np.sqrt(known.size) if known.size > 1 else 0.0
    return Estimate(float(known.mean()), float(known.mean() - error), float(known.mean() + error))


def ratio_of(numerator: np.ndarray, denominator: np.ndarray) -> Estimate:
    """mean(numerator) / mean(denominator) of paired figures [J]; by the delta method."""
    if not denominator.mean():
        return exactly(np.nan)
    ratio = numerator.mean() / denominator.mean()
    deviation = (numerator - ratio * denominator) / denominator.mean()
    error = Z * np.std(deviation, ddof=1) / np.sqrt(deviation.size)
    return Estimate(float(ratio), float(ratio - error), float(ratio + error))


def direction(draws: np.ndarray, truth: np.ndarray) -> tuple[Estimate, Estimate]:
    """(relative bias |E g - truth| / |truth|, cosine of E g and truth).

    The squares are estimated from pairs of different draws, which takes their noise out, and the
    intervals by the jackknife. A single draw, or many equal ones, is the mean itself.

    Args: draws: [J, P] independent gradients g; truth: [P].
    """
    if not np.any(draws - draws[0]):
        return _exact_direction(draws[0], truth)
    scale = np.linalg.norm(truth)
    square, along = draws @ draws.T, draws @ truth
    apart = square - along[:, None] - along[None] + scale**2
    left_out = np.arange(len(draws))
    bias = [_pairs(apart), *(_pairs(apart, skip) for skip in left_out)]
    size = [_pairs(square), *(_pairs(square, skip) for skip in left_out)]
    project = [along.mean(), *((along.sum() - along) / (len(along) - 1))]
    cosine = np.array(project) / (scale * np.sqrt(np.maximum(size, 1e-30)))
    low, value, high = (np.sqrt(max(x, 0)) / scale for x in _jackknife(np.array(bias)))
    cosines = [float(np.clip(x, -1, 1)) for x in _jackknife(cosine)]
    return Estimate(value, low, high), Estimate(cosines[1], cosines[0], cosines[2])


def _exact_direction(mean: np.ndarray, truth: np.ndarray) -> tuple[Estimate, Estimate]:
    scale, size = np.linalg.norm(truth), np.linalg.norm(mean)
    cosine = float(mean @ truth / (scale * size)) if size > _NOTHING * scale else 0.0
    return exactly(np.linalg.norm(mean - truth) / scale), exactly(cosine)


def _pairs(products: np.ndarray, skip: int | None = None) -> float:
    """Mean of products[j, k] over j != k, neither of them `skip`."""
    kept = products if skip is None else np.delete(np.delete(products, skip, 0), skip, 1)
    count = len(kept)
    return float((kept.sum() - np.trace(kept)) / (count * (count - 1)))


def _jackknife(figures: np.ndarray) -> tuple[float, float, float]:
    """(low, value, high) from the figure of all draws and those with one left out."""
    value, without = figures[0], figures[1:]
    count = len(without)
    error = Z * np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2))
    return value - error, value, value + error
