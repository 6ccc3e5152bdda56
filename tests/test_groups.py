"""Rules of group statistics, prefix groups and state groups: cases by hand, what reduces to what,
expected gradients; and the evidence `collision`.
"""

import functools
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_credit_identities as identities
from stubs import quick_jit

from rlcredit import masked, units
from rlcredit.advantages.agent_lightning import agent_lightning
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.gaca import gaca
from rlcredit.advantages.gdpo import gdpo
from rlcredit.advantages.gigpo import gigpo
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.grpo_passk import grpo_passk
from rlcredit.advantages.hgpo import hgpo
from rlcredit.advantages.maxrl import maxrl
from rlcredit.advantages.mt_grpo import mt_grpo
from rlcredit.advantages.opo import opo
from rlcredit.advantages.optimal_token_baseline import optimal_token_baseline
from rlcredit.advantages.salt import salt
from rlcredit.advantages.state_groups import groups, mean_in_group
from rlcredit.advantages.stratified_grpo import stratified_grpo
from rlcredit.advantages.tempo import tempo
from rlcredit.evidence import Context
from rlcredit.evidence.collision import collision
from rlcredit.evidence.edge import edge
from rlcredit.evidence.node import node
from rlcredit.score import score
from rlcredit.testing import rollouts
from rlcredit.testing.subject import example, make_subject
from rlcredit.types import InputError, Policy, Sampling

SAMPLES, LENGTH = 3, 6  # of all groups, so that little is compiled


@functools.cache
def program(rule, **fixed):
    return quick_jit(functools.partial(rule, **fixed))


def credit(rule, rollout, evidence=None, **fixed):
    """Numbers are traced, so that one program serves for all of them; counts are not."""
    numbers = {name: number for name, number in fixed.items() if isinstance(number, float)}
    counts = {name: number for name, number in fixed.items() if name not in numbers}
    return np.asarray(program(rule, **counts)(rollout, **(evidence or {}), **numbers))


def group(rewards, **numbers):
    """One problem of rows of `rewards`; None where no token was chosen.

    Args: numbers: `step` or `turn`, [K][T]; both are 0 where they are not given.
    """
    rows = [[*row, *[None] * (LENGTH - len(row))] for row in rewards]
    rows += [[None] * LENGTH] * (SAMPLES - len(rows))
    mask = np.array([[[number is not None for number in row] for row in rows]])
    reward = np.array([[[number or 0 for number in row] for row in rows]], np.float32)
    filler = rollouts.random_rollout(np.random.default_rng(0), *mask.shape)
    fields = {"step": np.zeros_like(mask), "turn": np.zeros_like(mask)}
    fields |= {name: padded(number) for name, number in numbers.items()}
    fields = {name: np.where(mask, n, -1).astype(np.int32) for name, n in fields.items()}
    log_prob = np.where(mask, -1, 0).astype(np.float32)
    return filler._replace(mask=mask, reward=reward, log_prob=log_prob, **fields)


def padded(rows, dtype=np.int32):
    """[1, K, T] rows, followed by zeros."""
    array = np.zeros((1, SAMPLES, LENGTH), dtype)
    for k, row in enumerate(rows):
        array[0, k, : len(row)] = row
    return array


def states(*rows):
    return {"fingerprint": padded(rows, np.uint32)}


def drawn(rule, seed=0, **shape):
    return example(make_subject(rule), seed, **shape)


def expected_gradient(rule, samples, evidence=lambda chosen: {}, returns=None):
    """E[grad of the mean over samples of A * log pi], over every group of problem 0."""
    rollout, _, chosen, probability = identities.enumerated([0], samples, identities.ARBITRARY)
    if returns is not None:
        rollout = rollout._replace(reward=np.where(rollout.mask, returns(chosen), 0))
    advantage = quick_jit(jax.vmap(lambda r, e: rule(r, **e)))(rollout, evidence(chosen))
    return identities.flat(
        identities.gradient_of_surrogate(identities.LOGITS, advantage, chosen, probability)
    )


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


# Whole episodes


def test_opo_by_hand():
    """Lengths 3 and 1, returns 0 and 4: the baseline is 1, not 2."""
    got = credit(opo, group([[0, 0, 0], [4]]))[0]
    np.testing.assert_allclose(got[:2, :3], [[-1, -1, -1], [3, 0, 0]], rtol=1e-6)


def test_opo_sums_up_to_zero_over_all_tokens_of_a_group():
    for seed in range(3):
        rollout, _ = drawn(opo, seed)
        got = credit(opo, rollout)
        np.testing.assert_allclose(got.sum(axis=(1, 2)), 0, atol=1e-5)
        assert np.abs(credit(dr_grpo, rollout).sum(axis=(1, 2))).max() > 1


def test_opo_with_equal_lengths_is_dr_grpo():
    rollout = group([[1, 0, 0], [0, None, 2, 0], [0, 0, 7]])
    np.testing.assert_allclose(credit(opo, rollout), credit(dr_grpo, rollout), atol=1e-6)


def test_opo_is_biased_and_not_by_a_factor_alone():
    true = identities.flat(identities.objective_gradient(0))
    assert cosine(expected_gradient(dr_grpo, 2), true) == pytest.approx(1, abs=1e-5)
    assert 0.5 < cosine(expected_gradient(opo, 2), true) < 0.999


def test_pass_at_k_pays_the_lead_of_the_best_alone():
    got = credit(grpo_passk, group([[3, 0], [1], [0, 2]]))[0]
    np.testing.assert_array_equal(got[:, :2], [[1, 1], [0, 0], [0, 0]])
    tied = credit(grpo_passk, group([[3], [3], [1]]))
    assert not np.any(tied)


def test_pass_at_k_of_one_sample_and_of_negative_returns():
    assert not np.any(credit(grpo_passk, group([[3, 0]])))
    got = credit(grpo_passk, group([[-3], [-1]]))[0]  # a row without tokens is no second best
    np.testing.assert_array_equal(got[:, 0], [0, 2, 0])


def test_k_times_the_update_of_pass_at_k_is_the_gradient_of_the_expected_best():
    returns = identities.RETURNS[0]
    best = np.maximum(returns[:, None], returns)

    def expected(logits):
        probability = jnp.exp(identities.token_log_prob(logits).sum(-1))
        return probability @ best @ probability

    true = identities.flat(jax.grad(expected)(identities.LOGITS))
    np.testing.assert_allclose(2 * expected_gradient(grpo_passk, 2), true, atol=1e-5)
    assert cosine(true, identities.flat(identities.objective_gradient(0))) < 0.999


def test_maxrl_by_hand():
    """One success of three: mean 1/3."""
    got = credit(maxrl, group([[1], [0, 0], [0]]))[0]
    np.testing.assert_allclose(got[:, 0], [2, -1, -1], rtol=1e-5)


@pytest.mark.parametrize("rewards", [[[0], [0]], [[-1], [1], [-1]], [[-1], [1]], [[2]]])
def test_maxrl_gives_nothing_where_the_mean_is_no_scale(rewards):
    """Means of 0 and below, and a single sample."""
    assert not np.any(credit(maxrl, group(rewards)))


def test_maxrl_has_the_gradient_of_a_sum_that_goes_to_log_p():
    """E[A given success] - E[A given failure]: the factor before the gradient of p."""
    for samples in (2, 5):
        won = np.arange(samples + 1)[:, None] > np.arange(samples)
        filler = rollouts.random_rollout(np.random.default_rng(0), *won.shape, 3)
        mask = np.broadcast_to(np.arange(3) == 0, (*won.shape, 3))
        reward = np.where(mask, won[..., None], 0).astype(np.float32)
        advantage = credit(maxrl, filler._replace(mask=mask, reward=reward), eps=0.0)[..., 0]
        for p in (0.1, 0.7):
            chance = [
                comb(samples - 1, j) * p**j * (1 - p) ** (samples - 1 - j) for j in range(samples)
            ]
            factor = np.array(chance) @ (advantage[1:, 0] - advantage[:-1, -1])
            assert factor == pytest.approx((1 - (1 - p) ** (samples - 1)) / p, rel=1e-5)


def with_feedback(rollout, *channels):
    return rollout._replace(feedback=np.stack(channels, axis=-1).astype(np.float32))


def test_gdpo_gives_every_channel_the_same_weight():
    """Returns 1 0 0 and a channel of 0 0 -1/100, both of deviation sqrt(2) / 3 of their size."""
    rollout = group([[0, 1], [0, 0], [0, 0]])
    late = padded([[0, 0], [0, 0], [-0.005, -0.005]], np.float32)
    got = credit(gdpo, with_feedback(rollout, late), eps=1e-9)[0, :, 0]
    unit = 3 / 2**0.5
    np.testing.assert_allclose(got, [unit, 0, -unit], atol=1e-4)


def test_gdpo_reads_feedback_at_chosen_tokens_alone():
    rollout = group([[0, 1], [0, None], [None, 0]])
    inside = padded([[3, 0], [1, 0], [0, 2]], np.float32)
    spoiled = np.where(rollout.mask, inside, np.nan)
    got = credit(gdpo, with_feedback(rollout, spoiled, inside))
    np.testing.assert_array_equal(got, credit(gdpo, with_feedback(rollout, inside, inside)))
    assert np.any(got)


def test_gdpo_without_differences_in_feedback_is_grpo():
    rollout = group([[0, 1], [0, 0], [2]])
    want = credit(grpo, rollout)
    np.testing.assert_allclose(credit(gdpo, rollout), want, atol=1e-6)
    constant = padded([[0.1], [0.1], [0.1]], np.float32)
    np.testing.assert_allclose(credit(gdpo, with_feedback(rollout, constant)), want, atol=1e-6)


# Turns


def test_stratified_grpo_compares_episodes_of_equally_many_turns():
    """Strata of returns 0 2 and of 5 alone."""
    rollout = group([[0, 0], [1, 1], [5]], turn=[[0, 1], [0, 1], [0]])
    inside = credit(stratified_grpo, rollout, alpha=1.0)[0]
    np.testing.assert_allclose(inside[:, :2], [[-1, -1], [1, 1], [0, 0]], atol=1e-5)
    whole = credit(grpo, rollout)
    np.testing.assert_array_equal(credit(stratified_grpo, rollout, alpha=0.0), whole)
    blend = credit(stratified_grpo, rollout, alpha=0.25)[0]
    np.testing.assert_allclose(blend, 0.25 * inside + 0.75 * whole[0], atol=1e-6)


def in_one_turn(rollout):
    return rollout._replace(turn=np.where(rollout.mask, 0, -1).astype(np.int32))


@pytest.mark.parametrize("rule", [stratified_grpo, agent_lightning, mt_grpo])
def test_with_one_turn_an_episode_it_is_grpo(rule):
    for seed in range(3):
        rollout, _ = drawn(rule, seed)
        want = credit(grpo, in_one_turn(rollout))
        np.testing.assert_allclose(credit(rule, in_one_turn(rollout)), want, atol=2e-6)
        assert np.abs(credit(rule, rollout) - want).max() > 0.1


def test_agent_lightning_counts_an_episode_once_for_each_of_its_turns():
    """One turn that fails, three that succeed: mean 3/4 and deviation sqrt(3/16)."""
    rollout = group([[0, 0], [0, 0, 0, 1]], turn=[[0, 0], [0, 1, 1, 2]])
    got = credit(agent_lightning, rollout)[0]
    np.testing.assert_allclose(got[0, :2], -(3**0.5), rtol=1e-5)
    np.testing.assert_allclose(got[1, :4], 3**-0.5, rtol=1e-5)


def test_agent_lightning_with_equally_many_turns_is_grpo():
    rollout = group([[0, 1], [0, 0], [2, 2, 0]], turn=[[0, 1], [0, 1], [0, 1, 1]])
    np.testing.assert_allclose(credit(agent_lightning, rollout), credit(grpo, rollout), atol=1e-6)


def test_mt_grpo_by_hand():
    """Earned before the last turn: 2 0 0; in it: 0 3 0. The last sample has one turn."""
    rollout = group([[1, 1, 0], [0, 0, 3], [0]], turn=[[0, 1, 2], [0, 0, 1], [0]])
    high, low = 2**0.5, -(2**-0.5)
    got = credit(mt_grpo, rollout, turn_coef=0.5)[0, :, :3]
    first, second = low + 0.5 * high, high + 0.5 * low
    wanted = [[first, first, low], [second, second, high], [low, 0, 0]]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_in_parts_that_are_equal_mt_grpo_gives_exactly_zero():
    """Differences in one part leave nothing in the other; means of 0.7 are not exact."""
    value = np.float32(0.7)
    rollout = group([[1, value], [2, value], [4, value]], turn=[[0, 1]] * 3)
    got = credit(mt_grpo, rollout)[0]
    assert np.all(got[:, 0]) and not np.any(got[:, 1])


# The optimal token baseline


def with_probability(rollout, probability):
    return rollout._replace(log_prob=np.log(np.where(rollout.mask, probability, 1)))


def test_the_optimal_token_baseline_by_hand():
    """Two actions, so the energy of probability p is 2 (1 - p)**2: 2 * (1/4, 1/16) and 2 * (1/16,
    1/4), together 1/2 5/8 and 1/8 5/8. Returns to go 4 4, 0 1 and of a third 9 at its one token, of
    which it was sure.
    """
    rollout = group([[0, 4], [-1, None, 1], [9]])
    p = padded([[1 / 2, 3 / 4], [3 / 4, 0, 1 / 2], [1]], np.float32)
    evidence = {"collision": p**2 + (1 - p) ** 2}
    got = credit(optimal_token_baseline, with_probability(rollout, p), evidence)[0]
    first, second = 16 / 5, 5 / 2
    wanted = [[4 - first, 4 - second, 0], [-first, 0, 1 - second], [9 - first, 0, 0]]
    np.testing.assert_allclose(got[:, :3], wanted, atol=1e-5)


def test_a_sample_that_is_alone_at_its_end_has_no_credit_there():
    """Tokens 2 and 3 of the first sample; where nobody's choice was open the mean is the plain."""
    rollout = group([[0, 0, 1, 1], [0, 1], [0, 0]])
    p = padded([[1] * 4] * 3, np.float32)
    got = credit(optimal_token_baseline, with_probability(rollout, p), {"collision": p})[0]
    np.testing.assert_allclose(got[:, 0], [1, 0, -1], atol=1e-6)
    np.testing.assert_array_equal(got[0, 2:], 0)


def test_weighted_credit_of_a_token_number_sums_up_to_zero():
    """So the baseline has the least weighted square; on rows with observations inside."""
    rollout, evidence = drawn(optimal_token_baseline, 1)
    got = credit(optimal_token_baseline, rollout, evidence)
    probability = np.exp(rollout.log_prob)
    energy = np.maximum(1 - 2 * probability + evidence["collision"], 0)
    weight = np.cumsum(np.where(rollout.mask, energy, 0), axis=-1)
    number = np.where(rollout.mask, np.cumsum(rollout.mask, axis=-1) - 1, -1)
    for u in range(4):
        sums = np.sum(np.where(number == u, weight * got, 0), axis=(1, 2))
        np.testing.assert_allclose(sums, 0, atol=1e-5)
    assert np.abs(got.sum(axis=(1, 2))).max() > 0.1


def collisions(chosen):
    first = jax.nn.softmax(identities.LOGITS["first"])
    second = jax.nn.softmax(identities.LOGITS["second"])
    after = np.sum(second**2, axis=-1)[identities.EPISODES[:, 0]]
    both = np.stack([np.full(len(after), np.sum(first**2)), after], axis=-1)
    return {"collision": both[chosen].astype(np.float32)}


def test_the_optimal_token_baseline_is_biased():
    """A group of two: (K - 1) / K of the gradient is what `dr_grpo` has."""
    true = identities.flat(identities.objective_gradient(0))
    got = expected_gradient(optimal_token_baseline, 2, collisions)
    assert 0.5 < cosine(got, true) < 0.999


def test_its_energy_is_the_squared_gradient_by_the_logits():
    logits = jnp.array([0.3, -1.0, 0.8, 0.1])
    p = jax.nn.softmax(logits)
    for action in range(4):
        slope = jax.grad(lambda z, a=action: jax.nn.log_softmax(z)[a])(logits)
        energy = 1 - 2 * p[action] + jnp.sum(p**2)
        np.testing.assert_allclose(jnp.sum(slope**2), energy, rtol=1e-5)


# Prefixes


def named(tokens, rewards):
    """(rollout, evidence) of rows of tokens that were all chosen; each ends with its reward."""
    rollout = group([[*[0] * (len(row) - 1), r] for row, r in zip(tokens, rewards, strict=True)])
    rollout = rollout._replace(tokens=padded(tokens))
    names = {"node": node, "edge": edge}
    return rollout, {n: np.asarray(f(None, rollout, None)[0]) for n, f in names.items()}


def test_tempo_by_hand():
    """Returns 3 1 2 of ab.., ac.., b..: mean 2; 2 after a, 2 at b, 3 at ab, 1 at ac."""
    rollout, evidence = named([[1, 2, 5], [1, 3, 5], [2, 4]], [3, 1, 2])
    got = credit(tempo, rollout, evidence, eps=0.0)[0] * (2 / 3) ** 0.5
    wanted = [[1, 2, 1], [-1, -2, -1], [0, 0, 0]]
    np.testing.assert_allclose(got[:, :3], wanted, atol=1e-5)


def test_tempo_is_grpo_from_where_a_sample_is_alone_and_where_all_go_on_alike():
    """All share two tokens, then part: twice the credit at that token alone."""
    rollout, evidence = named([[4, 4, 1, 6, 6], [4, 4, 2, 6], [4, 4, 3]], [1, 0, 5])
    got, want = credit(tempo, rollout, evidence), credit(grpo, rollout)
    parting = np.arange(LENGTH) == 2
    np.testing.assert_allclose(got, np.where(parting, 2 * want, want), atol=1e-5)


def test_tempo_differs_from_grpo_where_a_prefix_is_shared_by_some():
    rollout, evidence = named([[1, 1], [1, 2], [3, 1]], [1, 0, 0])
    got, want = credit(tempo, rollout, evidence)[0], credit(grpo, rollout)[0]
    np.testing.assert_allclose(got[:, 0] - want[:, 0], np.array([1, 1, -2]) / 8**0.5, atol=1e-4)


def test_tempo_credits_nobody_with_what_a_task_answers():
    """All choose the same; the observation between differs, and what comes of it."""
    rollout, evidence = named([[1, 5, 2], [1, 6, 2], [1, 6, 2]], [3, 0, 0])
    rollout = rollout._replace(mask=rollout.mask & (np.arange(LENGTH) != 1))
    got, want = credit(tempo, rollout, evidence), credit(grpo, rollout)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.any(got)


def test_tempo_counts_the_rows_of_a_tree_once_each():
    """Two rows from one prefix, one apart: returns 3 3 0 have mean 2, of the two prefixes 3/2."""
    rollout, evidence = named([[1, 1], [1, 2], [2, 1]], [3, 3, 0])
    tree = rollout._replace(parent=np.array([[0, 0, 2]]), branch_at=np.array([[0, 1, 0]]))
    got = credit(tempo, tree, evidence, eps=0.0)[0] * 2**0.5
    np.testing.assert_allclose(got[:, :2], [[2, 1], [2, 1], [-4, -2]], atol=1e-5)
    np.testing.assert_array_equal(credit(tempo, tree, evidence), credit(tempo, rollout, evidence))


# States


def test_hgpo_with_history_1_is_the_step_part_of_gigpo():
    differs = 0
    for seed in range(4):
        rollout, evidence = drawn(hgpo, seed)
        both, none = (credit(gigpo, rollout, evidence, omega=omega) for omega in (1.0, 0.0))
        got = credit(hgpo, rollout, evidence, history=1)
        np.testing.assert_allclose(got, both - none, atol=2e-6)
        differs += np.abs(credit(hgpo, rollout, evidence) - got).max() > 0.1
    assert differs


def test_hgpo_by_hand():
    """The second steps start in one state. Two of them came from the same state: returns to go 4 2
    of 4 2 0. Weights 2 and 3; the last one has no step to compare with at k = 2.
    """
    rollout = group([[0, 4], [0, 2], [0, 0]], step=[[0, 1]] * 3)
    evidence = states([1, 9], [1, 9], [2, 9])
    got = credit(hgpo, rollout, evidence, alpha=1.0)[0]
    wide = 1.5**0.5
    np.testing.assert_allclose(got[:, 1], [(2 * wide + 3) / 5, -3 / 5, -wide], atol=1e-5)
    np.testing.assert_allclose(got[:, 0], [1, -1, 0], atol=1e-5)
    flat = credit(hgpo, rollout, evidence, alpha=0.0)[0]
    np.testing.assert_allclose(flat[0, 1], (wide + 1) / 2, atol=1e-5)


@pytest.mark.parametrize(
    "places", [([1, 2, 9], [2, 1, 9], [9]), ([9], [9], [1, 9])], ids=["order", "start"]
)
def test_longer_contexts_that_nobody_shares_change_nothing(places):
    """1 2 and 2 1 are two contexts; the first step of an episode has none of two states."""
    steps = [list(range(len(place))) for place in places]
    rewards = [[*[0] * (len(place) - 1), r] for place, r in zip(places, (4, 0, 1), strict=True)]
    rollout = group(rewards, step=steps)
    one, two = (credit(hgpo, rollout, states(*places), history=h) for h in (1, 2))
    np.testing.assert_allclose(two, one, atol=1e-6)
    assert np.all(one[0, :2, 0])


def test_hgpo_refuses_a_history_without_states():
    rollout, evidence = drawn(hgpo)
    with pytest.raises(InputError, match="hgpo has no history=0; take 1 or more"):
        hgpo(rollout, **evidence, history=0)


def test_salt_by_hand():
    """Two samples go from 1 to 2, one of them twice; a success and a failure. The other failure
    goes from 1 to 3.
    """
    rollout = group([[0, 0, 0, 1], [0, 0], [0, 0]], step=[[0, 1, 2, 3], [0, 1], [0, 1]])
    evidence = states([1, 2, 1, 2], [1, 2], [1, 3])
    high, low = 2**0.5, -(2**-0.5)
    got = credit(salt, rollout, evidence)[0, :, :4]
    both = (high + low) / 2
    wanted = [[both, high, both, high], [both, low, 0, 0], [low, low, 0, 0]]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_a_step_that_all_samples_took_has_no_credit():
    rollout = group([[0, 1], [0, 0], [0, 4]], step=[[0, 1]] * 3)
    got = credit(salt, rollout, states([1, 2], [1, 2], [1, 2]))[0]
    np.testing.assert_allclose(got[:, 0], 0, atol=1e-6)
    np.testing.assert_array_equal(got[:, 1], credit(grpo, rollout)[0, :, 1])


def all_different(rollout):
    numbers = np.arange(1, rollout.mask.size + 1, dtype=np.uint32)
    return {"fingerprint": numbers.reshape(rollout.mask.shape)}


def test_salt_is_grpo_where_nothing_is_shared():
    for seed in range(3):
        rollout, evidence = drawn(salt, seed)
        want = credit(grpo, rollout)
        np.testing.assert_allclose(credit(salt, rollout, all_different(rollout)), want, atol=1e-6)
    assert np.abs(credit(salt, rollout, evidence) - want).max() > 0.1


@pytest.mark.parametrize("rule", [salt, hgpo, gaca])
def test_states_that_look_alike_are_taken_for_one(rule):
    """A state of the first sample is given the name of one that the second was in."""
    rollout = group([[0, 0, 1], [0, 0, 0], [0, 0, 0]], step=[[0, 1, 2]] * 3)
    true = states([1, 2, 3], [1, 4, 5], [1, 6, 7])
    aliased = states([1, 4, 3], [1, 4, 5], [1, 6, 7])
    told, mistaken = (credit(rule, rollout, e)[0] for e in (true, aliased))
    changed = np.abs(told - mistaken) > 0.01
    # `salt` is wrong about the step into the state, the others about the step out of it
    assert list(changed.any(axis=0)[:3]) == (
        [True, False, False] if rule is salt else [False, True, False]
    )


@pytest.mark.parametrize("rule", [hgpo, gaca])
def test_a_step_that_is_alone_in_its_state_has_no_credit_of_it(rule):
    rollout, _ = drawn(rule)
    got = credit(rule, rollout, all_different(rollout))
    if rule is hgpo:
        assert not np.any(got)
    else:
        certain = certainty(rollout)
        np.testing.assert_allclose(got, certain * credit(grpo, rollout), atol=1e-6)


def certainty(rollout):
    """The geometric mean of the probabilities of each token's step; 0 off the mask."""
    step = np.asarray(units.step(rollout))
    certain = np.zeros(rollout.mask.shape)
    for n, k, t in np.argwhere(rollout.mask):
        certain[n, k, t] = np.exp(np.mean(rollout.log_prob[n, k][step[n, k] == step[n, k, t]]))
    return certain


def test_gaca_lies_between_grpo_and_the_step_part_of_gigpo():
    rollout, evidence = drawn(gaca)
    surely = rollout._replace(log_prob=np.zeros_like(rollout.log_prob))
    np.testing.assert_allclose(credit(gaca, surely, evidence), credit(grpo, rollout), atol=1e-6)
    hardly = rollout._replace(log_prob=np.where(rollout.mask, -40, 0).astype(np.float32))
    of_step = credit(hgpo, rollout, evidence, history=1)
    np.testing.assert_allclose(credit(gaca, hardly, evidence), of_step, atol=1e-6)
    certain = certainty(rollout)
    blend = certain * credit(grpo, rollout) + (1 - certain) * of_step
    np.testing.assert_allclose(credit(gaca, rollout, evidence), blend, atol=1e-5)


def test_whitening_turns_credit_of_zero_into_credit():
    """Of six tokens three have 1 and one has -1; two are alone in their states."""
    rollout = group([[0, 0, 0, 4], [0, 0]], step=[[0, 0, 0, 1], [0, 1]])
    got = credit(hgpo, rollout, states([1, 1, 1, 2], [1, 3]), history=1)
    alone = rollout.mask & (got == 0)
    assert alone.sum() == 2
    assert np.all(np.asarray(masked.whiten(got, rollout.mask))[alone] < -0.1)


ALONE = (opo, grpo_passk, maxrl, gdpo, stratified_grpo, agent_lightning, mt_grpo, tempo, salt)


@pytest.mark.parametrize("rule", [*ALONE, optimal_token_baseline])
def test_one_sample_has_nothing_to_be_compared_with(rule):
    numbers = [[0, 1, 2]]
    rollout, names = named([[1, 2, 3]], [4])
    rollout = group([[1, 0, 4]], step=numbers, turn=numbers)._replace(tokens=rollout.tokens)
    known = names | states([1, 2, 1]) | {"collision": padded([[0.5] * 3], np.float32)}
    evidence = {name: known[name] for name in make_subject(rule).rule.evidence}
    assert not np.any(credit(rule, rollout, evidence))


# What they share


def test_groups_have_the_same_name_if_all_keys_are_the_same():
    rng = np.random.default_rng(0)
    member = rng.random((3, 4, 5)) < 0.7
    one, two = rng.integers(0, 3, (2, 3, 4, 5))
    large = np.uint32(2**31) + one.astype(np.uint32)  # beyond what float32 tells apart
    names = np.asarray(quick_jit(groups)(member, large, two))
    x = rng.normal(size=member.shape).astype(np.float32)
    means = np.asarray(quick_jit(mean_in_group)(x, names, member))
    for n, k, t in np.argwhere(member):
        same = member[n] & (one[n] == one[n, k, t]) & (two[n] == two[n, k, t])
        assert np.all(names[n][same] == np.flatnonzero(same)[0])
        assert np.count_nonzero(names[n][member[n]] == names[n, k, t]) == same.sum()
        assert means[n, k, t] == pytest.approx(x[n][same].mean(), abs=1e-6)
    assert not np.any(means[~member])


# Collision

TABLE = np.random.default_rng(0).normal(size=(rollouts.VOCABULARY, 4)).astype(np.float32)
HEAD = np.random.default_rng(1).normal(size=(4, rollouts.VOCABULARY)).astype(np.float32)


def by_table(head):
    """A policy that looks at the last token alone; `params` is its head."""
    nothing = dict.fromkeys(("init", "init_cache", "extend"))
    return Policy(
        **nothing,
        forward=lambda params, tokens: (jnp.asarray(TABLE)[tokens], None),
        head=lambda params: params,
        vocabulary=len(TABLE),
        has_value=False,
    )


def measured_collision(rollout, head, sampling):
    context = Context(by_table(head), jnp.asarray(head), None, None, sampling)
    found, price = quick_jit(lambda r: collision(context, r, None))(rollout)
    return context, np.asarray(found), price


@pytest.mark.parametrize("legal", [False, True])
def test_collision_is_the_sum_of_squared_probabilities(legal):
    rng = np.random.default_rng(2)
    rollout = rollouts.random_rollout(rng)
    allowed = rng.random((*rollout.mask.shape, len(TABLE))) < 0.6
    allowed |= np.arange(len(TABLE)) == rollout.tokens[..., None]
    rollout = rollout._replace(legal=allowed)
    context, got, price = measured_collision(rollout, HEAD, Sampling(temperature=0.7, legal=legal))
    z = TABLE[rollout.tokens[..., :-1]].astype(float) @ HEAD / 0.7
    weight = np.exp(z) * (allowed[..., 1:, :] if legal else 1)
    p = weight / weight.sum(-1, keepdims=True)
    mask = rollout.mask[..., 1:]
    np.testing.assert_allclose(got[..., 1:], np.where(mask, (p**2).sum(-1), 0), atol=1e-5)
    assert got.dtype == np.float32 and not np.any(got[..., 0])
    assert price.tokens_scored == rollout.length.sum() and price.tokens_sampled == 0
    chosen = score(
        context.policy, context.params, rollout.tokens, sampling=context.sampling, legal=allowed
    )
    assert np.all((got - np.exp(2 * chosen.log_prob))[rollout.mask] > -1e-6)


def test_collision_of_a_uniform_policy_and_of_a_choice_of_one():
    rollout = rollouts.random_rollout(np.random.default_rng(3))
    every = np.ones((*rollout.mask.shape, len(TABLE)), bool)
    one = np.arange(len(TABLE)) == rollout.tokens[..., None]
    for legal, want in ((every, 1 / len(TABLE)), (one, 1)):
        allowed = rollout._replace(legal=legal)
        _, got, _ = measured_collision(allowed, 0 * HEAD, Sampling(legal=True))
        np.testing.assert_allclose(got, np.where(rollout.mask, want, 0), rtol=1e-6)
