"""Prefixes are restored exactly, and what is sampled after them is what the policy would do."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import HORIZON, network, quick_jit, same_bits, scripts, talk, talks, tape

from rlcredit import masked, update
from rlcredit.branching import branch, grow, join
from rlcredit.credit import Credit
from rlcredit.cuts import every
from rlcredit.episode import states
from rlcredit.evidence import Context
from rlcredit.keys import branch_keys, chance_key, position_keys
from rlcredit.rollout import sample
from rlcredit.score import score
from rlcredit.sharding import make_mesh
from rlcredit.types import InputError, Layout, Sampling, owned

PROBLEMS, SAMPLES, CONTINUATIONS = 4, 2, 3
TASK, HOW = talk(), Sampling(0.8, legal=True)
POLICY, PARAMS = network()
problems, keys = talks(PROBLEMS), jax.random.split(jax.random.key(5), PROBLEMS)
BRANCHING, SEGMENT = (2, 3, 2), 2


@functools.cache
def roots():
    where = {"samples": SAMPLES, "sampling": HOW}
    return quick_jit(lambda *drawn: sample(POLICY, PARAMS, TASK, *drawn, **where)[0])(
        problems, keys
    )


def positions():
    """The first and third chosen token of every row (-1 for none), and an observation or prompt."""
    return jnp.stack(
        [every(1)(roots(), 0), every(1)(roots(), 2), jnp.zeros((PROBLEMS, SAMPLES), int)], axis=-1
    )


@functools.cache
def branched(lanes=None, devices=0, seed=0):
    mesh = make_mesh(jax.devices()[:devices]) if devices else None
    where = {"sampling": HOW, "layout": Layout(lanes, mesh)}

    @quick_jit
    def run(rollout, key):
        return branch(POLICY, PARAMS, TASK, rollout, positions(), CONTINUATIONS, key, **where)

    return run(roots(), jax.random.key(seed))


@functools.cache
def tree(segment=SEGMENT):
    @quick_jit
    def run(*drawn):
        how = {"branching": BRANCHING, "cut": every(segment), "sampling": HOW}
        return grow(POLICY, PARAMS, TASK, *drawn, **how)

    return run(problems, keys)


def by_origin(values):
    """[N, K * P * C, ...] -> [N, K, P, C, ...]."""
    return values.reshape(PROBLEMS, SAMPLES, 3, CONTINUATIONS, *values.shape[2:])


def exists(rollout):
    return np.asarray(rollout.mask.any(axis=-1))


def test_new_rows_hold_the_prefix_of_their_parent_and_leave_it():
    rollout, root = branched()[0], roots()
    assert (by_origin(rollout.parent) == np.arange(SAMPLES)[None, :, None, None]).all()
    at = np.asarray(positions())
    for n, k, p in np.ndindex(at.shape):
        t = at[n, k, p]
        for row in range(CONTINUATIONS):
            new = jax.tree.map(
                lambda leaf, i=(n, k, p, row): by_origin(leaf)[i],
                rollout._replace(problem=None, key=None),
            )
            if t < 0 or not root.mask[n, k, t]:
                assert new.length == 0 and not new.tokens.any() and not new.mask.any()
                continue
            assert new.branch_at == t and new.mask[t] and new.length > t
            for name in ("tokens", "mask", "reward", "log_prob", "step", "turn", "feedback"):
                mine, theirs = getattr(new, name), getattr(root, name)[n, k]
                np.testing.assert_array_equal(mine[:t], theirs[:t], err_msg=name)
    assert exists(rollout).any() and not exists(rollout).all()


def replayed(rollout):
    """(reward, feedback) that the task gives for the tokens of every row, from the start."""

    def one(problem, own_keys, tokens, mask):
        before = states(TASK, problem, own_keys, tokens, mask)

        def answer(position, state, token):
            key = chance_key(own_keys[position], position)
            after = TASK.step(problem, state, token, key)
            return after.reward, after.feedback, after.observation

        here = jax.tree.map(lambda leaf: leaf[:-1], before)
        return jax.vmap(answer)(jnp.arange(tokens.size), here, tokens)

    rows = jax.vmap(one, (None, 0, 0, 0))
    return quick_jit(jax.vmap(rows))(
        rollout.problem, position_keys(rollout), rollout.tokens, rollout.mask
    )


@pytest.mark.parametrize("grown", [False, True], ids=["branches", "tree"])
def test_a_replay_from_the_start_gives_what_happened(grown):
    """State, chance and observations of a continuation are those of an unbroken episode."""
    rollout = tree()[0] if grown else join(roots(), branched()[0])
    reward, feedback, observation = map(np.asarray, replayed(rollout))
    mask, tokens = np.asarray(rollout.mask), np.asarray(rollout.tokens)
    np.testing.assert_array_equal(np.where(mask, reward, 0), rollout.reward)
    np.testing.assert_array_equal(np.where(mask[..., None], feedback, 0), rollout.feedback)
    heard = 0
    for n, k, t in np.argwhere(mask):
        answer = observation[n, k, t][observation[n, k, t] > 0]
        following = tokens[n, k, t + 1 : t + 1 + answer.size]
        at_the_end = t + 1 == rollout.length[n, k]
        assert at_the_end or (following == answer).all()
        heard += answer.size and not at_the_end
    assert heard > 20


def test_log_probs_of_continuations_are_those_of_a_full_pass():
    rollout, _ = branched()
    scores = quick_jit(lambda r: score(POLICY, PARAMS, r.tokens, sampling=HOW, legal=r.legal))
    difference = jnp.where(rollout.mask, scores(rollout).log_prob - rollout.log_prob, 0)
    assert jnp.abs(difference).max() < 1e-5


@pytest.mark.parametrize("lanes, devices", [(1, 0), (5, 4), (None, 2)])
def test_same_continuations_for_every_number_of_lanes_and_devices(lanes, devices):
    got, wanted = (jax.device_get(branched(*how)[0]) for how in ((lanes, devices), (None, 0)))
    exact = {"log_prob": None, "key": None}
    assert same_bits(got._replace(**exact), wanted._replace(**exact))
    np.testing.assert_allclose(got.log_prob, wanted.log_prob, atol=1e-5, rtol=0)


def test_another_key_gives_other_continuations():
    assert same_bits(branched(seed=0)[0].tokens, branched(seed=0)[0].tokens)
    assert not same_bits(branched(seed=0)[0].tokens, branched(seed=1)[0].tokens)
    at = jnp.broadcast_to(jnp.arange(3), positions().shape)
    made = branch_keys(roots().key, jax.random.key(0), at, CONTINUATIONS)
    bits = np.asarray(jax.random.key_data(made)).reshape(-1, 2)
    assert len({row.tobytes() for row in bits}) == made.size


def test_price_of_branches():
    rollout, price = branched()
    at, root = np.asarray(positions()), roots()
    new = int(owned(rollout).sum())
    furthest = np.maximum(at, 0).max(axis=2)
    before = np.arange(root.mask.shape[2]) < furthest[..., None]
    assert price.tokens_sampled == new
    assert price.tokens_scored == furthest.sum()
    assert price.environment_steps == new + (np.asarray(root.mask) & before).sum()


def test_every_row_of_a_tree_is_its_parent_up_to_its_branch():
    rollout, price = tree()
    assert rollout.tokens.shape[1] == 12
    parent, at = np.asarray(rollout.parent), np.asarray(rollout.branch_at)
    number = np.asarray(jnp.cumsum(rollout.mask, axis=-1)) - 1
    for n, k in np.argwhere(exists(rollout)):
        p, t = parent[n, k], at[n, k]
        assert p <= k
        np.testing.assert_array_equal(rollout.tokens[n, k, :t], rollout.tokens[n, p, :t])
        if k >= BRANCHING[0]:
            stage = 1 if k < BRANCHING[0] * BRANCHING[1] else 2
            assert rollout.mask[n, k, t] and number[n, k, t] == stage * SEGMENT
        else:
            assert p == k and t == 0
    nodes = {
        (n, np.asarray(rollout.tokens)[n, k, : t + 1].tobytes(), t)
        for n, k, t in np.argwhere(np.asarray(owned(rollout)))
    }
    assert owned(rollout).sum() == price.tokens_sampled >= len(nodes)
    assert owned(rollout).sum() < rollout.mask.sum()


def test_rows_that_end_before_the_cut_stay_single():
    rollout, _ = tree(segment=20)
    assert exists(rollout)[:, :2].all() and not exists(rollout)[:, 2:].any()
    assert not rollout.length[:, 2:].any()


def test_a_shared_token_is_learned_from_once():
    rollout, _ = tree()
    credit = Credit(jnp.where(rollout.mask, 1.0, 0.0), None)
    batch = update.make_batch(rollout, credit, {})
    np.testing.assert_array_equal(batch.mask, owned(rollout))


def test_every_counts_chosen_tokens():
    rollout = roots()
    for tokens, stage in ((1, 0), (1, 3), (2, 1), (3, 2)):
        cut = np.asarray(every(tokens)(rollout, stage))
        for n, k in np.ndindex(cut.shape):
            chosen = np.flatnonzero(rollout.mask[n, k])
            wanted = chosen[tokens * stage] if tokens * stage < chosen.size else -1
            assert cut[n, k] == wanted


@pytest.mark.parametrize("branching", [(), (2, 0)])
def test_impossible_trees_are_refused(branching):
    with pytest.raises(InputError, match="branching="):
        grow(POLICY, PARAMS, TASK, problems, keys, branching=branching, cut=every(1), sampling=HOW)


def test_continuations_of_a_certain_policy_are_the_episode_itself():
    """What is forced is found again, from every position."""
    forced = scripts("abc$", "ab;a.c", prompt_length=[2, 3])
    where, task = {"sampling": Sampling(legal=True)}, tape()
    run = quick_jit(lambda *drawn: sample(POLICY, PARAMS, task, *drawn, samples=1, **where)[0])
    rollout = run(forced, keys[:2])
    every_position = jnp.broadcast_to(jnp.arange(4 + HORIZON), (2, 1, 4 + HORIZON))
    again, _ = quick_jit(
        lambda r: branch(POLICY, PARAMS, task, r, every_position, 1, jax.random.key(0), **where)
    )(rollout)
    for n in range(2):
        for t in range(4 + HORIZON):
            if rollout.mask[n, 0, t]:
                np.testing.assert_array_equal(again.tokens[n, t], rollout.tokens[n, 0])
                np.testing.assert_array_equal(again.step[n, t], rollout.step[n, 0])
            else:
                assert again.length[n, t] == 0


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
    code = next(block for block in text.split("```") if "def branch_return" in block)
    names = {"jnp": jnp, "branch": branch, "masked": masked}
    exec(code.removeprefix("python"), names)
    context = Context(POLICY, PARAMS, PARAMS, TASK, HOW)
    value, price = quick_jit(lambda r: names["branch_return"](context, r, keys[0]))(roots())
    assert value.shape == roots().mask.shape and not value[~roots().mask].any()
    # Rewards here are positive: every chosen token has a continuation that earned something.
    assert (value[roots().mask] > 0).mean() > 0.9 and price.tokens_sampled > 0
