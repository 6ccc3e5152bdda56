"""Hindsight: what a return says of the choices before it, against a recursion over all episodes."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit
from tree_reference import CASES, LEGAL, leaves, one_of, policy_of, problems_of, worth

from rlcredit.advantages import ADVANTAGES
from rlcredit.episode import play
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.evidence import exact_rows as module
from rlcredit.score import score
from rlcredit.sharding import make_mesh
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import Layout

N, K = 2, 6
CAPACITY = 192
close = functools.partial(np.testing.assert_allclose, atol=1e-5)


def context_of(name, devices=1):
    policy, params = policy_of(name)
    layout = Layout(mesh=make_mesh(jax.devices()[:devices]))
    return Context(policy, params, params, CASES[name], LEGAL, layout)


@functools.cache
def played(name):
    """[N, K] episodes of random legal tokens, the first one of each problem taken out."""
    task = CASES[name]

    def choose(problem, state, number, key):
        allowed = task.legal(problem, state)
        return jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1))

    problems = problems_of(task, N)
    keys = jax.random.split(jax.random.key(5), N * K)
    repeated = jax.tree.map(lambda leaf: jnp.repeat(leaf, K, axis=0), problems)
    rows = quick_jit(lambda *drawn: play(task, *drawn, choose))(repeated, keys)
    rows = rows._replace(problem=None)
    rows = jax.tree.map(lambda leaf: leaf.reshape(N, K, *leaf.shape[2:]), rows)
    there = jnp.arange(K)[None, :, None] > 0
    return rows._replace(
        tokens=jnp.where(there, rows.tokens, 0), mask=there & rows.mask, problem=problems
    )


@functools.cache
def provider(name, devices):
    """rollout -> (evidence, price), compiled once."""
    context = context_of(name, devices)
    call = quick_jit(lambda rows: EVIDENCE["exact_hindsight"](context, rows, jax.random.key(0)))

    def of(rows):
        with mock.patch.object(module, "_capacity", lambda *_: CAPACITY):
            return jax.tree.map(np.asarray, call(rows))

    return of


@functools.cache
def known(name):
    """[(episodes, log_prob, Worth, posterior [L, T])] of each problem, by recursion, in float64."""
    policy, params = policy_of(name)
    ask = quick_jit(
        lambda tokens, legal: score(policy, params, tokens, sampling=LEGAL, legal=legal).log_prob
    )
    found = []
    for number in range(N):
        episodes = leaves(CASES[name], one_of(problems_of(CASES[name], N), number))
        empty = CAPACITY - len(episodes)
        tokens = np.pad([leaf.tokens for leaf in episodes], ((0, empty), (0, 0)))
        legal = np.pad([leaf.legal for leaf in episodes], ((0, empty), (0, 0), (0, 0)))
        log_prob = np.asarray(ask(tokens.astype(np.int32), legal), float)[: len(episodes)]
        log_prob = np.where([leaf.mask for leaf in episodes], log_prob, 0)
        truth = worth(episodes, log_prob)
        found.append((episodes, log_prob, truth, posterior(episodes, truth.probability)))
    return found


def to_go(leaf):
    return np.round(np.cumsum(leaf.reward[::-1])[::-1], 4)


def posterior(episodes, probability):
    """P(token | history, the return from there on), from its definition."""
    found = np.ones((len(episodes), len(episodes[0].tokens)))
    for t in range(found.shape[1]):
        before, after = {}, {}
        names = [(leaf.history[t], to_go(leaf)[t]) for leaf in episodes]
        for leaf, name, chance in zip(episodes, names, probability, strict=True):
            before[name] = before.get(name, 0) + chance
            after[name, leaf.tokens[t]] = after.get((name, leaf.tokens[t]), 0) + chance
        for row, (leaf, name) in enumerate(zip(episodes, names, strict=True)):
            found[row, t] = after[name, leaf.tokens[t]] / before[name]
    return found


@pytest.mark.parametrize("name", ["chance", "maze"])
def test_exact_hindsight_is_what_the_recursion_says(name):
    """With 0 and 1 that the task draws, and with rewards on the way."""
    rows, checked = played(name), 0
    found = provider(name, 1)(rows)[0]
    mask, tokens, reward = (np.asarray(part) for part in (rows.mask, rows.tokens, rows.reward))
    for n, (episodes, _, _, wanted) in enumerate(known(name)):
        for k in range(1, K):
            own = [
                row
                for row, leaf in enumerate(episodes)
                if np.array_equal(leaf.tokens, tokens[n, k])
                and np.allclose(leaf.reward, reward[n, k], atol=1e-6)
            ]
            close(found[n, k][mask[n, k]], np.log(wanted[own[0]][mask[n, k]]), atol=1e-4)
            checked += len(own) == 1
    assert checked == N * (K - 1) and found[mask].min() < -0.1
    assert not found[~mask].any()


def test_exact_hindsight_of_an_episode_that_cannot_be_is_nan():
    rows = played("chance")
    at = np.argmax(np.asarray(rows.mask[0, 1]))
    never_legal = rows._replace(tokens=rows.tokens.at[0, 1, at].set(1))  # a digit
    found = provider("chance", 1)(never_legal)[0]
    mask = np.asarray(rows.mask)
    assert np.isnan(found[0, 1][mask[0, 1]]).all() and np.isfinite(found[0, 2:]).all()
    assert not found[~mask].any()


def test_exact_hindsight_is_the_same_over_devices_and_its_price_the_whole_tree():
    rows = played("chance")
    (alone, price), (spread, also) = (provider("chance", devices)(rows) for devices in (1, 2))
    close(spread, alone)
    lengths = sum(leaf.length for episodes, *_ in known("chance") for leaf in episodes)
    assert price.tokens_scored == also.tokens_scored == lengths
    assert price.tokens_sampled == 0


def credit_of_all(name):
    """[(mask, Worth, mean over what follows each choice of hca with the exact h)]"""
    for episodes, log_prob, truth, hindsight in known(name):
        mask = np.asarray([leaf.mask for leaf in episodes])
        reward = np.asarray([leaf.reward for leaf in episodes], np.float32)
        rows = random_rollout(np.random.default_rng(0), 1, 1)._replace(
            mask=mask[None], reward=reward[None], log_prob=np.float32(log_prob)[None]
        )
        found = ADVANTAGES["hca"](rows, exact_hindsight=np.float32(np.log(hindsight))[None])[0]
        mean = np.zeros(mask.shape)
        for row, t in np.argwhere(mask):
            own = (episodes[row].history[t], episodes[row].tokens[t])
            same = [(leaf.history[t], leaf.tokens[t]) == own for leaf in episodes]
            chance = np.where(same, truth.probability, 0)
            mean[row, t] = chance @ np.asarray(found, float)[:, t] / chance.sum()
        yield mask, truth, mean


def test_hca_is_the_exact_advantage_where_every_choice_leaves_every_return_possible():
    for mask, truth, mean in credit_of_all("chance"):
        close(mean[mask], truth.advantage[mask])
        assert np.abs(truth.advantage[mask]).max() > 0.01


def test_hca_does_not_blame_a_choice_after_which_there_is_no_success():
    """Its advantage is -V, and hca gives it 0: a bias; all other choices are right."""
    for mask, truth, mean in credit_of_all("recovery"):
        q = truth.advantage + truth.value[:, :-1]
        lost = mask & (q < 1e-6) & (truth.value[:, :-1] > 1e-6)
        close(mean[mask & ~lost], truth.advantage[mask & ~lost])
        close(mean[lost], 0)
        assert lost.any() and truth.advantage[lost].max() < -0.01
