"""Figures of gradient estimators: right in the mean, and their intervals hold what they promise."""

import numpy as np
import pytest

from rlcredit.oracle.estimate import Estimate, direction, exactly, mean_of, ratio_of

REPETITIONS = 200
TRUTH = np.array([1.0, -2.0, 0.5, 0.0])
OFFSET = np.array([0.3, 0.2, 0.0, -0.4])
BIAS = np.linalg.norm(OFFSET) / np.linalg.norm(TRUTH)
MEAN = TRUTH + OFFSET
COSINE = MEAN @ TRUTH / np.linalg.norm(MEAN) / np.linalg.norm(TRUTH)


def coverage(estimates, truth):
    return np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])


def repeated(figure):
    rng = np.random.default_rng(5)
    return [figure(rng) for _ in range(REPETITIONS)]


def test_the_mean_is_in_its_interval_in_95_of_100_cases():
    estimates = repeated(lambda rng: mean_of(rng.exponential(2.0, size=80)))
    assert 0.9 <= coverage(estimates, 2.0) <= 0.99
    assert abs(np.mean([estimate.value for estimate in estimates]) - 2) < 0.06


def test_a_mean_leaves_nan_out():
    known = np.array([1.0, 2.0, 6.0])
    assert mean_of(np.array([1.0, np.nan, 2.0, 6.0])) == mean_of(known)
    half = 1.96 * known.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(mean_of(known), (3, 3 - half, 3 + half))
    assert mean_of(np.array([4.0, np.nan])) == exactly(4)
    assert np.isnan(mean_of(np.array([np.nan]))).all()


def test_the_ratio_is_in_its_interval_in_95_of_100_cases():
    def figure(rng):
        below = rng.gamma(4.0, size=80)
        return ratio_of(3 * below + rng.normal(size=80), below)

    estimates = repeated(figure)
    assert 0.9 <= coverage(estimates, 3.0) <= 0.99
    assert abs(np.mean([estimate.value for estimate in estimates]) - 3) < 0.03
    assert np.isnan(ratio_of(np.ones(3), np.zeros(3))).all()
    np.testing.assert_allclose(ratio_of(np.array([2.0, 4]), np.array([1.0, 2])), (2, 2, 2))


def draws(rng, mean, count=64):
    return mean + rng.normal(size=(count, TRUTH.size))


def test_bias_and_cosine_are_in_their_intervals_in_95_of_100_cases():
    bias, cosine = zip(*repeated(lambda rng: direction(draws(rng, MEAN), TRUTH)), strict=True)
    assert coverage(bias, BIAS) >= 0.9
    assert coverage(cosine, COSINE) >= 0.9
    assert np.mean([estimate.high - estimate.low for estimate in bias]) < 2 * BIAS
    assert abs(np.mean([estimate.value for estimate in cosine]) - COSINE) < 0.02


def test_the_noise_of_the_draws_is_not_taken_for_bias():
    """The square is unbiased; that of the mean of 16 draws would be too large by |noise|^2 / 16."""
    square = np.mean(repeated(lambda rng: direction(draws(rng, MEAN, 16), TRUTH)[0].value ** 2))
    noise = TRUTH.size / 16 / (TRUTH @ TRUTH)
    assert abs(square - BIAS**2) < noise / 2
    none = [e.low for e, _ in repeated(lambda rng: direction(draws(rng, TRUTH, 16), TRUTH))]
    assert np.mean(np.array(none) == 0) > 0.9


def test_pairs_are_those_of_different_draws():
    gradients = draws(np.random.default_rng(1), MEAN, 5)
    scale = np.linalg.norm(TRUTH)
    apart = [
        (gradients[j] - TRUTH) @ (gradients[k] - TRUTH)
        for j in range(5)
        for k in range(5)
        if j != k
    ]
    size = [gradients[j] @ gradients[k] for j in range(5) for k in range(5) if j != k]
    bias, cosine = direction(gradients, TRUTH)
    np.testing.assert_allclose(bias.value, np.sqrt(max(np.mean(apart), 0)) / scale)
    along = gradients.mean(axis=0) @ TRUTH / scale
    np.testing.assert_allclose(cosine.value, np.clip(along / np.sqrt(np.mean(size)), -1, 1))


@pytest.mark.parametrize("count", [1, 3])
def test_equal_draws_are_exact(count):
    bias, cosine = direction(np.repeat(MEAN[None], count, axis=0), TRUTH)
    np.testing.assert_allclose(bias, [BIAS] * 3)
    np.testing.assert_allclose(cosine, [COSINE] * 3)
    assert direction(np.zeros((2, 4)), TRUTH) == (Estimate(1, 1, 1), Estimate(0, 0, 0))
