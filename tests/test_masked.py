"""Reductions over the selected entries, against numpy, with nan and inf at all others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from rlcredit import masked

NUMPY = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "std": np.std,
}
GARBAGE = np.float32([np.nan, np.inf, -np.inf])
each_reduction = pytest.mark.parametrize("name", NUMPY)


def example(seed=0):
    """(x, mask) [3, 4, 5]; x[0] has no selected entry, x[1] one, x[2, 0] equal ones."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    mask = rng.random(x.shape) < 0.6
    mask[:2] = False
    mask[1, 2, 3] = True
    x[2, 0], mask[2, 0] = 0.1, True
    return np.where(mask, x, rng.choice(GARBAGE, x.shape)), mask


def over_slices(reduce, x, mask, axis):
    """`reduce` of the selected entries of every slice along `axis`; 0 where there are none."""
    axis = (axis,) if isinstance(axis, int) else axis
    axis = [a % x.ndim for a in axis]
    kept = [size for i, size in enumerate(x.shape) if i not in axis]
    flat, selected = (
        np.moveaxis(a, axis, range(-len(axis), 0)).reshape(*kept, -1) for a in (x, mask)
    )
    result = np.zeros(kept)
    for place in np.ndindex(*kept):
        if selected[place].any():
            result[place] = reduce(flat[place][selected[place]].astype(float))
    return result


@pytest.mark.parametrize("axis", [None, -1, 1, (1, 2)])
@each_reduction
def test_equals_numpy_on_the_selected_entries(name, axis):
    x, mask = example()
    got = getattr(masked, name)(x, mask, axis)
    if axis is None:
        np.testing.assert_allclose(got, NUMPY[name](x[mask].astype(float)), rtol=1e-5)
        return
    np.testing.assert_allclose(got, over_slices(NUMPY[name], x, mask, axis), rtol=1e-5, atol=1e-7)
    kept = getattr(masked, name)(x, mask, axis, True)
    np.testing.assert_array_equal(kept, np.expand_dims(got, axis))


@each_reduction
def test_gradient_is_finite_and_0_off_the_mask(name):
    x, mask = example()
    for axis in (None, -1):
        gradient = jax.grad(lambda x, a=axis: jnp.sum(getattr(masked, name)(x, mask, a)))(x)
        assert np.isfinite(gradient).all() and not np.any(gradient[~mask])
        assert np.any(gradient)


@each_reduction
def test_nothing_selected_gives_0_in_value_and_gradient(name):
    x, mask = np.full((2, 3), np.nan, np.float32), np.zeros((2, 3), bool)
    value, gradient = jax.value_and_grad(lambda x: getattr(masked, name)(x, mask))(x)
    assert value == 0 and not np.any(gradient)


def test_count_is_exact_float32():
    mask = np.ones(100_001, bool)
    assert masked.count(mask) == 100_001 and masked.count(mask).dtype == jnp.float32


def test_sums_of_bfloat16_are_taken_in_float32():
    ones = jnp.ones(3001, jnp.bfloat16)
    assert masked.sum(ones, np.ones(3001, bool)) == 3001


def test_sample_std_divides_by_one_less():
    x, mask = example()
    want = over_slices(lambda a: np.std(a, ddof=1) if a.size > 1 else 0, x, mask, -1)
    np.testing.assert_allclose(masked.std(x, mask, -1, sample=True), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sample", [False, True])
def test_std_of_equal_entries_is_exactly_0_with_gradient_0(sample):
    x, mask = np.full(9, 0.1, np.float32), np.arange(9) < 8
    value, gradient = jax.value_and_grad(lambda x: masked.std(x, mask, sample=sample))(x)
    assert value == 0 and not np.any(gradient)


def test_std_gradient_equals_that_of_numpy():
    x, mask = example()
    gradient = jax.grad(lambda x: masked.std(x, mask))(x)
    entries = x[mask].astype(float)
    want = (entries - entries.mean()) / (entries.size * entries.std())
    np.testing.assert_allclose(gradient[mask], want, atol=1e-6)


def test_center_subtracts_the_mean():
    x, mask = example()
    got = masked.center(x, mask, axis=-1)
    mean = over_slices(np.mean, x, mask, -1)[..., None]
    np.testing.assert_allclose(got, np.where(mask, x - mean, 0), atol=1e-6)


@pytest.mark.parametrize("entry", [0.1, 0.7, 1e8, -3e-30])
def test_center_of_equal_entries_is_exactly_0(entry):
    for size in range(1, 40):
        x = np.full(41, entry, np.float32)
        assert not np.any(masked.center(x, np.arange(41) < size))


def test_whiten_equals_its_reference():
    x, mask = example()
    got = masked.whiten(x, mask)
    np.testing.assert_allclose(got, reference.whiten(x, mask), atol=1e-5)
    assert masked.mean(got, mask) == pytest.approx(0, abs=1e-6)
    assert masked.std(got, mask) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("selected", [0, 1, 5])
def test_whiten_of_constant_one_or_no_entry_is_exactly_0(selected):
    x = np.full(6, 0.7, np.float32)
    assert not np.any(masked.whiten(x, np.arange(6) < selected))
