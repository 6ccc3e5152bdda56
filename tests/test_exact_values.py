"""Exact values, advantages, visits and the objective, against averages over all episodes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import parameters, quick_jit
from tree_reference import CASES, leaves, one_of, policy_of, problems_of, worth

from rlcredit.exact import values
from rlcredit.exact.objective import objective, weighted_score
from rlcredit.exact.tree import enumerate_episodes
from rlcredit.exact.values import exact, visits
from rlcredit.score import score
from rlcredit.tasks import bifurcation_credit
from rlcredit.tasks.bifurcation_chain import Chain, settle
from rlcredit.types import Sampling

HOW = Sampling(temperature=0.7, legal=True)
CAPACITY = 200
CHAINS = {
    "recovery": settle(Chain(delay=0), "recovery"),
    "chance": settle(Chain(gaps=(0.5, 0.3), filler=0, chance=True)),
}


@functools.cache
def tree_of(name, capacity=CAPACITY):
    task = CASES[name]
    grow = quick_jit(lambda p: enumerate_episodes(task, p, legal=True, capacity=capacity))
    return grow(problems_of(task))


@functools.cache
def judge(name):
    policy, _ = policy_of(name)
    return quick_jit(lambda params, tree: exact(policy, params, tree, HOW))


@functools.cache
def found(name):
    truth = judge(name)(policy_of(name)[1], tree_of(name))
    seen = quick_jit(visits)(tree_of(name), truth.probability)
    return jax.tree.map(np.asarray, (truth, seen))


@functools.cache
def expected(name):
    """[(episodes, log-probs, Worth)] of the two problems, by recursion."""
    (policy, params), task, both = policy_of(name), CASES[name], []
    ask = quick_jit(
        lambda tokens, legal: score(policy, params, tokens, sampling=HOW, legal=legal).log_prob
    )
    for number in range(2):
        episodes = leaves(task, one_of(problems_of(task), number))
        tokens, legal, mask = (
            np.asarray([getattr(leaf, field) for leaf in episodes])
            for field in ("tokens", "legal", "mask")
        )
        empty = CAPACITY - len(episodes)  # one shape for both problems
        padded = np.pad(tokens, ((0, empty), (0, 0))).astype(np.int32)
        allowed = np.pad(legal, ((0, empty), (0, 0), (0, 0)))
        log_prob = np.where(mask, np.asarray(ask(padded, allowed))[: len(episodes)], 0)
        both.append((episodes, log_prob, worth(episodes, log_prob)))
    return both


@pytest.mark.parametrize("name", CASES)
def test_what_is_exact_is_the_mean_over_all_episodes(name):
    truth, seen = found(name)
    for n, (episodes, log_prob, wanted) in enumerate(expected(name)):
        count = len(episodes)
        for mine, theirs in (
            (truth.log_prob, log_prob),
            (truth.value, wanted.value),
            (truth.advantage, wanted.advantage),
            (truth.probability, wanted.probability),
            (truth.total, np.sum([leaf.reward for leaf in episodes], axis=1)),
            (seen, wanted.visit),
        ):
            np.testing.assert_allclose(mine[n, :count], theirs, atol=1e-5)
        np.testing.assert_allclose(truth.probability[n].sum(), 1, atol=1e-5)
        assert not truth.probability[n, count:].any()
        assert np.abs(truth.advantage[n]).max() > 0.01


@pytest.mark.parametrize("name", CHAINS)
def test_the_uniform_policy_agrees_with_the_closed_form(name):
    tree, chain = tree_of(name), CHAINS[name]
    zeros = jax.tree.map(jnp.zeros_like, policy_of(name)[1])
    truth = judge(name)(zeros, tree)
    for n in range(2):
        problem = one_of(tree.rollout.problem, n)
        for row in range(int(tree.count[n])):
            arguments = (chain, problem, tree.rollout.tokens[n, row], tree.rollout.mask[n, row])
            value = bifurcation_credit.true_value(*arguments, skill=(0.5, 0.5))
            advantage = bifurcation_credit.true_advantage(*arguments, skill=(0.5, 0.5))
            np.testing.assert_allclose(truth.value[n, row, :-1], value[:-1], atol=1e-6)
            np.testing.assert_allclose(truth.advantage[n, row], advantage, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_advantages_hold_the_variance_that_is_not_left_to_chance(name):
    truth, _ = found(name)
    for n in range(2):
        probability = truth.probability[n].astype(float)
        variance = probability @ (truth.total[n] - probability @ truth.total[n]) ** 2
        explained = probability @ np.sum(truth.advantage[n].astype(float) ** 2, axis=-1)
        if CASES[name].outcomes is None:
            np.testing.assert_allclose(explained, variance, atol=1e-5)
        else:
            assert 0 < explained < 0.99 * variance


def test_a_tree_that_is_not_whole_has_no_values():
    large = int(tree_of("maze").count.argmax())
    room = int(tree_of("maze").count[large]) - 1
    policy, params = policy_of("maze")
    whole, cut = tree_of("maze"), tree_of("maze", room)
    truth, worth_of = quick_jit(
        lambda p, t: (exact(policy, p, t, HOW), objective(policy, p, t, HOW))
    )(params, cut)
    for values_of in (truth.value, truth.advantage, truth.probability):
        assert np.isnan(values_of[large]).all() and np.isfinite(values_of[1 - large]).all()
    assert np.isnan(worth_of)
    exactly = whole._replace(count=jnp.full_like(whole.count, CAPACITY))  # M rows do fit
    assert np.isfinite(judge("maze")(params, exactly).value).all()


def test_rows_are_scored_in_pieces_of_any_size(monkeypatch):
    monkeypatch.setattr(values, "PIECE", 7)
    policy, params = policy_of("recovery")
    pieces = quick_jit(lambda p: values.log_probs(policy, p, tree_of("recovery"), HOW))(params)
    np.testing.assert_allclose(pieces, found("recovery")[0].log_prob, atol=1e-5)


@pytest.mark.parametrize("name", ["recovery", "slip"])
def test_the_objective_is_the_expected_return(name):
    policy, params = policy_of(name)
    tree = tree_of(name)
    value_of = functools.partial(objective, policy, tree=tree, sampling=HOW)
    value, gradient = quick_jit(jax.value_and_grad(value_of))(params)
    wanted = [
        at_all.probability @ np.sum([leaf.reward for leaf in episodes], axis=1)
        for episodes, _, at_all in expected(name)
    ]
    np.testing.assert_allclose(value, np.mean(wanted), atol=1e-6)

    direction = parameters(policy, seed=9)
    slope = sum(
        float(np.sum(np.asarray(a, float) * np.asarray(b, float)))
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    evaluate, step = quick_jit(value_of), 1e-3

    def moved(size):
        return float(evaluate(jax.tree.map(lambda p, d: p + size * d, params, direction)))

    assert abs(slope) > 1e-2
    np.testing.assert_allclose((moved(step) - moved(-step)) / (2 * step), slope, rtol=0.02)

    truth, _ = found(name)
    credit = truth.probability[..., None] * truth.total[..., None] * tree.rollout.mask
    reinforce = quick_jit(lambda p: weighted_score(policy, p, tree, credit, HOW))(params)
    for mine, theirs in zip(jax.tree.leaves(reinforce), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
