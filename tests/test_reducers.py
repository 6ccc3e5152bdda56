"""What every chosen token weighs in a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_losses

from rlcredit.losses import REDUCERS
from rlcredit.testing import rollouts

each_reducer = pytest.mark.parametrize("name", REDUCERS)


def example(seed=0):
    return rollouts.random_rollout(np.random.default_rng(seed)).mask


def two_answers(short=2, long=8):
    """[1, 2, T]: one short and one long answer to a problem."""
    return np.arange(long) < np.array([[[short], [long]]])


@pytest.mark.parametrize("seed", range(3))
@each_reducer
def test_equals_its_reference(name, seed):
    if name not in reference_losses.REDUCERS:
        pytest.fail(f"reducer {name!r} has no reference: add one to tests/reference_losses.py")
    mask = example(seed)
    got = REDUCERS[name](mask)
    np.testing.assert_allclose(got, reference_losses.REDUCERS[name](mask), rtol=1e-6)
    assert got.dtype == jnp.float32


@each_reducer
def test_is_exactly_0_off_the_mask_and_positive_on_it(name):
    mask = example()
    np.testing.assert_array_equal(np.asarray(REDUCERS[name](mask)) > 0, mask)


@pytest.mark.parametrize("name", ["token_mean", "sequence_mean", "prompt_mean"])
def test_weights_of_a_mean_sum_to_1(name):
    assert REDUCERS[name](example()).sum() == pytest.approx(1)


def test_constant_length_weights_sum_to_the_filled_share():
    mask = example()
    assert REDUCERS["constant_length"](mask).sum() == pytest.approx(mask[mask.any(-1)].mean())


@each_reducer
def test_no_token_has_weights_of_0(name):
    assert not np.any(REDUCERS[name](np.zeros((2, 3, 4), bool)))


@each_reducer
def test_empty_episodes_and_problems_are_not_counted(name):
    mask = example()
    padded = np.pad(mask, ((0, 2), (0, 1), (0, 0)))
    got = REDUCERS[name](padded)[:-2, :-1]
    np.testing.assert_allclose(got, REDUCERS[name](mask), rtol=1e-6)


def test_every_token_episode_or_problem_counts_alike():
    mask = example()
    token = np.asarray(REDUCERS["token_mean"](mask))
    assert len(set(token[mask])) == 1
    episode = np.asarray(REDUCERS["sequence_mean"](mask)).sum(-1)[mask.any(-1)]
    np.testing.assert_allclose(episode, 1 / episode.size, rtol=1e-5)
    problem = np.asarray(REDUCERS["prompt_mean"](mask)).sum((1, 2))
    np.testing.assert_allclose(problem, 1 / problem.size, rtol=1e-5)


@pytest.mark.parametrize("name", ["token_mean", "constant_length"])
def test_a_tokens_weight_does_not_depend_on_its_own_length(name):
    weight = REDUCERS[name](two_answers())
    assert weight[0, 0, 0] == weight[0, 1, 0]


def test_a_token_of_a_long_answer_weighs_less_in_sequence_mean():
    weight = REDUCERS["sequence_mean"](two_answers())
    assert weight[0, 0, 0] == 4 * weight[0, 1, 0]


def test_constant_length_does_not_depend_on_any_length():
    weights = [REDUCERS["constant_length"](two_answers(short)) for short in (1, 2, 7)]
    assert len({weight[0, 1, 0].item() for weight in weights}) == 1


@each_reducer
def test_jitted_equals_eager(name):
    mask = example()
    np.testing.assert_allclose(jax.jit(REDUCERS[name])(mask), REDUCERS[name](mask), rtol=1e-6)
