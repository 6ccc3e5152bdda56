"""Problems whose episodes all earned the same are left out of learning, and of nothing else."""

import numpy as np

from rlcredit.rollout import drop_equal
from rlcredit.testing.rollouts import random_rollout


def test_problems_of_equal_returns_lose_their_mask():
    rollout = random_rollout(np.random.default_rng(0), 3, 4)
    reward = np.array(rollout.reward)
    reward[1] = 0
    kept = drop_equal(rollout._replace(reward=reward))
    assert not np.any(kept.mask[1]) and np.all(kept.step[1] == -1)
    for n in (0, 2):
        np.testing.assert_array_equal(kept.mask[n], rollout.mask[n])
        np.testing.assert_array_equal(kept.reward[n], reward[n])


def test_an_episode_without_a_token_is_not_asked():
    """The first row of a random rollout has none: its return of 0 is no other return."""
    rollout = random_rollout(np.random.default_rng(0), 1, 4)
    assert not np.any(rollout.mask[0, 0])
    reward = np.zeros_like(rollout.reward)
    for k in np.flatnonzero(rollout.mask[0].any(axis=-1)):
        reward[0, k, np.flatnonzero(rollout.mask[0, k])[-1]] = 1
    assert reward.sum() >= 1
    assert not np.any(drop_equal(rollout._replace(reward=reward)).mask)
