"""The report card of a credit rule, on two mazes that are gone through in full."""

import functools
from unittest import mock

import jax
import numpy as np
import pytest
from stubs import parameters, quick_jit
from tree_reference import CASES, ground_of, problems_of

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import EVIDENCE
from rlcredit.losses import REDUCERS
from rlcredit.oracle import Card, make_judge, report
from rlcredit.oracle.judge import make_measured, with_critic
from rlcredit.types import InputError, Price

FIGURES = {
    *("bias", "cosine", "variance", "signal", "shift_rmse"),
    *("rmse", "spearman", "sign_accuracy", "leakage", "recall", "spearman_shuffled"),
}


def ground():
    return ground_of("maze", "separate")


@functools.cache
def judge_of(rule, critic="exact", reduce=None, **hyperparameters):
    bound = credit.bind(rule, ADVANTAGES, "advantage", hyperparameters)
    with mock.patch.object(jax, "jit", quick_jit):
        return make_judge(
            bound, ground().context, samples=2, draws=24, critic=critic, reduce=reduce
        )


@functools.cache
def card_of(rule, critic="exact", **hyperparameters) -> Card:
    return judge_of(rule, critic, **hyperparameters)(ground(), jax.random.key(7))


def value_of(card, name):
    return card.figures[name].value


def test_a_perfect_rule_has_a_perfect_card():
    card = card_of("exact")
    assert set(card.figures) == FIGURES and card.company == "none" and not card.asks_for_value
    perfect = {"bias": 0, "cosine": 1, "shift_rmse": 0, "rmse": 0, "spearman": 1}
    perfect |= {"sign_accuracy": 1}
    for name, wanted in perfect.items():
        np.testing.assert_allclose(value_of(card, name), wanted, atol=1e-5, err_msg=name)
    assert value_of(card, "leakage") < 0.1
    assert np.isnan(value_of(card, "recall"))  # every move is a decision


def test_a_report_is_the_judges_card_on_the_prepared_ground():
    rule, context = credit.bind("exact", ADVANTAGES, "advantage"), ground().context
    with mock.patch.object(jax, "jit", quick_jit):
        card = report(
            rule, context, problems_of(context.task), jax.random.key(7), samples=2, draws=24
        )
    for name, figure in card_of("exact").figures.items():
        np.testing.assert_allclose(card.figures[name], figure, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule, kind, bias", [("rloo", "every", 0), ("dr_grpo", "every", 0.5)])
def test_rules_that_compare_samples_are_judged_in_every_company(rule, kind, bias):
    card = card_of(rule)
    assert card.company == kind
    np.testing.assert_allclose(value_of(card, "bias"), bias, atol=1e-5)
    np.testing.assert_allclose(value_of(card, "cosine"), 1, atol=1e-5)
    assert value_of(card, "spearman") < 0.9


def test_rules_that_compare_problems_are_judged_in_drawn_company():
    card = card_of("reinforce_baseline")
    assert card.company == "drawn"
    np.testing.assert_allclose(value_of(card, "bias"), 0.25, atol=1e-4)


def test_weights_that_compare_problems_put_a_rule_in_drawn_company():
    judge = judge_of("exact", reduce=REDUCERS["token_mean"])
    assert judge(ground(), jax.random.key(7)).company == "drawn"


def test_variance_is_the_mean_noise_and_signal_what_stands_out_of_it():
    card = card_of("reinforce")
    variance, signal = card.figures["variance"], card.figures["signal"]
    assert card.noise.shape == (24,)
    np.testing.assert_allclose(variance.value, card.noise.mean())
    assert variance.low < variance.value < variance.high
    size = float(np.sum(np.asarray(ground().gradient, float) ** 2))  # an unbiased rule
    np.testing.assert_allclose(signal.value * variance.value, size, rtol=1e-3)
    np.testing.assert_allclose([signal.low * variance.high, signal.high * variance.low], size, 1e-3)
    assert value_of(card_of("exact"), "variance") < variance.value


def test_the_variance_is_that_of_independent_episodes():
    """One update is the mean of N * K episodes, so it follows from the second moment of one."""
    here = ground()
    scores = np.pad(np.asarray(here.scores, float), ((0, 0), (0, 1), (0, 0)))
    chance = np.asarray(here.truth.probability, float)
    reward = np.asarray(here.tree.rollout.reward, float)
    to_go = np.cumsum(reward[..., ::-1], axis=-1)[..., ::-1]
    variance = 0.0
    for n in range(2):
        per_row = np.einsum("mt,mtp->mp", to_go[n], scores[n, np.asarray(here.edge[n])])
        mean = chance[n] @ per_row
        variance += chance[n] @ np.sum((per_row - mean) ** 2, axis=1) / 2 / 4  # K = 2, N^2 = 4
    estimate = card_of("reinforce").figures["variance"]
    assert estimate.low - 0.2 * variance <= variance <= estimate.high + 0.2 * variance


def test_a_rule_that_looks_at_when_rewards_came_loses_by_their_shuffle():
    card = card_of("gae", lambda_=0.0)
    assert value_of(card, "spearman") > 0.99
    assert card.figures["spearman_shuffled"].high < value_of(card, "spearman") - 0.2


def test_a_rule_that_does_not_is_left_as_it_was():
    card = card_of("grpo")
    assert value_of(card, "spearman") > 0
    np.testing.assert_allclose(
        card.figures["spearman_shuffled"], card.figures["spearman"], atol=0.05
    )


def test_critics_give_different_cards():
    exact, trained, constant = (
        value_of(card_of("gae", critic, lambda_=0.0), "rmse")
        for critic in ("exact", "trained", "constant")
    )
    assert exact < 1e-5 and min(trained, constant) > 0.01 and abs(trained - constant) > 0.01
    assert card_of("gae", lambda_=0.0).asks_for_value


def test_what_a_critic_is_and_costs():
    context, truth = ground().context, ground().truth
    mean = float(np.mean(np.sum(truth.probability * truth.total, axis=1)))
    found = {}
    for critic in ("exact", "constant"):
        measured = make_measured(("value", "exact_value"), context, critic, EVIDENCE)
        found[critic] = measured(ground(), jax.random.key(0))
        np.testing.assert_array_equal(found[critic]["exact_value"], truth.value)
    np.testing.assert_array_equal(found["exact"]["value"], truth.value)
    np.testing.assert_allclose(found["constant"]["value"], mean, atol=1e-6)
    free = with_critic("constant", EVIDENCE)["value"](context, ground().tree.rollout, None)[1]
    assert free == Price()
    assert with_critic("exact", EVIDENCE)["value"] is EVIDENCE["exact_value"]
    assert with_critic("trained", EVIDENCE)["value"] is EVIDENCE["value"]


def test_what_cannot_be_judged_is_refused_by_name():
    rule = credit.bind("gae", ADVANTAGES, "advantage")
    with pytest.raises(InputError, match="critic='oracle' is none of exact, trained, constant"):
        make_judge(rule, ground().context, samples=2, critic="oracle")
    replayed = credit.bind("gigpo", ADVANTAGES, "advantage")
    assert "fingerprint" in replayed.evidence
    slippery = ground().context._replace(task=CASES["slip"])
    with pytest.raises(InputError, match=r"'gigpo' asks for fingerprint, which replays .*'maze'"):
        make_judge(replayed, slippery, samples=2)
    make_judge(replayed, ground().context, samples=2)


def test_grounds_of_the_same_sizes_need_no_new_compilation():
    """With other parameters, whose critic is then another one."""
    first = card_of("gae", "trained", lambda_=0.0)
    params = parameters(ground().context.policy, seed=8)
    other = ground()._replace(context=ground().context._replace(params=params))
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    second = judge_of("gae", "trained", lambda_=0.0)(other, jax.random.key(7))
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not seen
    assert value_of(first, "rmse") != value_of(second, "rmse")


def test_the_same_key_gives_the_same_card_and_another_one_other_draws():
    judge = judge_of("reinforce")
    again, other = judge(ground(), jax.random.key(7)), judge(ground(), jax.random.key(8))
    assert again.figures == card_of("reinforce").figures
    assert value_of(other, "variance") != value_of(again, "variance")
    np.testing.assert_allclose(value_of(other, "bias"), value_of(again, "bias"), atol=1e-5)
