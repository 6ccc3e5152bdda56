"""TurnLOO: who is compared with whom, and the expected gradient."""

import numpy as np
import pytest
import test_credit_identities as identities
from stubs import quick_jit

from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import rollouts

turn_loo, rloo = (quick_jit(ADVANTAGES[name]) for name in ("turn_loo", "rloo"))


def group(turns, rewards):
    """One problem; each row of `turns` has -1 where no token was chosen."""
    turns, rewards = np.asarray(turns, np.int32)[None], np.asarray(rewards, np.float32)[None]
    filler = rollouts.random_rollout(np.random.default_rng(0), *turns.shape[:2], 3)
    return filler._replace(mask=turns >= 0, turn=turns, reward=rewards)


def test_a_turn_is_compared_with_those_who_are_alive_in_it():
    """Returns to go: 6 5 4, 2 1, and 3 of an episode with an observation inside its one turn."""
    turns = [[-1, 0, 0, 1, 2], [-1, 0, 1, 1, -1], [0, -1, 0, -1, -1]]
    rewards = [[0, 1, 0, 1, 4], [0, 1, 1, 0, 0], [1, 0, 2, 0, 0]]
    wanted = [[0, 3.5, 3.5, 4, 4], [0, -2.5, -4, -4, 0], [-1, 0, -1, 0, 0]]
    np.testing.assert_allclose(turn_loo(group(turns, rewards))[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("samples", [2, 5])
def test_with_one_turn_it_is_rloo(samples):
    rollout = rollouts.random_rollout(np.random.default_rng(2), 6, samples)
    rollout = rollout._replace(turn=np.where(rollout.mask, 0, -1).astype(np.int32))
    kept = rollout.mask.any(-1).sum(axis=1) > 1  # where one is left, rloo gives 0
    got, want = turn_loo(rollout), rloo(rollout)
    np.testing.assert_allclose(got[kept], want[kept], atol=1e-6)
    assert kept.sum() > 1 and np.any(want[kept])


def test_one_sample_keeps_its_raw_return():
    rollout = group([[-1, 0, 1, 1]], [[0, 0.5, 1, 2]])
    np.testing.assert_array_equal(turn_loo(rollout)[0], [[0, 3.5, 3, 3]])
    assert not np.any(rloo(rollout))


def test_equal_returns_to_go_of_two_or_more_give_exactly_zero():
    """Groups of 2 to 16 and rewards of .05 to .95, whose float32 mean is not always their value."""
    size, value = (a.ravel() for a in np.mgrid[2:17, 1:20])
    rollout = rollouts.random_rollout(np.random.default_rng(0), size.size, 16, 3)
    mask = (np.arange(16) < size[:, None])[..., None] & (np.arange(3) > 0)
    reward = np.where(mask & (np.arange(3) == 2), np.float32(value / 20)[:, None, None], 0)
    turn = np.where(mask, np.arange(3) - 1, -1)
    assert not np.any(turn_loo(rollout._replace(mask=mask, reward=reward, turn=turn)))


def expected(samples, alone_counts=True):
    """The exact expected gradient, over all batches; each choice is a turn, action 0 the end."""
    rollout, _, drawn, probability = identities.enumerated([0], samples, identities.ARBITRARY)
    rollout = rollout._replace(turn=np.where(rollout.mask, [0, 1], -1))
    rows = rollout._replace(**{name: getattr(rollout, name)[:, 0] for name in PER_TOKEN})
    advantage = np.asarray(turn_loo(rows))
    if not alone_counts:
        advantage = np.where(rows.mask.sum(axis=1, keepdims=True) > 1, advantage, 0)
    gradient = identities.gradient_of_surrogate(
        identities.LOGITS, advantage[:, None], drawn, probability
    )
    return identities.flat(gradient)


PER_TOKEN = ("mask", "reward", "turn")


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_the_expected_gradient_is_that_of_the_objective(samples):
    true = identities.flat(identities.objective_gradient(0))
    np.testing.assert_allclose(expected(samples), true, atol=1e-5)


def test_credit_0_for_those_who_are_alone_would_be_biased():
    true = identities.flat(identities.objective_gradient(0))
    assert np.abs(expected(2, alone_counts=False) - true).max() > 0.02
