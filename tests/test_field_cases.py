"""Field cases of credit: recursions in time, ends of episodes, groups, rewards, whitening."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from field_cases import CASES, case

from rlcredit import credit, masked, recurrence
from rlcredit.advantages import ADVANTAGES
from rlcredit.advantages.outcome import episode_return
from rlcredit.losses import LOSSES, value_loss
from rlcredit.rollout import drop_unscored
from rlcredit.testing import rollouts


def test_every_case_has_a_test():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_field_cases*.py"))
    assert set(re.findall(r'@case\("(FL-\d+)"\)', text)) == set(CASES)


def one_row(given, *, mask=None, final=0.0, terminated=True):
    """A rollout of one episode, and evidence value with `final` after the last token."""
    values = given["values"]
    mask = np.ones(len(values), bool) if mask is None else mask.astype(bool)
    reward = given["rewards"] if "rewards" in given else paid(given["score"], mask)
    filler = rollouts.random_rollout(np.random.default_rng(0), 1, 1, max(len(values), 3))
    rollout = filler._replace(
        mask=mask[None, None],
        reward=np.asarray(reward)[None, None],
        length=np.full((1, 1), len(values), np.int32),
        terminated=np.full((1, 1), terminated),
    )
    return rollout, {"value": np.append(values, np.float32(final))[None, None]}


def paid(score, mask):
    """A scalar score is paid to the last chosen token."""
    return jnp.where(recurrence.last_chosen(mask), np.float32(score), 0)


def gae(given, rollout, evidence):
    settings = {"discount": given["gamma"], "lambda_": given["lam"]}
    rule = credit.bind("gae", ADVANTAGES, "advantage", settings)
    result = jax.jit(functools.partial(credit.assign, rule))(rollout, evidence)
    return result.advantage[0, 0], result.target[0, 0]


def gae_of_a_row(given, next_value, ends):
    """Several episodes in one row."""
    arrays = (given["rewards"], given["values"], np.ones(len(ends), bool), next_value[-1])
    settings = {"discount": given["gamma"], "lambda_": given["lam"]}
    several = {"ends": ends.astype(bool), "bootstrap": next_value}
    return jax.jit(functools.partial(recurrence.gae, **settings))(*arrays, **several)[0]


def group_rollout(rewards):
    """[N, K] rewards, one chosen token each."""
    reward = np.asarray(rewards, np.float32)[..., None]
    filler = rollouts.random_rollout(np.random.default_rng(0), *reward.shape[:2], 3)
    padded = np.pad(reward, ((0, 0), (0, 0), (1, 1)))
    return filler._replace(mask=np.ones(padded.shape, bool) & [False, True, False], reward=padded)


def group_credit(name, rewards, **settings):
    return jax.jit(functools.partial(ADVANTAGES[name], **settings))(group_rollout(rewards))[..., 1]


@case("FL-001")
def test_observations_are_no_steps_of_the_recursion(given, expected):
    mask = given["mask"].astype(bool)
    advantage, target = gae(given, *one_row(given, mask=mask))
    expected.check(advantage, "advantages", "_faulty_all_positions")
    expected.check(target[mask], "returns_at_policy")


@case("FL-002")
def test_the_score_reaches_the_last_chosen_token_without_discount(given, expected):
    rollout, evidence = one_row(given, mask=given["mask"])
    expected.check(rollout.reward[0, 0], "token_rewards")
    advantage, _ = gae(given, rollout, evidence)
    expected.check(advantage, "advantages")
    assert not np.allclose(advantage[:2], expected["_faulty_advantages_at_policy"])


@case("FL-003")
def test_return_minus_value_at_chosen_tokens_and_0_elsewhere(given, expected):
    advantage, _ = gae(given, *one_row(given, mask=given["mask"]))
    expected.check(advantage, "advantages", "_faulty_all_positions")


@case("FL-006")
def test_terminated_and_truncated_differ(given, expected):
    final = given["next_values"][int(given["end_at"])]
    for ending, terminated in (("terminated", True), ("truncated", False)):
        advantage, _ = gae(given, *one_row(given, final=final, terminated=terminated))
        expected.check(advantage, f"advantages_if_{ending}")


@case("FL-007")
def test_a_truncated_episode_bootstraps_with_its_own_final_value(given, expected):
    advantage = gae_of_a_row(given, given["next_values"], given["truncated"])
    expected.check(advantage, "advantages")
    assert abs(advantage[1] - expected["_faulty_advantage_at_1"]) > 1


@case("FL-008")
def test_the_length_cap_truncates_and_bootstraps(given, expected):
    """The choice of the project; with terminated=True an experiment gets the other."""
    final = given["bootstrap_value"]
    capped, _ = gae(given, *one_row(given, final=final, terminated=False))
    expected.check(capped, "advantages_bootstrap", "advantages_terminal")
    ended, _ = gae(given, *one_row(given, final=final))
    expected.check(ended, "advantages_terminal")


@case("FL-009")
def test_the_recursion_is_cut_at_every_end(given, expected):
    next_value = np.where(given["terminated"], 0, given["next_values"])
    ends = given["truncated"] + given["terminated"]
    advantage = gae_of_a_row(given, next_value, ends)
    expected.check(advantage, "advantages")
    assert not np.allclose(advantage[:2], expected["_faulty_first_two"])


@case("FL-012")
def test_a_row_cut_within_an_episode_uses_the_value_after_its_last_token(given, expected):
    row = one_row(given, final=given["last_value"], terminated=False)
    expected.check(gae(given, *row)[0], "advantages", "_faulty_no_last_value")


@case("FL-013")
def test_an_end_is_the_last_token_of_an_episode_not_the_first(given, expected):
    advantage = gae_of_a_row(given, np.zeros(4, np.float32), given["done_end"])
    expected.check(advantage, "advantages", "_faulty_start_semantics")


@case("FL-014")
def test_returns_of_two_episodes_in_a_row(given, expected):
    """200 random rows with random ends are in test_recurrence.py."""
    ends = given["terminated"].astype(bool) | (np.arange(6) == 5)
    mask = np.ones(6, bool)
    got = recurrence.discounted_return(given["rewards"], mask, ends, discount=given["gamma"])
    expected.check(got, "returns", "_faulty_no_cut")


@case("FL-018")
def test_groups_of_equal_rewards_give_exactly_zero(given, expected):
    """Every group size and reward is in test_advantages.py."""
    faulty = expected["_faulty_jax_f32"]
    for group, fault in zip(given["groups_f32"], faulty, strict=True):
        advantage = group_credit("grpo", [group], eps=given["eps"])
        assert not np.any(advantage) and abs(fault) > expected.atol


@case("FL-019")
def test_a_group_of_one_gets_zero(given, expected):
    """The documented fallback of leave-one-out too; credit.check_group_size refuses such runs."""
    for name in ("grpo", "dr_grpo", "rloo"):
        expected.check(group_credit(name, given["rewards"]), "group_relative")


@case("FL-020")
def test_each_baseline_convention(given, expected):
    """GRPO divides by the population's deviation; the sample's is in masked.std alone."""
    rewards = given["rewards"][None]
    ends = np.array([0, -1])
    expected.check(group_credit("grpo", rewards)[0, ends], "population_std", "sample_std")
    expected.check(group_credit("dr_grpo", rewards)[0, ends], "mean_only")
    expected.check(group_credit("rloo", rewards)[0, ends], "leave_one_out")
    everyone = np.ones(8, bool)
    deviation = masked.std(rewards[0], everyone, sample=True)
    centred = masked.center(rewards[0], everyone) / deviation
    expected.check(centred[ends], "sample_std", "population_std")


@case("FL-022")
def test_a_group_is_what_shares_a_problem_whatever_the_order(given, expected):
    """Groups are an axis: samples are put in their problem's row, and read back from there."""
    ids = np.array(given["group_ids"])
    rows = np.stack([np.flatnonzero(ids == name) for name in sorted(set(ids))])
    advantage = np.zeros(4)
    advantage[rows] = group_credit("dr_grpo", given["rewards"][rows])
    expected.check(advantage, "advantages", "_faulty_reshape", "_faulty_batch")


@case("FL-024")
def test_an_unscored_sample_is_in_no_statistic(given, expected):
    rollout = drop_unscored(group_rollout(np.float32(given["rewards"])[None]))
    advantage = ADVANTAGES["dr_grpo"](rollout)
    expected.check(advantage[0, :, 1], "advantages", "_faulty_nan_as_zero")
    assert not np.any(rollout.mask[0, 1])


@case("FL-086")
def test_whitening_uses_chosen_tokens_alone(given, expected):
    """With the population's deviation; the sample's would be another function."""
    x, mask = given["advantages"], given["mask"].astype(bool)
    expected.check(masked.whiten(x, mask), "population", "sample")
    expected.check(masked.center(x, mask) / masked.std(x, mask, sample=True), "sample")
    assert masked.mean(x, mask) != expected["_faulty_mean"] == x.mean()


@case("FL-087")
def test_whitening_one_token_or_none_is_finite(given, expected):
    """The choice of the project is 0 after centring, the first of the two."""
    x, mask = given["advantages"], given["mask"].astype(bool)
    np.testing.assert_array_equal(masked.whiten(x, mask), expected["any_of"][0])
    assert not np.any(masked.whiten(x, np.zeros_like(mask)))


@case("FL-090")
def test_the_score_is_paid_to_the_last_chosen_token(given, expected):
    rewards = paid(given["score"], given["mask"].astype(bool))
    expected.check(rewards, "token_rewards", "_faulty")


@case("FL-091")
def test_a_row_without_a_chosen_token_is_paid_nothing(given, expected):
    rewards = paid(given["scores"][:, None], given["masks"].astype(bool))
    expected.check(rewards, "token_rewards")
    assert not np.allclose(rewards[0], expected["_faulty_row0"])


@case("FL-128")
def test_constant_groups_have_a_finite_gradient(given, expected):
    rewards = given["rewards"][None]

    def total(reward):
        return jnp.sum(jnp.square(ADVANTAGES["grpo"](rollout._replace(reward=reward))))

    rollout = group_rollout(rewards)
    expected.check(group_credit("grpo", rewards)[0], "advantages")
    gradient = jax.jit(jax.grad(total))(rollout.reward)
    assert np.isfinite(gradient).all() == expected["grad_finite"]
    assert np.isfinite(jax.grad(masked.std)(rewards[0], np.ones(2, bool))).all()
    assert np.isnan(jax.grad(jnp.std)(rewards[0])).all()  # the fault


@case("FL-143")
def test_the_final_observation_of_an_episode_is_what_it_bootstraps_with(given, expected):
    value = 10 * given["states"]
    after = given["returned_obs"].copy()
    after[2] = given["final_obs_at_2"]
    settings = {"gamma": 1.0, "lam": 0.0, "rewards": np.zeros_like(value), "values": value}
    ends = np.array([0, 0, 1, 0])
    expected.check(gae_of_a_row(settings, 10 * after, ends), "advantages")
    reset = gae_of_a_row(settings, 10 * given["returned_obs"], ends)
    assert reset[2] == expected["_faulty_at_2"]


@case("FL-147")
def test_rewards_after_the_end_count_for_nothing(given, expected):
    done = given["done"].astype(bool)
    mask = np.concatenate([[True], ~np.logical_or.accumulate(done)[:-1]])
    np.testing.assert_array_equal(mask, expected["mask"].astype(bool))
    raw = {"rewards": given["raw_rewards"], "values": np.zeros(4, np.float32)}
    rollout, _ = one_row(raw, mask=mask)
    total, _ = episode_return(rollout)
    expected.check(total[0, 0], "episode_return", "_faulty_return")
    advantage = ADVANTAGES["reinforce"](rollout, discount=0.0)[0, 0]
    expected.check(advantage, "rewards")


@case("FL-152")
def test_targets_and_advantages_are_constants(given, expected):
    one, row = np.ones((1, 1, 1), np.float32), {"rewards": np.float32([1, 0]), "score": 0}
    loss = jax.grad(lambda v: value_loss(v * one, given["target"] * one, 0 * one, one)[0])
    expected.check(loss(given["v"]), "grad_value_loss_half_mse")
    rollout, evidence = one_row(row | {"values": np.float32([0.5, 0.25])})
    rule = credit.bind("gae", ADVANTAGES, "advantage")

    def policy_loss(value):
        advantage = credit.assign(rule, rollout, {"value": value}).advantage
        log_prob = -jnp.ones_like(advantage)
        return LOSSES["ppo"](log_prob, log_prob, advantage, jnp.ones_like(advantage))[0]

    slope = jax.jit(jax.grad(policy_loss))(evidence["value"])
    expected.check(np.abs(slope).max(), "grad_policy_loss_wrt_value")
