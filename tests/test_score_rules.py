"""Rules of step scores, prefix scores and coalitions: cases by hand, conservation, reductions."""

import functools

import jax
import numpy as np
import pytest
from stubs import quick_jit
from tree_reference import CASES, LEGAL, policy_of, problems_of

from rlcredit.advantages.capo import capo
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.finepo import finepo
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.pure import pure
from rlcredit.advantages.red import red
from rlcredit.advantages.rloo import rloo
from rlcredit.advantages.scar import scar
from rlcredit.coalitions import joined, orders
from rlcredit.exact.tree import enumerate_episodes, present
from rlcredit.exact.values import exact
from rlcredit.testing import rollouts
from rlcredit.testing.subject import example, make_subject
from rlcredit.types import InputError

pure = quick_jit(pure, static_argnames="form")
capo, dr_grpo, finepo, grpo, red, rloo, scar = map(
    quick_jit, (capo, dr_grpo, finepo, grpo, red, rloo, scar)
)
SAMPLES, LENGTH = 3, 6  # of all groups, so that little is compiled


def group(unit, score, total, length=LENGTH):
    """(rollout, unit, scores [1, K, T]) of one problem; `unit` has -1 where no token was chosen.

    Args: score: [K][units]; total: [K] returns, earned with the last token.
    """
    unit = padded(unit, -1, length).astype(np.int32)
    filler = rollouts.random_rollout(np.random.default_rng(0), *unit.shape)
    reward, scored = np.zeros((2, *unit.shape), np.float32)
    for k in range(len(total)):
        at = np.flatnonzero(unit[0, k] >= 0)
        scored[0, k, at] = np.asarray(score[k])[unit[0, k, at]]
        reward[0, k, at[-1:]] = total[k]
    return filler._replace(mask=unit >= 0, reward=reward), unit, scored


def padded(rows, empty=0, length=LENGTH):
    """[1, K, T] rows and empty ones."""
    rows = np.asarray(rows)
    more = ((0, SAMPLES - rows.shape[0]), (0, length - rows.shape[1]))
    return np.pad(rows, more, constant_values=empty)[None]


def drawn(rule, seed=0, **shape):
    return example(make_subject(rule), seed, **shape)


# PURE


def test_pure_by_hand_in_the_hard_form():
    """Scores 1/2 -1 1 and 1/5, returns 1 and 0: baselines 1/5 and -1/3 a unit, RLOO 1 and -1."""
    unit = [[-1, 0, 0, 1, 2], [0, -1, 0, -1, -1]]
    rollout, unit, score = group(unit, [[0.5, -1, 1], [0.2]], [1, 0])
    wanted = [[0, -0.6, -0.6, -0.4, 0.8], [-7 / 15, 0, -7 / 15, 0, 0]]
    credit = pure(rollout, unit=unit, step_score=score, form="hard")
    np.testing.assert_allclose(credit, padded(wanted), atol=1e-6)


def test_the_soft_form_becomes_the_hard_one_where_the_lowest_score_is_alone():
    rollout, unit, score = group([[0, 1, 2, 2]] * 2, [[0.5, -1, 1], [0.2, 0.3, 0.4]], [1, 0])
    measured = {"unit": unit, "step_score": score}
    hard = np.asarray(pure(rollout, **measured, form="hard"))
    near, far = (np.asarray(pure(rollout, **measured, temperature=t)) for t in (0.002, 1.0))
    np.testing.assert_allclose(near, hard, atol=1e-5)
    assert np.abs(far - hard).max() > 0.1


@pytest.mark.parametrize("form", ["soft", "hard"])
def test_a_unit_is_not_paid_for_being_one_of_many(form):
    """Alone in its group an episode has no baseline: its first credit is the sum of its scores."""
    for score in ([0.4], [0.4] * 4):
        rollout, unit, score = group([np.arange(len(score))], [score], [0])
        credit = pure(rollout, unit=unit, step_score=score, form=form)
        assert credit[0, 0, 0] == pytest.approx(0.4)


def test_the_scores_sum_up_to_about_the_lowest():
    rollout, unit, score = group([np.arange(4)], [[0.9, -0.2, 0.6, -0.3]], [0])
    whole = float(pure(rollout, unit=unit, step_score=score)[0, 0, 0])
    assert -0.3 < whole < -0.2


def test_without_scores_pure_is_rloo():
    rollout, measured = drawn(pure)
    credit = pure(rollout, unit=measured["unit"], step_score=0 * measured["step_score"])
    np.testing.assert_allclose(credit, rloo(rollout), atol=1e-6)


def test_another_form_of_pure_is_refused():
    rollout, measured = drawn(pure)
    with pytest.raises(InputError, match="form='mean'; take one of soft, hard"):
        pure(rollout, **measured, form="mean")


# FinePO


def chosen_sum(x, rollout):
    return np.where(rollout.mask, x, 0).sum(axis=-1)


def test_finepo_by_hand():
    """Steps of 1, 2 and 1 tokens, scores 1 0 -1; returns 1 and 0: half of the credit moves."""
    unit, scores = [[0, 1, 1, 2]] * 2, [[1, 0, -1]] * 2
    rollout, _, score = group(unit, scores, [1, 0])
    credit = finepo(rollout, step_score=score, alpha=0.5)
    wanted = [[0.75, 0.5, 0.5, 0.25], [-0.25, -0.5, -0.5, -0.75]]
    np.testing.assert_allclose(credit, padded(wanted), atol=1e-5)


def test_finepo_keeps_the_credit_of_an_episode_until_it_clips():
    rollout, measured = drawn(finepo)
    whole = dr_grpo(rollout)
    gentle = finepo(rollout, **measured, alpha=0.01, beta=100.0)
    assert np.abs(gentle - whole).max() > 1e-3
    np.testing.assert_allclose(chosen_sum(gentle - whole, rollout), 0, atol=1e-5)
    clipped = finepo(rollout, **measured)
    assert np.abs(chosen_sum(clipped - whole, rollout)).max() > 0.1


def test_finepo_never_turns_the_sign():
    rollout, measured = drawn(finepo)
    whole, credit = (np.asarray(a) for a in (dr_grpo(rollout), finepo(rollout, **measured)))
    assert (whole * credit >= 0).all()
    assert (np.abs(credit) <= 2 * np.abs(whole) + 1e-6).all()


def test_the_best_step_of_a_success_has_twice_its_credit_and_of_a_failure_none():
    rollout, _, score = group([[0, 1, 2]] * 2, [[0.3, 0.9, 0.1]] * 2, [1, 0])
    credit = finepo(rollout, step_score=score)[0]
    np.testing.assert_allclose(credit[:2, 1], [1, 0], atol=1e-5)


def test_with_one_score_for_all_finepo_is_dr_grpo():
    rollout, measured = drawn(finepo)
    credit = finepo(rollout, step_score=np.full_like(measured["step_score"], 0.3))
    np.testing.assert_array_equal(credit, dr_grpo(rollout))


# CAPO


def test_capo_by_hand():
    """r is 2 2 1 for the success, 0 -1 0 for the failure: mean 2/3, deviation 1.105."""
    rollout, _, score = group([[0, 1, 2]] * 2, [[1, 0, -0.1], [1, -1, 1]], [1, 0])
    reward = np.array([[2, 2, 1], [0, -1, 0]])
    wanted = (reward - 2 / 3) / np.sqrt(11 / 9)
    np.testing.assert_allclose(capo(rollout, step_score=score), padded(wanted), rtol=1e-4)


@pytest.mark.parametrize("process, above", [(1.0, True), (3.0, False)])
def test_whole_above_process_keeps_success_above_failure(process, above):
    rollout, _, score = group([[0, 1]] * 2, [[1, -1], [1, 1]], [1, 0])
    credit = capo(rollout, step_score=score, process=process)[0]
    assert (credit[0, 1] > credit[1, 0]) == above


def test_without_wrong_steps_capo_is_grpo_where_lengths_are_equal():
    rollout, _, score = group([[0, 1]] * 3, [[1, 1]] * 3, [1, 0, 0.5])
    np.testing.assert_allclose(capo(rollout, step_score=score), grpo(rollout), atol=1e-5)
    longer, _, score = group([[0, 1], [0, 1], [0, -1]], [[1, 1]] * 3, [1, 0, 0.5])
    assert np.abs(capo(longer, step_score=score) - grpo(longer)).max() > 0.05


# RED


@functools.cache
def truth_of(name):
    """(the rollout of all episodes, prefix scores that know all, exact advantage, present)."""
    task, (policy, params) = CASES[name], policy_of(name)

    @quick_jit
    def grown(params, problems):
        tree = enumerate_episodes(task, problems, legal=True, capacity=64)
        return tree._replace(rollout=tree.rollout._replace(key=None)), exact(
            policy, params, tree, LEGAL
        )

    tree, truth = jax.device_get(grown(params, problems_of(task)))
    earned = np.cumsum(tree.rollout.reward, axis=-1) - tree.rollout.reward
    there = np.asarray(present(tree))
    return tree.rollout, earned + truth.value[..., :-1], truth.advantage, there


@pytest.mark.parametrize("name, equal", [("recovery", True), ("chance", False)])
def test_red_with_a_score_that_knows_all_is_the_exact_advantage(name, equal):
    """Not where the task takes chances: its answer is no credit."""
    rollout, score, wanted, there = truth_of(name)
    credit = red(rollout, prefix_score=score, ref_log_prob=rollout.log_prob)
    difference = np.abs(np.asarray(credit) - wanted)[there]
    assert np.abs(wanted[there]).max() > 0.1
    assert (difference.max() < 1e-5) == equal


def test_red_sums_up_to_the_return_minus_the_score_of_the_prompt():
    rollout, measured = drawn(red)
    total = chosen_sum(red(rollout, **measured), rollout)
    present = rollout.mask.any(axis=-1)
    first = np.take_along_axis(
        measured["prefix_score"], rollout.mask.argmax(axis=-1)[..., None], axis=-1
    )[..., 0]
    wanted = np.where(present, chosen_sum(rollout.reward, rollout) - first, 0)
    np.testing.assert_allclose(total, wanted, atol=1e-5)


def test_red_to_go_is_the_return_minus_the_score_before():
    """What RLOO or PPO would see of it: shaping by a potential."""
    rollout, measured = drawn(red)
    mask, credit = rollout.mask, np.asarray(red(rollout, **measured))
    to_go = np.cumsum(credit[..., ::-1], axis=-1)[..., ::-1]
    left = chosen_sum(rollout.reward, rollout)[..., None] - measured["prefix_score"]
    np.testing.assert_allclose(to_go[mask], left[mask], atol=1e-5)


def test_red_without_the_mix_is_the_reward_minus_the_kl():
    rollout, measured = drawn(red)
    credit = red(rollout, **measured, mix=0.0, beta=0.5)
    k1 = rollout.log_prob - measured["ref_log_prob"]
    wanted = np.where(rollout.mask, rollout.reward - 0.5 * k1, 0)
    np.testing.assert_allclose(credit, wanted, atol=1e-6)


# SCAR


def test_the_shares_of_an_episode_sum_up_to_what_it_adds():
    """Each unit once; half of the return comes at the end with alpha = 1/2."""
    rollout, unit, _ = group([[0, 1, 2]], np.zeros((1, 3)), [0.75])
    game = np.random.default_rng(1).normal(size=(1, SAMPLES, 8)).astype(np.float32)
    whole = game[0, 0, -1] - game[0, 0, 0]
    credit = scar(rollout, unit=unit, coalition_value=game)
    assert credit.sum() == pytest.approx(whole, abs=1e-5)
    mixed = scar(rollout, unit=unit, coalition_value=game, alpha=0.5)
    assert mixed.sum() == pytest.approx(0.5 * whole + 0.5 * 0.75, abs=1e-5)
    np.testing.assert_allclose(mixed[0, 0, :2], 0.5 * credit[0, 0, :2], rtol=1e-6)


def test_with_one_unit_scar_is_the_return_minus_a_sampled_value():
    rollout, unit, _ = group([[0, 0], [0, -1]], [[0], [0]], [1, 0.25])
    game = np.float32([[[0.4, 1], [0.6, 0.25], [0, 0]]])
    credit = scar(rollout, unit=unit, coalition_value=game)
    np.testing.assert_allclose(credit, padded([[0.6, 0.6], [-0.35, 0]]), rtol=1e-6)


def test_units_beyond_the_players_are_one_with_the_last():
    rollout, unit, _ = group([[0, 1, 2, 3]], [np.zeros(4)], [1])
    additive = np.float32([[[0, 0.25, 0.5, 0.75]] * SAMPLES])
    credit = scar(rollout, unit=unit, coalition_value=additive)
    np.testing.assert_allclose(credit, padded([[0.25, 0.5, 0.5, 0.5]]), rtol=1e-6)


def test_along_orders_an_additive_game_is_exact():
    """Player u adds u / 8 whenever it joins; there are 12 of them, too many for all coalitions."""
    rollout, unit, _ = group([np.arange(12)], [np.zeros(12)], [1], length=12)
    value = (joined(orders(12, 5)) * np.arange(12) / 8).sum(axis=-1).astype(np.float32)
    game = np.broadcast_to(value, (1, SAMPLES, *value.shape))
    credit = scar(rollout, unit=unit, coalition_value=game)
    np.testing.assert_allclose(credit[0, 0], np.arange(12) / 8, atol=1e-6)
