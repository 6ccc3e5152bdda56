"""The course of an episode: mask, reward, steps, ends and the work that it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import CAPACITY, HORIZON, encode, network, quick_jit, scripts, tape

from rlcredit.rollout import drop_unscored, sample
from rlcredit.types import Sampling

WIDTH = CAPACITY + HORIZON
texts = ("ab$", "a;b;c$", "abcdef", "a.b;.$", "abc", "$")
lengths = np.asarray([2, 4, 1, 3, 2, 4])
limits = np.asarray([-1, -1, -1, 4, 3, 1])  # the fourth episode ends at no limit: `$` comes fifth
cut = ("ab$", "a;b;c$", "abcdef", "a.b;", "abc", "$")  # what is then chosen


class Recorder:
    """Counts what the sampler asks of a policy while it runs."""

    def __init__(self, policy):
        self.slots, self.written, self.policy = [], [], policy

    def wrapped(self):
        def init_cache(batch, slots):
            self.slots.append(slots)
            return self.policy.init_cache(batch, slots)

        def extend(params, cache, tokens, slot):
            jax.debug.callback(self.written.append, jnp.max(slot) + tokens.shape[1])
            return self.policy.extend(params, cache, tokens, slot)

        return self.policy._replace(init_cache=init_cache, extend=extend)


@pytest.fixture(scope="module")
def follow():
    """`follow(problems)`: the rollout that its legal tokens dictate, slots, last slots written."""
    policy, params = network()
    recorder = Recorder(policy)

    @quick_jit
    def run(problems, keys):
        how = Sampling(legal=True)
        policy = recorder.wrapped()
        return sample(policy, params, tape(), problems, keys, samples=2, sampling=how)[0]

    def call(problems):
        recorder.written.clear()
        rollout = run(problems, jax.random.split(jax.random.key(0), len(texts)))
        jax.effects_barrier()
        return rollout, recorder.slots[-1], sorted(map(int, recorder.written))

    return call


@pytest.fixture(scope="module")
def rollout(follow):
    return follow(scripts(*texts, prompt_length=lengths, limit=limits))[0]


def rows(function):
    """[N, K, T]: the numbers `function(text)` where the text stands, 0 elsewhere."""
    expected = np.zeros((len(texts), 2, WIDTH))
    for row, text, length in zip(expected, cut, lengths, strict=True):
        row[:, length : length + len(text)] = function(text)
    return expected


def test_tokens_are_the_prompt_and_then_what_was_chosen(rollout):
    expected = rows(encode)
    for row, length in zip(expected, lengths, strict=True):
        row[:, :length] = 1 + np.arange(length) % 3
    assert (np.asarray(rollout.tokens) == expected).all()
    assert rollout.tokens.dtype == jnp.int32 and rollout.tokens.shape == (6, 2, WIDTH)


def test_mask_covers_the_choices_and_the_end_token_alone(rollout):  # FL-058, FL-059
    assert (np.asarray(rollout.mask) == rows(lambda text: [1] * len(text))).all()
    assert (np.asarray(rollout.length) == (lengths + [len(text) for text in cut])[:, None]).all()


def test_nothing_is_earned_after_the_end(rollout):  # FL-147
    assert (np.asarray(rollout.reward) == rows(lambda text: [1] * len(text))).all()


def test_what_stands_off_the_mask_is_empty(rollout):
    off = ~rollout.mask
    assert not jnp.where(off, rollout.reward, 0).any() and not rollout.log_prob[off].any()
    assert (rollout.step[off] == -1).all() and (rollout.turn[off] == -1).all()
    assert not rollout.legal[off].any() and not rollout.log_prob.any()  # forced: probability 1


def test_steps_and_turns_are_numbered_by_their_delimiters(rollout):
    numbers = {
        "step": {"a;b;c$": [0, 0, 1, 1, 2, 2], "a.b;": [0, 0, 0, 0]},
        "turn": {"a;b;c$": [0] * 6, "a.b;": [0, 0, 1, 1]},
    }
    for field, by_text in numbers.items():
        expected = rows(lambda text, t=by_text: np.asarray(t.get(text, [0] * len(text))) + 1) - 1
        assert (np.asarray(getattr(rollout, field)) == expected).all()


def test_an_episode_is_terminated_or_truncated(rollout):
    terminated = [True, True, False, False, False, True]  # the last one reached its limit as well
    assert rollout.terminated[:, 0].tolist() == terminated
    assert (rollout.truncated == ~rollout.terminated).all()


def test_a_reward_is_paid_where_it_was_earned(follow):
    reward = [0, 0, 5, 7, 7, 7]
    rollout, *_ = follow(scripts(*["ab$"] * len(texts), reward=reward, prompt_length=lengths))
    for row, length in zip(np.asarray(rollout.reward), lengths, strict=True):
        assert np.flatnonzero(row[0]).tolist() == [length + 2] and row[0, length + 2] == 5


def test_the_cache_holds_exactly_what_is_written(follow):  # FL-070
    _, slots, written = follow(scripts(*["abcdef"] * len(texts), prompt_length=lengths))
    assert slots == WIDTH
    assert written == list(range(CAPACITY, WIDTH + 1))


def test_the_loop_stops_with_the_last_episode(follow):
    for longest, made in ((1, ["$"] * 6), (3, ["$"] * 5 + ["ab$"])):
        _, _, written = follow(scripts(*made, prompt_length=lengths))
        assert len(written) == 1 + longest  # one reads the prompts


def test_an_episode_without_a_score_is_dropped(follow):  # FL-024
    reward = np.ones((len(texts), HORIZON), np.float32)
    reward[0, 1], reward[1, 5], reward[3, 5] = np.nan, np.inf, np.nan  # the last lies after the end
    scripted = scripts(*texts, reward=reward, prompt_length=lengths, limit=limits)
    before = follow(scripted)[0]
    after = quick_jit(drop_unscored)(before)
    dropped = np.asarray([True, True, False, False, False, False])
    assert not after.mask[dropped].any() and not after.reward[dropped].any()
    for a, b in zip(after, before, strict=True):
        if a is not None and not isinstance(a, tuple):
            assert (a[~dropped] == b[~dropped]).all()
    assert jnp.isfinite(after.reward).all()


def test_what_is_dropped_is_empty_like_all_that_is_off_the_mask(follow):
    reward = np.full((len(texts), HORIZON), np.nan, np.float32)
    after = quick_jit(drop_unscored)(follow(scripts(*texts, reward=reward))[0])
    assert not after.mask.any() and not after.reward.any()
    assert (after.step == -1).all() and (after.turn == -1).all() and not after.legal.any()
