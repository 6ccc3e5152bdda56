"""The evidence `coalition_value`: some units are kept, the policy makes the others anew."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import CAPACITY, network, quick_jit, talk, talks
from tree_reference import CASES, leaves, one_of, policy_of, problems_of

from rlcredit import coalitions
from rlcredit.evidence import Context, Probing
from rlcredit.evidence.coalition_value import coalition_value
from rlcredit.keys import branch_keys, chance_key, choice_key
from rlcredit.rollout import sample
from rlcredit.score import score
from rlcredit.sharding import make_mesh
from rlcredit.types import InputError, Layout, Sampling

PROBLEMS, SAMPLES, PLAYERS = 4, 2, 3
TEMPERATURE = 0.8
TASK = talk()._replace(legal=lambda problem, state: (jnp.arange(10) + state[1]) % 3 > 0)
POLICY, PARAMS = network()
problems, keys = talks(PROBLEMS), jax.random.split(jax.random.key(5), PROBLEMS)
KEY = jax.random.key(9)
PROBING = Probing(unit="segment:2", continuations=1, players=PLAYERS, orders=4)
ALL_AT_ONCE = Layout()


@functools.cache
def rows():
    """Sampled episodes; the first of each problem is without a chosen token."""
    where = {"samples": SAMPLES, "sampling": Sampling(TEMPERATURE, legal=True)}
    rollout = quick_jit(lambda *drawn: sample(POLICY, PARAMS, TASK, *drawn, **where)[0])(
        problems, keys
    )
    return rollout._replace(mask=rollout.mask.at[:, 0].set(False))


@functools.cache
def measured(legal, most, layout=ALL_AT_ONCE):
    """(value, price), with all coalitions of so many players."""
    context = Context(
        POLICY, PARAMS, PARAMS, TASK, Sampling(TEMPERATURE, legal=legal), layout, PROBING
    )
    with mock.patch.object(coalitions, "MOST", most):
        run = quick_jit(lambda rollout, key: coalition_value(context, rollout, key))
        return jax.device_get(run(rows(), KEY))


@functools.cache
def by_hand():
    """The next token of one episode and what it does, jitted."""

    @quick_jit
    def choose(problem, state, row, length, key, kept, legal):
        hidden, _ = POLICY.forward(PARAMS, row[None])
        z = hidden[0, length - 1] @ POLICY.head(PARAMS) / TEMPERATURE
        allowed = TASK.legal(problem, state) | ~legal
        drawn = jax.random.categorical(choice_key(key, length), jnp.where(allowed, z, -1e30))
        token = jnp.where((kept >= 0) & allowed[kept], kept, drawn)
        return token, TASK.step(problem, state, token, chance_key(key, length))

    return choose


def play(problem, key, kept, legal):
    """(return, choices, kept tokens that were refused) of an episode, by the rules as written.

    Args: kept: {number of the choice: token}.
    """
    length, state = int(problem.prompt_length), jnp.zeros(2, jnp.int32)
    row, limit = [1 + i % 3 for i in range(length)], length + TASK.horizon
    total, number, refused = 0.0, 0, 0
    while True:
        padded = np.zeros(CAPACITY + TASK.horizon, np.int32)
        padded[: len(row)] = row
        wanted = kept.get(number, -1)
        token, after = by_hand()(problem, state, padded, len(row), key, wanted, legal)
        refused += wanted >= 0 and int(token) != wanted
        row.append(int(token))
        total, number, state = total + float(after.reward), number + 1, after.state
        if after.terminated:
            return total, number, refused
        row += [int(word) for word in after.observation if word]
        if after.truncated or limit - len(row) < 1 + TASK.observation_capacity:
            return total, number, refused


def units_of(n):
    """How many units the second row of a problem has."""
    return -(-int(rows().mask[n, 1].sum()) // 2)


@pytest.mark.parametrize("legal, most", [(True, PLAYERS), (False, PLAYERS - 1)])
def test_equals_a_loop_over_full_forward_passes(legal, most):
    """Of all coalitions, and without legal tokens along orders; each episode is paid once."""
    value, price = measured(legal, most)
    joined = coalitions.joined(coalitions.orders(PLAYERS, PROBING.orders))
    number = (joined * 2 ** np.arange(PLAYERS)).sum(axis=-1)
    number = np.arange(2**PLAYERS) if most == PLAYERS else number
    assert value.shape == (PROBLEMS, SAMPLES, *number.shape)
    seen, choices = [], 0
    for n in range(PROBLEMS):
        own = np.asarray(rows().tokens)[n, 1][np.asarray(rows().mask)[n, 1]]
        there = number & 2 ** units_of(n) - 1
        for c in np.unique(there):
            kept = {i: t for i, t in enumerate(own) if c >> min(i // 2, PLAYERS - 1) & 1}
            key = branch_keys(rows().key[n : n + 1, 1:], KEY, jnp.full((1, 1, 1), c), 1)
            problem = jax.tree.map(lambda leaf, n=n: leaf[n], problems)
            wanted, chosen, refused = play(problem, key[0, 0, 0, 0], kept, legal)
            np.testing.assert_allclose(value[n, 1][there == c], wanted, rtol=1e-5)
            seen, choices = [*seen, (len(kept), refused)], choices + chosen
    kept, refused = np.sum(seen, axis=0)
    assert kept > 40 and (refused > 3) == legal and (refused > 0) == legal
    assert price.tokens_sampled == price.environment_steps == choices
    assert price.lane_steps > price.idle_lane_steps


def test_units_that_a_row_does_not_have_change_nothing():
    value, here = measured(True, PLAYERS)[0], [units_of(n) for n in range(PROBLEMS)]
    assert min(here) < PLAYERS < max(here)
    for n, count in enumerate(here):
        there = np.arange(2**PLAYERS) & 2**count - 1
        np.testing.assert_array_equal(value[n, 1], value[n, 1, there])
        assert len(np.unique(value[n, 1])) > 1


def test_a_row_without_a_token_has_value_0():
    assert (
        not measured(True, PLAYERS)[0][:, 0].any()
        and measured(True, PLAYERS)[0][:, 1].any(axis=1).all()
    )


def test_same_values_for_other_lanes_and_devices():
    value, price = measured(True, PLAYERS, Layout(3, make_mesh(jax.devices()[:2])))
    wanted, other = measured(True, PLAYERS)
    np.testing.assert_array_equal(value, wanted)
    for name in ("tokens_sampled", "tokens_scored", "environment_steps"):
        assert getattr(price, name) == getattr(other, name)
    assert price.lane_steps < other.lane_steps


def test_a_number_of_players_that_cannot_be_used_is_named():
    nobody = Probing(players=0)
    context = Context(POLICY, PARAMS, PARAMS, TASK, Sampling(), probing=nobody)
    with pytest.raises(InputError, match="players=0: coalitions are formed by 1 to 30"):
        coalition_value(context, rows(), KEY)


# A chain of two decisions whose episodes can all be gone through.
CHAIN, DRAWS = CASES["recovery"], 192
HOW = Sampling(legal=True)


@functools.cache
def chain():
    """(rollout, value, price) of two samples of each of two problems."""
    policy, params = policy_of("recovery")
    probing = Probing(continuations=DRAWS, players=2)
    context = Context(policy, params, params, CHAIN, HOW, probing=probing)

    def run(problems, keys):
        rollout, _ = sample(policy, params, CHAIN, problems, keys, samples=SAMPLES, sampling=HOW)
        return rollout._replace(key=None), *coalition_value(context, rollout, KEY)

    drawn = (problems_of(CHAIN), jax.random.split(jax.random.key(1), 2))
    return jax.device_get(quick_jit(run)(*drawn))


@functools.cache
def every_episode():
    """(tokens [M, T], log-probs [M, T], returns [M]) of each problem, by recursion."""
    policy, params = policy_of("recovery")
    ask = quick_jit(
        lambda tokens, legal: score(policy, params, tokens, sampling=HOW, legal=legal).log_prob
    )
    found = []
    for number in range(2):
        episodes = leaves(CHAIN, one_of(problems_of(CHAIN), number))
        tokens, legal, reward = (
            np.asarray([getattr(leaf, name) for leaf in episodes])
            for name in ("tokens", "legal", "reward")
        )
        log_prob = np.asarray(ask(tokens.astype(np.int32), legal), float)
        found.append((tokens, log_prob, reward.sum(axis=1)))
    return found


def test_it_converges_to_the_mean_over_all_episodes_that_keep_these_tokens():
    rollout, value, _ = chain()
    deviations = []
    for n, k, c in np.ndindex(2, SAMPLES, 4):
        tokens, log_prob, total = every_episode()[n]
        at = np.flatnonzero(rollout.mask[n, k])
        kept = np.array([c >> rollout.step[n, k, t] & 1 for t in at], bool)
        agrees = ((tokens[:, at] == rollout.tokens[n, k, at]) | ~kept).all(axis=1)
        chance = agrees * np.exp(np.where(kept, 0, log_prob[:, at]).sum(axis=1))
        assert chance.sum() == pytest.approx(1, abs=1e-5)
        mean = chance @ total
        deviation = np.sqrt(max(chance @ (total - mean) ** 2, 0) / DRAWS)
        assert abs(value[n, k, c] - mean) < 4 * deviation + 1e-5
        deviations.append(deviation)
    assert max(deviations) > 0.01  # some of it was drawn


def test_the_full_coalition_is_the_row_again_where_nothing_is_left_to_chance():
    rollout, value, _ = chain()
    total = rollout.reward.sum(axis=-1)
    np.testing.assert_allclose(value[..., -1], total, rtol=1e-5)
    assert np.ptp(total) > 0.1 > np.abs(np.diff(value[..., 0], axis=1)).max()


def test_the_price_is_that_of_all_new_episodes():
    rollout, _, price = chain()
    tokens = DRAWS * 4 * rollout.mask.sum()
    assert price.tokens_sampled == price.environment_steps == tokens
    assert price.tokens_scored == np.sum(rollout.mask.argmax(axis=-1)[:, 0])  # the prompts, once
    assert price.lane_steps - price.idle_lane_steps == tokens
