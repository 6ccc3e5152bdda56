"""The expected gradient of credit rules, summed over every episode and every company, against the
gradient of the objective: which are unbiased, and by how much the others are off.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit
from tree_reference import first_problem, ground_of

from rlcredit import credit
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Probing
from rlcredit.losses import REDUCERS
from rlcredit.oracle import batch, company
from rlcredit.oracle.batch import Growth
from rlcredit.oracle.company import Method, Scene
from rlcredit.oracle.estimate import direction
from rlcredit.oracle.ground import gradients

NAMES = ["recovery", "maze", "slip"]
APART = Growth()


def method_of(rule, reduce):
    return Method(rule, reduce and REDUCERS[reduce], APART, Probing())


@functools.cache
def expectation(rule, reduce=None, **hyperparameters):
    """(scene, row, across) -> [J, N, E]; jitted."""
    bound = credit.bind(rule, ADVANTAGES, "advantage", hyperparameters)
    method = method_of(bound, reduce)
    call = functools.partial(company.expected_weights, method)
    return quick_jit(call, static_argnames="across")


def scene_of(ground, critic="exact", scale=1.0):
    value = ground.truth.value
    if critic == "constant":
        value = jnp.full_like(value, 0.3)
    evidence = {"value": value, "exact_advantage": ground.truth.advantage}
    light = ground._replace(context=None, scores=None, gradient=None)
    return Scene(light, evidence, ground.truth.probability, jnp.float32(scale))


def alone(ground, samples=1):
    """A company for rules that look at one episode alone."""
    shape = (1, ground.visit.shape[0], samples)
    rows = batch.apart(jnp.zeros(shape, jnp.int32), jax.random.key(0))
    return company.Company(rows, jnp.ones(shape[:2]))


def expected(ground, call, chosen, scene=None, across=False):
    """[P] float64: the expected gradient over companies of their weights."""
    weight = call(scene or scene_of(ground), chosen.batch, across=across)
    whole = jnp.einsum("jn,jne->ne", chosen.weight, weight)
    return np.asarray(gradients(ground, whole), float)


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def truth_of(ground):
    return np.asarray(ground.gradient, float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", ["reinforce", "gae", "exact"])
def test_rules_for_one_episode_are_unbiased(rule, name):
    ground = ground_of(name)
    found = expected(ground, expectation(rule), alone(ground))
    assert relative(found, truth_of(ground)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_rloo_is_unbiased_over_every_company(name):
    ground = ground_of(name)
    chosen = company.every(ground, 2)
    np.testing.assert_allclose(chosen.weight.sum(axis=0), 1, atol=1e-5)
    found = expected(ground, expectation("rloo"), chosen)
    assert relative(found, truth_of(ground)) < 1e-5


def test_a_constant_critic_is_a_baseline_where_episodes_terminate():
    ground = ground_of("recovery")
    scene = scene_of(ground, "constant")
    found = expected(ground, expectation("gae"), alone(ground), scene)
    assert relative(found, truth_of(ground)) < 1e-5
    biased = expected(ground, expectation("gae", lambda_=0.0), alone(ground), scene)
    assert relative(biased, truth_of(ground)) > 0.05


def test_a_constant_critic_promises_its_value_to_what_is_cut():
    """The bootstrap at a truncation pulls to where it happens, as a reward there would."""
    ground = ground_of("maze")
    found = expected(ground, expectation("gae"), alone(ground), scene_of(ground, "constant"))
    promised = ground.truth.total + 0.3 * ground.tree.rollout.truncated
    assert relative(found, truth_of(ground)) > 0.01
    assert relative(found, slow_gradient(ground, promised[..., None])) < 1e-4


def slow_gradient(ground, weight):
    """[P]: (1 / N) * the sum over rows and tokens of probability * weight * score."""
    scores = np.pad(np.asarray(ground.scores, float), ((0, 0), (0, 1), (0, 0)))
    mask, edge = (np.asarray(part) for part in (ground.tree.rollout.mask, ground.edge))
    weight = np.broadcast_to(np.asarray(weight, float), mask.shape)
    total = 0.0
    for n, m, t in np.argwhere(mask):
        chance = float(ground.truth.probability[n, m])
        total = total + chance * weight[n, m, t] * scores[n, edge[n, m, t]]
    return total / mask.shape[0]


def row_scores(ground):
    """[M, P] float64 of whole rows of the first problem."""
    scores = np.pad(np.asarray(ground.scores[0], float), ((0, 1), (0, 0)))
    return scores[np.asarray(ground.edge[0])].sum(axis=1)


@pytest.mark.parametrize("rule, factor", [("rloo", 1.0), ("dr_grpo", 0.5), ("grpo", None)])
def test_every_company_is_every_pair_of_episodes(rule, factor):
    ground = first_problem(ground_of("recovery"))
    total, chance = (
        np.asarray(part[0], float) for part in (ground.truth.total, ground.truth.probability)
    )
    scores, wanted = row_scores(ground), 0.0
    for i, j in np.ndindex(total.size, total.size):
        difference = total[i] - total[j]
        if rule == "grpo":  # the deviation of a pair is half its difference
            credit_i = difference / 2 / (abs(difference) / 2 + 1e-6)
        else:
            credit_i = difference * factor
        pair = (credit_i * scores[i] - credit_i * scores[j]) / 2
        wanted = wanted + chance[i] * chance[j] * pair
    found = expected(ground, expectation(rule), company.every(ground, 2))
    assert relative(found, wanted) < 1e-5
    if factor:
        assert relative(found, factor * truth_of(ground)) < 1e-5


@pytest.mark.parametrize("samples", [2, 3])
def test_the_group_mean_takes_its_share_of_the_gradient(samples):
    ground = first_problem(ground_of("recovery"))
    found = expected(ground, expectation("dr_grpo"), company.every(ground, samples))
    assert relative(found, (1 - 1 / samples) * truth_of(ground)) < 1e-5


def test_the_batch_mean_takes_its_share_of_the_gradient():
    ground = first_problem(ground_of("recovery"))
    found = expected(ground, expectation("reinforce_baseline"), company.every(ground, 2))
    assert relative(found, truth_of(ground) / 2) < 1e-5


def test_the_batch_mean_of_two_problems_too_in_any_company():
    """Only one problem may be varied at a time, since the others are in its baseline."""
    ground = ground_of("recovery")
    chosen = company.drawn(ground, 2, 3, jax.random.key(0), APART)
    call = expectation("reinforce_baseline")
    found = expected(ground, call, chosen, across=True)
    assert relative(found, 0.75 * truth_of(ground)) < 1e-5
    together = expected(ground, call, chosen, across=False)
    assert relative(together, 0.75 * truth_of(ground)) > 1e-3


def test_a_smaller_tree_does_not_change_the_weights_of_a_larger_one():
    """Companies are gone through by the rows of the larger; the other then has one too."""
    ground = ground_of("maze")
    assert ground.tree.count[0] != ground.tree.count[1]
    scale = 2 * 2 * ground.tree.rollout.mask.shape[-1]  # takes constant_length to 1
    call, chosen = expectation("rloo", "constant_length"), company.every(ground, 2)
    found = expected(ground, call, chosen, scene_of(ground, scale=scale))
    assert relative(found, truth_of(ground)) < 1e-5


def grpo_length(p, samples, eps=1e-6):
    """E[A | R = 1] - E[A | R = 0] where each of the other samples has R = 1 with chance p."""

    def mean_credit(own):
        credit, others = 0.0, samples - 1
        for successes in range(others + 1):
            ways = math.comb(others, successes)
            weight = ways * p**successes * (1 - p) ** (others - successes)
            returns = np.array([own, *[1] * successes, *[0] * (others - successes)], float)
            credit += weight * (own - returns.mean()) / (returns.std() + eps)
        return credit

    return mean_credit(1) - mean_credit(0)


@pytest.mark.parametrize("samples", [2, 3])
def test_grpo_keeps_the_direction_and_its_length_follows_the_binomial(samples):
    ground = first_problem(ground_of("recovery"))
    total, chance = (
        np.asarray(part[0], float) for part in (ground.truth.total, ground.truth.probability)
    )
    assert set(total) == {0.0, 1.0}
    p = float(chance @ total)
    found = expected(ground, expectation("grpo"), company.every(ground, samples))
    truth = truth_of(ground)
    cosine = found @ truth / np.linalg.norm(found) / np.linalg.norm(truth)
    assert abs(cosine - 1) < 1e-5
    length = np.linalg.norm(found) / np.linalg.norm(truth)
    np.testing.assert_allclose(length, grpo_length(p, samples), atol=1e-4)


@pytest.mark.parametrize("reduce", ["sequence_mean", "constant_length"])
def test_weights_by_length_turn_the_gradient(reduce):
    ground = ground_of("maze")
    mask = np.asarray(ground.tree.rollout.mask)
    length = mask.sum(axis=-1, keepdims=True)
    assert np.unique(length[length > 0]).size > 1
    batches = company.drawn(ground, 2, 32, jax.random.key(1), APART).batch
    scale = float(company.mean_scale(method_of(None, reduce), ground, batches))
    drawn = mask[np.arange(2)[None, :, None], np.asarray(batches.row)]
    tokens = drawn.sum(axis=-1)  # [J, N, K]
    per_token = 1 / (2 * 2 * (mask.shape[-1] if reduce == "constant_length" else tokens))
    np.testing.assert_allclose(scale, tokens.sum() / (tokens * per_token).sum(), rtol=1e-5)

    scene = scene_of(ground, scale=scale)
    found = expected(ground, expectation("exact", reduce), alone(ground, 2), scene)
    own_length = mask.shape[-1] if reduce == "constant_length" else np.maximum(length, 1)
    weight = np.asarray(ground.truth.advantage) * scale / (2 * 2 * own_length)
    assert relative(found, slow_gradient(ground, weight)) < 1e-4
    bias = relative(found, truth_of(ground))
    assert bias < 1e-5 if reduce == "constant_length" else bias > 1e-3


def test_drawn_company_agrees_with_every_one():
    """Four samples: with fewer, credit for success differs by the same in every company."""
    ground = first_problem(ground_of("recovery"))
    truth = truth_of(ground)
    p = float(np.sum(ground.truth.probability * ground.truth.total))
    exact = abs(grpo_length(p, 4) - 1)
    chosen = company.drawn(ground, 4, 200, jax.random.key(2), APART)
    weight = expectation("grpo")(scene_of(ground), chosen.batch, across=False)
    bias, _ = direction(np.asarray(gradients(ground, weight), float), truth)
    assert bias.low <= exact <= bias.high and bias.high - bias.low < exact


def test_batches_are_drawn_as_sampling_gives_them():
    ground = ground_of("recovery")
    row = np.asarray(company.drawn(ground, 3, 400, jax.random.key(3), APART).batch.row)
    chance = np.asarray(ground.truth.probability)
    for n in range(2):
        share = np.bincount(row[:, n].ravel(), minlength=chance.shape[1]) / 1200
        error = np.sqrt(chance[n] * (1 - chance[n]) / 1200)
        np.testing.assert_array_less(np.abs(share - chance[n]), 4.5 * error + 1e-6)
    assert company.every(ground, 6) is None  # 16**5 companies


@pytest.mark.parametrize(
    "rule, reduce, wanted",
    [
        ("reinforce", None, (False, False)),
        ("reinforce", "sequence_mean", (False, False)),
        ("reinforce", "prompt_mean", (True, False)),
        ("reinforce", "token_mean", (True, True)),
        ("rloo", None, (True, False)),
        ("reinforce_baseline", None, (True, True)),
    ],
)
def test_what_a_rule_and_its_weights_compare_is_seen(rule, reduce, wanted):
    ground = ground_of("maze")
    method = method_of(credit.bind(rule, ADVANTAGES, "advantage"), reduce)
    sampled = quick_jit(functools.partial(company.sampled, method))

    def credit_of(ground, batches):
        return sampled(scene_of(ground), batches)[1]

    light = scene_of(ground).ground
    assert company.compares(credit_of, light, 2, jax.random.key(0)) == wanted
