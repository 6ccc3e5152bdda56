"""Continuations from every position of an episode return, on average, the exact value of the
prefix under the network, found by enumerating all that can follow.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, quick_jit

from rlcredit import masked
from rlcredit.branching import branch
from rlcredit.episode import states
from rlcredit.rollout import draw_problems, sample
from rlcredit.score import score
from rlcredit.tasks import TASKS
from rlcredit.types import Sampling

CONTINUATIONS = 600
HOW = Sampling(temperature=0.7, legal=True)


def enumerate_episodes(task, policy, params, problem):
    """(choices [S, horizon], probability [S], success chance [S]) of all legal sequences."""
    prompt, length = task.prompt(problem)
    start, end = int(length), int(length) + task.horizon
    choices, states_ = np.zeros((1, 0), np.int32), [task.start(problem)]
    step = quick_jit(lambda state, token: task.step(problem, state, token, jax.random.key(0)))
    legal = quick_jit(lambda state: task.legal(problem, state))
    returns = [0.0]
    for _ in range(task.horizon):
        grown, followed, earned = [], [], []
        for row, state, total in zip(choices, states_, returns, strict=True):
            for token in np.flatnonzero(legal(state)):
                after = step(state, jnp.int32(token))
                grown.append([*row, token])
                followed.append(after.state)
                earned.append(total + float(after.reward))
        choices, states_, returns = np.asarray(grown, np.int32), followed, earned
    rows = np.zeros((len(choices), end), np.int32)
    rows[:, :start], rows[:, start:] = np.asarray(prompt)[:start], choices
    mask = np.broadcast_to(np.arange(end) >= start, rows.shape)

    @quick_jit
    def log_prob(rows, mask):
        def allowed(tokens, chosen):
            keys = jnp.broadcast_to(jax.random.key(0), (end,))
            before = states(task, problem, keys, tokens, chosen)
            here = jax.tree.map(lambda leaf: leaf[:-1], before)
            return jax.vmap(lambda state: task.legal(problem, state))(here)

        scores = score(policy, params, rows, sampling=HOW, legal=jax.vmap(allowed)(rows, mask))
        return masked.sum(scores.log_prob, mask, axis=-1)

    probability = np.exp(np.asarray(log_prob(rows, mask), np.float64))
    return rows, probability, np.asarray(returns)


@pytest.mark.parametrize("chance", [False, True])
def test_mean_returns_agree_with_exact_values(chance):
    task = TASKS["bifurcation"](gaps=(0.5, 0.3), filler=1, delay=1, chance=False)
    policy, params = network(vocabulary=len(task.vocabulary), seed=3)
    problems, keys = draw_problems(task, jax.random.key(0), 2)
    # The chance of the outcome has the mean that the enumeration uses.
    acted = TASKS["bifurcation"](gaps=(0.5, 0.3), filler=1, delay=1, chance=chance)
    run = quick_jit(
        lambda *drawn: sample(policy, params, acted, *drawn, samples=1, sampling=HOW)[0]
    )
    rollout = run(problems, keys)
    length = rollout.tokens.shape[2]
    every_position = jnp.broadcast_to(jnp.arange(length), (2, 1, length))
    key = jax.random.key(1)
    continued, _ = quick_jit(
        lambda r: branch(policy, params, acted, r, every_position, CONTINUATIONS, key, sampling=HOW)
    )(rollout)
    returns = np.asarray(masked.sum(continued.reward, continued.mask, axis=-1))
    returns = returns.reshape(2, length, CONTINUATIONS)
    compared, values = 0, set()
    for n, t in itertools.product(range(2), range(length)):
        if not rollout.mask[n, 0, t]:
            continue
        problem = jax.tree.map(lambda leaf, n=n: leaf[n], problems)
        if t == int(jnp.argmax(rollout.mask[n, 0])):
            rows, probability, exact = enumerate_episodes(task, policy, params, problem)
            np.testing.assert_allclose(probability.sum(), 1, atol=1e-5)
        same = (rows[:, :t] == np.asarray(rollout.tokens)[n, 0, :t]).all(axis=1)
        value = np.average(exact[same], weights=probability[same])
        spread = np.sqrt(np.average((exact[same] - value) ** 2, weights=probability[same]))
        if chance:  # an outcome of 0 or 1 has the deviation of a coin
            spread = np.sqrt(value * (1 - value))
        error = abs(returns[n, t].mean() - value)
        assert error <= 4 * spread / np.sqrt(CONTINUATIONS) + 1e-6, (n, t, error, value)
        compared += 1
        values.add(round(float(value), 3))
    assert compared == 10 and len(values) >= 4
