"""Refilled lanes: the same episodes as a slow loop over full forward passes, for any number of
lanes and devices, and less idle work.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import CAPACITY, VOCABULARY, network, quick_jit, same_bits, scripts, talk, talks, tape

from rlcredit.keys import chance_key, choice_key, episode_keys
from rlcredit.rollout import draw_problems, sample
from rlcredit.score import score
from rlcredit.sharding import make_mesh, replicated
from rlcredit.types import InputError, Layout, Sampling

PROBLEMS, SAMPLES = 8, 3
TASK = talk()
HOW = Sampling(0.8, legal=True)
problems, keys = talks(PROBLEMS), jax.random.split(jax.random.key(3), PROBLEMS)
POLICY, PARAMS = network()
COLLECTIVES = r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


@functools.cache
def sampled(lanes=None, devices=0):
    """(rollout, price) of the same problems and keys."""
    layout = Layout(lanes, make_mesh(jax.devices()[:devices]) if devices else None)
    return compiled(layout)(PARAMS, problems, keys)


@functools.cache
def compiled(layout):
    where = {"samples": SAMPLES, "sampling": HOW, "layout": layout}
    run = quick_jit(lambda params, *drawn: sample(POLICY, params, TASK, *drawn, **where))
    if layout.mesh is None:
        return run
    return lambda params, *drawn: run(replicated(layout.mesh, params), *drawn)


@functools.cache
def forward():
    """Logits [V] after a row of `length` tokens, by a full pass without a cache."""

    @quick_jit
    def last(row, length):
        hidden, _ = POLICY.forward(PARAMS, row[None])
        return hidden[0, length - 1] @ POLICY.head(PARAMS)

    return last


@functools.cache
def step_by_step():
    return quick_jit(TASK.step), quick_jit(TASK.legal)


def follow(problem, key):
    """One episode by the rules as they are written: (tokens, mask, reward, turn, feedback, end)."""
    step, allowed = step_by_step()
    length = int(problem.prompt_length)
    row = [1 + i % 3 for i in range(length)]
    mask, reward, turns, feedback = [[empty] * length for empty in (0, 0.0, -1, (0.0, 0.0))]
    state, turn, limit = jnp.zeros(2, jnp.int32), 0, length + TASK.horizon
    while True:
        t = len(row)
        padded = np.zeros(CAPACITY + TASK.horizon, np.int32)
        padded[:t] = row
        legal = allowed(problem, state)
        z = jnp.where(legal, forward()(padded, t) / HOW.temperature, -1e30)
        token = int(jax.random.categorical(choice_key(key, t), z))
        after = step(problem, state, token, chance_key(key, t))
        row, mask, turns = [*row, token], [*mask, 1], [*turns, turn]
        reward.append(float(after.reward))
        feedback.append(tuple(map(float, after.feedback)))
        state, turn = after.state, turn + bool(after.turn_ended)
        answer = [int(word) for word in after.observation if word]
        if after.terminated:
            return row, mask, reward, turns, feedback, "terminated"
        row, mask = row + answer, mask + [0] * len(answer)
        reward, turns = reward + [0.0] * len(answer), turns + [-1] * len(answer)
        feedback += [(0.0, 0.0)] * len(answer)
        if after.truncated or limit - len(row) < 1 + TASK.observation_capacity:
            return row, mask, reward, turns, feedback, "truncated"


def test_equals_a_loop_over_full_forward_passes():
    rollout, _ = sampled(lanes=7)
    every = episode_keys(keys, SAMPLES)
    ends = set()
    for n, k in np.ndindex(PROBLEMS, SAMPLES):
        problem = jax.tree.map(lambda leaf, n=n: leaf[n], problems)
        tokens, mask, reward, turns, feedback, end = follow(problem, every[n, k])
        size = len(tokens)
        ends.add((end, size > 8))
        assert rollout.length[n, k] == size
        for got, want in (
            (rollout.tokens, tokens),
            (rollout.mask, mask),
            (rollout.reward, reward),
            (rollout.turn, turns),
            (rollout.feedback, feedback),
        ):
            np.testing.assert_array_equal(got[n, k, :size], want)
        assert not rollout.tokens[n, k, size:].any() and not rollout.mask[n, k, size:].any()
        assert rollout.terminated[n, k] == (end == "terminated")
        assert rollout.truncated[n, k] == (end == "truncated")
    assert len(ends) == 4  # short and long ones of both ends: the test saw them all


def assert_same_episodes(got, wanted):
    exact = {"log_prob": None, "key": None}
    assert same_bits(got._replace(**exact), wanted._replace(**exact))
    assert (got.key == wanted.key).all()
    np.testing.assert_allclose(got.log_prob, wanted.log_prob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("devices", [0, 1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 7, PROBLEMS * SAMPLES])
def test_same_episodes_for_every_number_of_lanes_and_devices(lanes, devices):  # FL-032
    got, price = sampled(lanes, devices)
    wanted, other_price = sampled()
    assert_same_episodes(jax.device_get(got), jax.device_get(wanted))
    for name in ("tokens_sampled", "tokens_scored", "environment_steps"):
        assert getattr(price, name) == getattr(other_price, name)


def test_decoding_with_observations_agrees_with_a_full_pass():  # FL-069
    rollout, _ = sampled(lanes=5)
    scores = quick_jit(lambda r: score(POLICY, PARAMS, r.tokens, sampling=HOW, legal=r.legal))
    difference = jnp.where(rollout.mask, scores(rollout).log_prob - rollout.log_prob, 0)
    assert jnp.abs(difference).max() < 1e-5
    after_an_answer = rollout.mask[..., 1:] & ~rollout.mask[..., :-1]
    assert after_an_answer.sum() > 2 * PROBLEMS * SAMPLES  # more than the prompts alone


def test_no_collective_on_four_devices():
    """Summing the price is the only one, and it is left out here."""
    layout = Layout(3, make_mesh())
    where = {"samples": SAMPLES, "sampling": HOW, "layout": layout}
    run = jax.jit(lambda params, *drawn: sample(POLICY, params, TASK, *drawn, **where)[0])
    text = run.lower(replicated(layout.mesh, PARAMS), problems, keys).compile().as_text()
    assert "while" in text and not re.search(COLLECTIVES, text)


def test_price_counts_lane_steps_and_what_they_wrote():
    for lanes in (1, 7, None):
        rollout, price = sampled(lanes)
        prompts = SAMPLES * jnp.sum(problems.prompt_length)
        written = jnp.sum(rollout.length) - prompts
        assert price.lane_steps - price.idle_lane_steps == written
        assert price.tokens_sampled == price.environment_steps == rollout.mask.sum()
        assert price.tokens_scored == jnp.sum(problems.prompt_length)
    one, padded = sampled(1)[1], sampled()[1]
    assert one.idle_lane_steps == 0 < padded.idle_lane_steps
    longest = jnp.max(sampled()[0].length - problems.prompt_length[:, None])
    assert padded.lane_steps == longest * PROBLEMS * SAMPLES


def occupancy(price):
    return 1 - price.idle_lane_steps / price.lane_steps


def test_refilled_lanes_are_busy_where_padded_ones_wait():
    """256 episodes of 1 to 16 tokens, evenly spread, on 32 lanes; the last ones on 8."""
    texts = ["?" * (n % 16) + "$" for n in range(256)]
    made = scripts(*texts, horizon=16)
    before_the_end = made.legal.sum(axis=-1) > 1
    made = made._replace(legal=made.legal.at[..., VOCABULARY.index("$")].set(~before_the_end))
    policy, params = network()

    def run(lanes):
        where = {"samples": 1, "sampling": Sampling(legal=True), "layout": Layout(lanes)}
        drawn = (made, jax.random.split(jax.random.key(0), 256))
        task = tape(horizon=16)
        return quick_jit(lambda *drawn: sample(policy, params, task, *drawn, **where))(*drawn)

    (padded, padded_price), (refilled, price) = run(256), run(32)
    assert set(np.asarray(padded.length - 2).ravel()) == set(range(1, 17))
    assert_same_episodes(refilled, padded)
    assert occupancy(padded_price) < 0.75 and occupancy(price) > 0.9


def test_the_cache_follows_the_lanes():
    policy, params = network(width=64, heads=4, kv_heads=4)
    drawn = draw_problems(TASK, jax.random.key(0), 8)

    def temporary(lanes):
        where = {"samples": 32, "sampling": HOW, "layout": Layout(lanes)}
        run = quick_jit(lambda *drawn: sample(policy, params, TASK, *drawn, **where))
        return run.lower(*drawn).compile().memory_analysis().temp_size_in_bytes

    cache_of_a_lane = 2 * (CAPACITY + TASK.horizon) * 64 * 4
    assert temporary(256) - temporary(8) > (256 - 8) * cache_of_a_lane


def test_problems_must_divide_over_the_devices():
    layout = Layout(None, make_mesh())
    few = jax.tree.map(lambda leaf: leaf[:6], problems)
    with pytest.raises(InputError, match="6 problems do not divide over 4 devices"):
        sample(POLICY, PARAMS, TASK, few, keys[:6], samples=1, sampling=HOW, layout=layout)
