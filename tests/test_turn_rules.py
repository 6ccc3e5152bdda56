"""Rules of turns, log-ratios and entropy: what they come to in simple cases, and known traps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit import masked, units
from rlcredit.advantages import ADVANTAGES
from rlcredit.advantages.top_entropy import _largest
from rlcredit.testing.grafts import graft
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout

RNG = np.random.default_rng(2)
ROLLOUT = graft(RNG, random_rollout(RNG, 4, 4))
MASK = ROLLOUT.mask
EVIDENCE = evidence_for(RNG, ROLLOUT, ["value", "ref_log_prob", "entropy", "unit"])
ONE_UNIT = np.where(MASK, 0, -1).astype(np.int32)
TOKENS = np.asarray(units.token(ROLLOUT))
close = functools.partial(np.testing.assert_allclose, atol=1e-5)


def credit(name, rollout=ROLLOUT, **given):
    return jax.jit(functools.partial(ADVANTAGES[name], **given))(rollout)


def test_turn_ppo_lies_between_a_bandit_and_gae():
    done = ROLLOUT._replace(terminated=np.ones_like(ROLLOUT.terminated))
    value = EVIDENCE["value"]
    bandit, target = credit("turn_ppo", done, unit=ONE_UNIT, value=value)
    total = masked.sum(done.reward, MASK, axis=-1)[..., None]
    first = jnp.take_along_axis(value, jnp.argmax(MASK, axis=-1)[..., None], axis=-1)
    close(bandit, np.where(MASK, total - first, 0))
    close(target, np.where(MASK, total, 0))
    how = {"discount": 0.9, "lambda_": 0.7, "value": value}
    close(credit("turn_ppo", unit=TOKENS, **how)[0], credit("gae", **how))


def test_poad_counts_actions_and_not_tokens():
    """Trap: a discount of every token makes an action worth less the longer it takes to say."""
    value = np.zeros_like(EVIDENCE["value"])
    mask = np.zeros((1, 2, 8), bool)
    mask[0, 0, 2:4], mask[0, 1, 2:8] = True, True  # two actions of one token; one of 5, one of 1
    unit = np.full(mask.shape, -1, np.int32)
    unit[0, 0, 2:4], unit[0, 1, 2:7], unit[0, 1, 7] = [0, 1], 0, 1
    reward = np.zeros(mask.shape, np.float32)
    reward[0, 0, 3] = reward[0, 1, 7] = 1
    tiny = random_rollout(np.random.default_rng(0), 1, 2, 8)._replace(
        mask=mask, reward=reward, terminated=np.ones((1, 2), bool), length=np.array([[4, 8]])
    )
    value = np.zeros((1, 2, 9), np.float32)
    how = {"value": value, "discount": 0.5, "lambda_": 1.0}
    found = np.asarray(credit("poad", tiny, unit=unit, **how))
    close(found[mask], [0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 1])
    naive = np.asarray(credit("gae", tiny, **how))
    close(naive[0, 1, 2], 0.5**5)


def test_poad_without_discount_is_gae():
    how = {"value": EVIDENCE["value"], "discount": 1.0, "lambda_": 0.8}
    close(credit("poad", unit=EVIDENCE["unit"], **how), credit("gae", **how))


def test_bilevel_gae_with_units_of_one_token_is_gae_over_turns():
    how = {"value": EVIDENCE["value"], "lambda_": 0.8}
    found = credit("bilevel_gae", unit=TOKENS, turn_discount=0.9, discount=0.3, **how)
    close(found, credit("gae", discount=0.9, **how))


def test_a_turn_that_earns_nothing_is_a_turn():
    """Trap: where turns are found by rewards that are not 0, it is lost in the next one."""
    mask = np.zeros((1, 1, 6), bool)
    mask[0, 0, 1:5] = True
    unit = np.array([[[-1, 0, 0, 1, 1, -1]]], np.int32)
    reward = np.where(np.arange(6) == 4, np.float32(1), 0)[None, None]  # the first turn earns 0
    tiny = random_rollout(np.random.default_rng(0), 1, 1, 6)._replace(
        mask=mask, reward=reward, terminated=np.ones((1, 1), bool), length=np.array([[5]])
    )
    value = np.arange(7, dtype=np.float32)[None, None] / 10
    how = {"value": value, "turn_discount": 0.5}
    found = np.asarray(credit("bilevel_gae", tiny, unit=unit, **how))[mask]
    # B1 = 1 - 0.4 = 0.6; B0 = 0.5 * 0.4 - 0.2 + 0.5 * 0.6 = 0.3; tokens go to the turn's return.
    close(found, [0.3 + 0.2 - 0.1, 0.3, 0.6 + 0.4 - 0.3, 0.6])
    merged = np.asarray(credit("bilevel_gae", tiny, unit=np.where(mask, 0, -1), **how))[mask]
    assert not np.allclose(found, merged)


AT_THE_REFERENCE = {
    "prl": "grpo",
    "spro": "grpo",
    "r_to_q": "dr_grpo",
    "rloo_kl": "rloo",
    "reinforce_pp": "reinforce",
}


@pytest.mark.parametrize("name, outcome", AT_THE_REFERENCE.items())
def test_log_ratios_say_nothing_while_the_policy_is_its_reference(name, outcome):
    """Trap: on the first update of a stage they are all 0."""
    close(credit(name, ref_log_prob=ROLLOUT.log_prob), credit(outcome))
    assert not np.allclose(credit(name, ref_log_prob=EVIDENCE["ref_log_prob"]), credit(outcome))


def test_ppo_kl_is_gae_while_the_policy_is_its_reference():
    how = {"value": EVIDENCE["value"], "lambda_": 0.95}
    close(credit("ppo_kl", ref_log_prob=ROLLOUT.log_prob, **how), credit("gae", **how))


def test_spro_compares_by_number_whatever_the_steps_are():
    """Trap: two samples in the same step are compared at other tokens if one of them is longer."""
    mask = np.zeros((1, 2, 5), bool)
    mask[0, 0, 1:4], mask[0, 1, 1:3] = True, True
    ratio = np.array([[[0, 0, 0, 1.0, 0], [0, 0, 1.0, 0, 0]]], np.float32)  # the last of each
    tiny = random_rollout(np.random.default_rng(0), 1, 2, 5)._replace(
        mask=mask, reward=np.zeros(mask.shape, np.float32), log_prob=ratio
    )
    found = np.asarray(credit("spro", tiny, ref_log_prob=np.zeros_like(ratio), beta=1.0))
    close(found[0, 0, 1:4], [0, -0.5, 0])  # the third token is compared with nobody
    close(found[0, 1, 1:3], [0, 0.5])


def test_entropy_weighs_and_never_turns_the_outcome():
    outcome = np.asarray(credit("grpo"))
    weighed = np.asarray(credit("gtpo", entropy=EVIDENCE["entropy"], beta=3.0))
    assert np.all(weighed * outcome >= 0) and not np.allclose(weighed, outcome)
    close(credit("gtpo", entropy=EVIDENCE["entropy"], beta=0.0), outcome)
    same = np.where(MASK, np.float32(2), 0)
    close(credit("gtpo", entropy=same, beta=3.0), outcome)


def test_the_top_tokens_of_the_batch_keep_their_credit():
    entropy, share = EVIDENCE["entropy"], 0.25
    outcome = np.asarray(credit("grpo"))
    found = np.asarray(credit("top_entropy", entropy=entropy, share=share))
    least = np.sort(entropy[MASK])[::-1][int(np.ceil(share * MASK.sum())) - 1]
    close(found, np.where(MASK & (entropy >= least), outcome, 0))
    close(credit("top_entropy", entropy=entropy, share=1.0), outcome)


@pytest.mark.parametrize("number", [1, 3, 6, 7])
def test_the_largest_entries_are_found_in_their_order(number):
    numbers = np.float32([2.5, -1, 0, -np.inf, 2.5, 1e-30, -3])
    found = jax.jit(_largest)(numbers, jnp.int32(number))
    assert found == np.sort(numbers)[::-1][number - 1]


def test_planning_tokens_have_more_praise_and_less_blame():
    outcome = np.asarray(credit("grpo"))
    unit = EVIDENCE["unit"]
    found = np.asarray(credit("hicra", unit=unit, alpha=0.2))
    first = np.asarray(units.opens(unit))
    assert np.any(outcome[first] > 0) and np.any(outcome[first] < 0)
    close(found[first], np.where(outcome[first] > 0, 1.2, 0.8) * outcome[first])
    close(found[~first], outcome[~first])
