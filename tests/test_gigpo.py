"""GiGPO: what is counted in its statistics, which steps are compared, and what it reduces to."""

import functools

import numpy as np
import pytest
import reference
from stubs import quick_jit

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import measured, rollouts
from rlcredit.types import InputError

grpo = quick_jit(ADVANTAGES["grpo"])


@functools.cache
def jitted(statistics):
    return quick_jit(functools.partial(ADVANTAGES["gigpo"], statistics=statistics))


def gigpo(rollout, fingerprint, *, statistics="steps", **settings):
    """Numbers are traced, so that one program serves for all of them."""
    defaults = {"omega": 1.0, "discount": 1.0, "eps": 1e-6}
    rule = jitted(statistics)
    return np.asarray(rule(rollout, fingerprint=fingerprint, **defaults | settings))


def example(seed=0, **sizes):
    rng = np.random.default_rng(seed)
    rollout = rollouts.random_rollout(rng, **sizes)
    return rollout, measured.evidence_for(rng, rollout, ["fingerprint"])["fingerprint"]


def group(steps, rewards):
    """One problem; each row of `steps` has -1 where no token was chosen."""
    steps, rewards = np.asarray(steps, np.int32)[None], np.asarray(rewards, np.float32)[None]
    filler = rollouts.random_rollout(np.random.default_rng(0), *steps.shape[:2], 3)
    return filler._replace(mask=steps >= 0, step=steps, reward=rewards)


def all_different(rollout):
    return np.arange(1, rollout.mask.size + 1, dtype=np.uint32).reshape(rollout.mask.shape)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"discount": 0.9},
        {"discount": 0.0, "omega": 2.0},
        {"statistics": "episodes", "omega": 0.3, "eps": 0.1, "discount": 0.9},
    ],
)
def test_equals_the_reference_in_larger_groups(settings):
    for seed in range(5):
        rollout, fingerprint = example(seed, samples=6, length=16)
        want = reference.gigpo(rollout, fingerprint=fingerprint, **settings)
        np.testing.assert_allclose(gigpo(rollout, fingerprint, **settings), want, atol=2e-5)


def test_without_its_steps_and_with_statistics_over_episodes_it_is_grpo():
    for seed in range(5):
        rollout, fingerprint = example(seed)
        got = gigpo(rollout, fingerprint, omega=0.0, statistics="episodes")
        np.testing.assert_array_equal(got, grpo(rollout))


def test_statistics_over_steps_count_an_episode_once_for_each_of_its_steps():
    """One step that fails, three that succeed: mean 3/4 and deviation sqrt(3/16), of all four.

    Trap: one row an episode would find a mean of 1/2.
    """
    rollout = group([[0, 0, -1, -1], [0, 1, 1, 2]], [[0, 0, 0, 0], [0, 0, 0, 1]])
    states = all_different(rollout)
    over_steps = gigpo(rollout, states)[0]
    np.testing.assert_allclose(over_steps[0], [-(3**0.5), -(3**0.5), 0, 0], rtol=1e-5)
    np.testing.assert_allclose(over_steps[1], [3**-0.5] * 4, rtol=1e-5)
    over_episodes = gigpo(rollout, states, statistics="episodes")[0]
    np.testing.assert_allclose(over_episodes[:, :2], [[-1, -1], [1, 1]], rtol=1e-5)


def test_a_step_alone_in_its_state_has_the_credit_of_its_episode():
    rollout, _ = example()
    states = all_different(rollout)
    np.testing.assert_array_equal(gigpo(rollout, states), gigpo(rollout, states, omega=0.0))


def step_credit(rollout, states, **settings):
    return gigpo(rollout, states, **settings) - gigpo(rollout, states, **settings | {"omega": 0.0})


def test_discount_counts_steps_and_a_step_earns_what_its_tokens_earn():
    """Returns from the shared first state: 2 + 0.5 * 4 = 4, 1 and 1."""
    rollout = group([[0, 0, 1], [0, -1, -1], [0, -1, -1]], [[1, 1, 4], [1, 0, 0], [1, 0, 0]])
    states = np.array([[[7, 8, 9], [7, 0, 0], [7, 0, 0]]], np.uint32)
    got = step_credit(rollout, states, discount=0.5)[0]
    np.testing.assert_allclose(got[0], [2**0.5, 2**0.5, 0], rtol=1e-5)
    np.testing.assert_allclose(got[1:, 0], -(0.5**0.5), rtol=1e-5)
    scaled = step_credit(rollout, states, discount=0.5, eps=2**0.5)[0, 0, 0]
    assert scaled == pytest.approx(2 / (2 * 2**0.5), rel=1e-5)  # tells 4 from other returns


def test_a_state_met_again_in_the_same_episode_is_compared():
    rollout = group([[0, 1, 2]], [[0, 1, 3]])
    got = gigpo(rollout, np.array([[[5, 6, 5]]], np.uint32))[0, 0]
    np.testing.assert_allclose(got, [1, 0, -1], rtol=1e-5)


def test_only_the_state_at_the_first_token_of_a_step_counts():
    rollout, fingerprint = example()
    earlier = np.pad(rollout.step, ((0, 0), (0, 0), (1, 0)), constant_values=-1)[..., :-1]
    first = rollout.mask & (rollout.step > np.maximum.accumulate(earlier, axis=-1))
    changed = np.where(first, fingerprint, fingerprint + 1)
    np.testing.assert_array_equal(gigpo(rollout, changed), gigpo(rollout, fingerprint))
    states_of_some = np.where(first & (np.arange(12) % 2 == 0), fingerprint + 1, fingerprint)
    assert np.any(gigpo(rollout, states_of_some) != gigpo(rollout, fingerprint))


def test_other_problems_and_large_fingerprints_are_told_apart():
    """Two states that differ by one in 2**31, beyond what float32 can tell."""
    rollout, fingerprint = example()
    large = np.where(rollout.mask, fingerprint + np.uint32(2**31), 0)
    np.testing.assert_array_equal(gigpo(rollout, large), gigpo(rollout, fingerprint))
    alone = gigpo(*(_first(leaf) for leaf in (rollout, fingerprint)))
    np.testing.assert_allclose(alone, gigpo(rollout, fingerprint)[:1], atol=1e-6)


def _first(leaf):
    if isinstance(leaf, np.ndarray):
        return leaf[:1]
    return leaf._replace(**{n: getattr(leaf, n)[:1] for n in ("mask", "reward", "step", "length")})


def test_equal_returns_from_a_state_give_exactly_zero():
    """Equal at step 1 and not before; float32 means of 0.95 and the like are not exact."""
    steps = np.tile([0, 1, -1], (7, 1))
    states = np.where(steps == 1, 2, 1)[None].astype(np.uint32)
    for value in np.arange(1, 20, dtype=np.float32) / 20:
        rewards = np.stack([np.arange(7), np.full(7, value), np.zeros(7)], axis=-1)
        got = step_credit(group(steps, rewards), states)[0]
        assert not np.any(got[:, 1]) and np.all(got[[0, 6], 0])
        equal = group(steps, np.where(steps == 1, value, 0))
        assert not np.any(gigpo(equal, states))


def test_other_statistics_are_refused_by_name():
    rollout, fingerprint = example()
    with pytest.raises(InputError, match="statistics='tokens'; take one of steps, episodes"):
        gigpo(rollout, fingerprint, statistics="tokens")


def test_the_statistics_are_a_flag():
    rule = credit.from_flags("gigpo", ADVANTAGES, "advantage", ("statistics=episodes", "omega=0"))
    rollout, fingerprint = example()
    got = quick_jit(rule.function)(rollout, fingerprint=fingerprint)
    np.testing.assert_array_equal(got, grpo(rollout))
