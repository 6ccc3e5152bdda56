"""How the credit rules relate to one another, and what their expected gradients are, exactly."""

import functools
import itertools
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.recurrence import next_value
from rlcredit.testing import measured, rollouts
from rlcredit.types import Rollout


def assign(name, rollout, evidence, **settings):
    rule = credit.bind(name, ADVANTAGES, "advantage", settings)
    return jax.jit(functools.partial(credit.assign, rule))(rollout, evidence)


@pytest.fixture(scope="module")
def rollout():
    return rollouts.random_rollout(np.random.default_rng(1))


@pytest.fixture(scope="module")
def evidence(rollout):
    return measured.evidence_for(np.random.default_rng(8), rollout, measured.EVIDENCE)


def close(got, want, atol=1e-5):
    np.testing.assert_allclose(got, want, atol=atol, rtol=1e-5)


def test_gae_with_lambda_1_is_the_return_minus_the_value(rollout, evidence):
    ended = rollout._replace(terminated=np.ones_like(rollout.terminated))
    got = assign("gae", ended, evidence, discount=0.9).advantage
    to_go = assign("reinforce", ended, evidence, discount=0.9).advantage
    close(got, np.where(rollout.mask, to_go - evidence["value"][..., :-1], 0))


def test_gae_with_lambda_0_is_the_temporal_difference(rollout, evidence):
    value, mask = evidence["value"], rollout.mask
    following = next_value(value, mask, rollout.length, rollout.terminated)
    got = assign("gae", rollout, evidence, discount=0.9, lambda_=0.0).advantage
    close(got, np.where(mask, rollout.reward + 0.9 * following - value[..., :-1], 0))


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_td_lambda_with_equal_lambdas_is_gae(rollout, evidence, lambda_):
    both = {"lambda_": lambda_, "actor_lambda": lambda_}
    forwards = assign("td_lambda", rollout, evidence, discount=0.9, **both)
    backwards = assign("gae", rollout, evidence, discount=0.9, lambda_=lambda_)
    close(forwards.advantage, backwards.advantage)
    close(forwards.target, backwards.target)


def test_the_target_of_gae_is_advantage_plus_value(rollout, evidence):
    got = assign("gae", rollout, evidence, discount=0.9, lambda_=0.8)
    value = np.where(rollout.mask, evidence["value"][..., :-1], 0)
    close(got.target, got.advantage + value, atol=0)


@pytest.mark.parametrize("name", ["reinforce", "gae", "td_lambda"])
def test_a_discount_is_over_what_remains_not_over_what_has_passed(name, rollout, evidence):
    """Trap: one more choice at the beginning changes no credit of what follows it."""
    mask = rollout.mask
    first = np.where(mask.any(-1), mask.argmax(-1), 0)[..., None]
    longer = rollout._replace(mask=mask | (np.arange(mask.shape[-1]) == first - 1))
    assert longer.mask.sum() > mask.sum()
    want = assign(name, rollout, evidence, discount=0.9).advantage
    got = assign(name, longer, evidence, discount=0.9).advantage
    close(np.where(mask, got, 0), want)


def test_rloo_is_dr_grpo_times_size_over_others(rollout):
    size = np.sum(rollout.mask.any(-1), axis=1)
    scale = (size / (size - 1))[:, None, None]
    assert size.min() >= 2 and len(set(size)) > 1
    dr_grpo = assign("dr_grpo", rollout, {}).advantage
    close(assign("rloo", rollout, {}).advantage, scale * dr_grpo)


def test_grpo_is_dr_grpo_over_the_deviation(rollout):
    total, present = rollout.reward.sum(-1), rollout.mask.any(-1)
    deviation = np.array([np.std(t[p]) for t, p in zip(total, present, strict=True)])
    dr_grpo = assign("dr_grpo", rollout, {}).advantage
    want = dr_grpo / (deviation[:, None, None] + 1e-6)
    close(assign("grpo", rollout, {}).advantage, want)


# All episodes of at most two tokens over three actions, where action 0 ends an episode at once. Two
# problems with their own rewards share one tabular policy.

EPISODES = np.array([(0, 0)] + [(a, b) for a in (1, 2) for b in range(3)])
LENGTHS = np.array([1] + 6 * [2])
MASK = np.arange(2) < LENGTHS[:, None]
LOGITS = {
    "first": jnp.array([0.3, -0.5, 0.2]),
    "second": jnp.array([[0.0, 0.0, 0.0], [0.1, 0.9, -1.0], [-0.4, 0.2, 0.6]]),
}
RETURNS = np.array([[0, 1, 0, 3, 0, 0, 1], [1, 0, 0, 1, 0, 2, 0]], np.float32)
EARLY = np.array([0, 1, 1, 1, -2, -2, -2], np.float32)  # earned by the first token
EARLY_REWARD = np.where(LENGTHS == 1, RETURNS, EARLY)
REWARD = np.stack([EARLY_REWARD, RETURNS - EARLY_REWARD], axis=-1)  # [problem, episode, T]
ARBITRARY = np.float32([0.5, 9.0, -1.0, 2.0])  # values before any token and after 0, 1, 2


def token_log_prob(logits):
    """[episode, T]"""
    first = jax.nn.log_softmax(logits["first"])[EPISODES[:, 0]]
    second = jax.nn.log_softmax(logits["second"])[EPISODES[:, 0], EPISODES[:, 1]]
    return jnp.where(MASK, jnp.stack([first, second], axis=-1), 0)


@jax.jit
@jax.grad
def gradient_of_expected(logits, returns):
    return jnp.sum(jnp.exp(token_log_prob(logits).sum(-1)) * returns)


def objective_gradient(problem):
    """The gradient of the expected return of a problem."""
    return gradient_of_expected(LOGITS, RETURNS[problem])


def exact_values(problem):
    """What is still to come before any token and after 0, 1, 2."""
    probability = np.exp(token_log_prob(LOGITS).sum(-1))
    after = [
        np.average(REWARD[problem, :, 1][chose], weights=probability[chose])
        for chose in (EPISODES[:, 0] == action for action in range(3))
    ]
    return np.float32([probability @ RETURNS[problem], *after])


def enumerated(problems, samples, values):
    """All batches as rollouts [batch, N, K, 2], the episodes in them and their probabilities."""
    drawn = np.array(list(itertools.product(range(len(EPISODES)), repeat=len(problems) * samples)))
    drawn = drawn.reshape(-1, len(problems), samples)
    probability = np.prod(np.exp(token_log_prob(LOGITS).sum(-1))[drawn], axis=(1, 2))
    filler = np.zeros((*drawn.shape, 2), np.int32)
    rollout = Rollout(
        tokens=EPISODES[drawn],
        mask=MASK[drawn],
        reward=REWARD[np.array(problems)[:, None], drawn],
        log_prob=np.asarray(token_log_prob(LOGITS))[drawn],
        step=filler,
        turn=filler,
        length=LENGTHS[drawn],
        terminated=np.ones(drawn.shape, bool),
        truncated=np.zeros(drawn.shape, bool),
        legal=None,
        feedback=None,
        parent=None,
        branch_at=None,
        problem=None,
        key=None,
    )
    first = EPISODES[drawn][..., 0]
    value = np.stack(
        [np.full(drawn.shape, values[0]), values[1 + first], np.zeros(drawn.shape)], -1
    )
    greedy = np.broadcast_to(np.float32([0.25, 2.0])[list(problems)], drawn.shape[:2])
    ref_log_prob = rollout.log_prob
    known = {"value": value, "greedy_return": greedy, "ref_log_prob": ref_log_prob}
    return rollout, known, drawn, probability


def expected_gradient(name, problems, samples, values=ARBITRARY, **settings):
    """E[grad of sum of A * log pi / (N * K)], over every batch that can be drawn."""
    rollout, known, drawn, probability = enumerated(problems, samples, values)
    rule = credit.bind(name, ADVANTAGES, "advantage", settings)
    evidence = {key: known[key] for key in rule.evidence}
    assign_all = jax.jit(jax.vmap(lambda r, e: credit.assign(rule, r, e).advantage))
    return gradient_of_surrogate(LOGITS, assign_all(rollout, evidence), drawn, probability)


@jax.jit
@jax.grad
def gradient_of_surrogate(logits, advantage, drawn, probability):
    gain = jnp.sum(advantage * token_log_prob(logits)[drawn], axis=-1)
    return jnp.sum(probability * jnp.mean(gain, axis=(1, 2)))


def flat(gradient):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])


def mean_objective_gradient(problems):
    return np.mean([flat(objective_gradient(problem)) for problem in problems], axis=0)


UNBIASED = [("reinforce", 1), ("reinforce_pp", 1), ("gae", 1), ("td_lambda", 1), ("remax", 1)]
UNBIASED += [("rloo", 2), ("rloo", 3)]


@pytest.mark.parametrize("name, samples", UNBIASED)
def test_unbiased_rules_have_the_gradient_of_the_objective(name, samples):
    """The critic of gae and td_lambda is an arbitrary one; the reference is the policy itself."""
    got = flat(expected_gradient(name, [1], samples))
    close(got, flat(objective_gradient(1)))


def test_gae_with_lambda_0_is_as_good_as_its_critic():
    true = flat(objective_gradient(0))
    close(flat(expected_gradient("gae", [0], 1, exact_values(0), lambda_=0.0)), true)
    assert np.abs(flat(expected_gradient("gae", [0], 1, lambda_=0.0)) - true).max() > 0.1


@pytest.mark.parametrize("samples", [2, 3])
def test_dr_grpo_has_the_gradient_times_all_but_one_over_all(samples):
    got = flat(expected_gradient("dr_grpo", [0], samples))
    close(got, (samples - 1) / samples * flat(objective_gradient(0)))


@pytest.mark.parametrize("problems, samples", [([0], 2), ([0, 1], 1), ([0, 1], 2)])
def test_a_batch_baseline_scales_the_gradient(problems, samples):
    got = flat(expected_gradient("reinforce_baseline", problems, samples))
    scale = 1 - 1 / (len(problems) * samples)
    close(got, scale * mean_objective_gradient(problems))


def test_grpo_is_biased():
    """Not even the direction is kept."""
    got, true = flat(expected_gradient("grpo", [0], 3)), flat(objective_gradient(0))
    cosine = got @ true / (np.linalg.norm(got) * np.linalg.norm(true))
    assert 0.5 < cosine < 0.99


def problem_weight(name, success, size):
    """E[A given success] - E[A given failure]: the factor before grad of the success rate.

    Exact for a return of 0 or 1: the other size - 1 samples are binomial.
    """
    wins = np.arange(size + 1)
    reward = (np.arange(size) < wins[:, None]).astype(np.float32)[..., None]
    rollout = rollouts.random_rollout(np.random.default_rng(0), size + 1, size, 3)
    mask = np.ones_like(rollout.mask)
    rollout = rollout._replace(mask=mask, reward=np.pad(reward, ((0, 0), (0, 0), (2, 0))))
    advantage = np.asarray(assign(name, rollout, {}).advantage)[..., 0]
    others, failure = range(size), 1 - success
    binomial = [comb(size - 1, j) * success**j * failure ** (size - 1 - j) for j in others]
    return np.array(binomial) @ (advantage[1:, 0] - advantage[:-1, -1])


def test_grpo_weighs_problems_by_one_over_the_deviation():
    for success in (0.05, 0.1, 0.5):
        deviation = np.sqrt(success * (1 - success))
        assert problem_weight("grpo", success, 128) == pytest.approx(1 / deviation, rel=0.1)
        assert problem_weight("dr_grpo", success, 128) == pytest.approx(127 / 128, rel=1e-4)
    assert problem_weight("grpo", 0.1, 16) > 1.3 * problem_weight("grpo", 0.5, 16)
