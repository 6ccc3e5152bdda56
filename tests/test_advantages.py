"""Every credit rule: equal to its slow reference, and blind to all that is not a chosen token."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import rollouts

from rlcredit import credit, sharding
from rlcredit.advantages import ADVANTAGES

# Rules with a statistic of the whole batch; all others keep to one problem.
ACROSS_PROBLEMS = {"reinforce_baseline"}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
SETTINGS = {
    "reinforce": [{"discount": 0.9}],
    "reinforce_pp": [{"discount": 0.9, "kl_coef": 0.5}],
    "grpo": [{"eps": 0.1}],
    "gae": [{"discount": 0.9, "lambda_": 0.8}, {"lambda_": 0.0}],
    "td_lambda": [{"discount": 0.9, "lambda_": 0.8, "actor_lambda": 0.5}],
}
RULES = list(ADVANTAGES)
RULES_AND_SETTINGS = [(name, given) for name in RULES for given in [{}, *SETTINGS.get(name, [])]]
each_rule = pytest.mark.parametrize("name", RULES)


def documented(name: str) -> str:
    return " ".join(ADVANTAGES[name].__doc__.split())


EXACTLY_ZERO = [name for name in RULES if re.search(r"exactly 0[^.;]*equal", documented(name))]


@functools.cache
def jitted(name, settings=()):
    rule = credit.bind(name, ADVANTAGES, "advantage", dict(settings))
    return jax.jit(lambda rollout, evidence: credit.assign(rule, rollout, evidence))


def assign(name, rollout, evidence, **settings):
    return jitted(name, tuple(settings.items()))(rollout, evidence)


def example(name, seed=0, **sizes):
    rng = np.random.default_rng(seed)
    rollout = rollouts.random_rollout(rng, **sizes)
    evidence, _ = credit.signature(ADVANTAGES[name])
    return rollout, rollouts.evidence_for(rng, rollout, evidence)


def referenced(name, rollout, evidence, **settings):
    """(advantage, target or None) of the slow reference."""
    if name not in reference.ADVANTAGES:
        pytest.fail(f"rule {name!r} has no reference: add one to tests/reference.py")
    returned = reference.ADVANTAGES[name](rollout, **evidence, **settings)
    return returned if isinstance(returned, tuple) else (returned, None)


def identical(got, want):
    """Bit for bit, but for the sign of zero."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)


def chosen_in_order(credit_, rollout):
    """Credit of the chosen tokens, row after row."""
    return [np.asarray(leaf)[rollout.mask] for leaf in jax.tree.leaves(credit_)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name, settings", RULES_AND_SETTINGS)
def test_equals_its_reference(name, settings, seed):
    rollout, evidence = example(name, seed)
    got = assign(name, rollout, evidence, **settings)
    advantage, target = referenced(name, rollout, evidence, **settings)
    np.testing.assert_allclose(got.advantage, advantage, atol=1e-5, rtol=1e-5)
    if target is not None:
        np.testing.assert_allclose(got.target, target, atol=1e-5, rtol=1e-5)
    assert np.any(advantage)


@each_rule
def test_one_sample_a_problem_equals_the_reference_and_is_finite(name):
    rollout, evidence = example(name, samples=1)
    got = assign(name, rollout, evidence).advantage
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, referenced(name, rollout, evidence)[0], atol=1e-5, rtol=1e-5)


@each_rule
def test_is_float32_of_the_rollouts_shape_and_exactly_0_off_the_mask(name):
    rollout, evidence = example(name)
    for leaf in jax.tree.leaves(assign(name, rollout, evidence)):
        assert leaf.dtype == jnp.float32 and leaf.shape == rollout.mask.shape
        assert not np.any(np.asarray(leaf)[~rollout.mask])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
@each_rule
def test_what_lies_under_the_mask_changes_nothing(name, garbage):
    rollout, evidence = example(name)
    spoiled = assign(name, *rollouts.with_garbage(rollout, evidence, garbage))
    identical(spoiled, assign(name, rollout, evidence))


@each_rule
def test_padding_changes_nothing(name):
    rollout, evidence = example(name)
    longer, moved = rollouts.move(rollout, evidence, rollouts.padding(rollout, 4))
    got, want = assign(name, longer, moved), assign(name, rollout, evidence)
    identical(jax.tree.map(lambda leaf: leaf[..., :-4], got), want)


@pytest.mark.parametrize("seed", range(3))
@each_rule
def test_observation_tokens_change_no_advantage(name, seed):
    rollout, evidence = example(name, seed)
    source = rollouts.observations(np.random.default_rng(seed), rollout, 4)
    longer, moved = rollouts.move(rollout, evidence, source)
    got, want = assign(name, longer, moved), assign(name, rollout, evidence)
    identical(chosen_in_order(got, longer), chosen_in_order(want, rollout))


@each_rule
def test_permuted_problems_permute_the_credit(name):
    rollout, evidence = example(name)
    order = np.array([2, 0, 3, 1])
    got = assign(name, *rollouts.permute_problems(rollout, evidence, order))
    want = jax.tree.map(lambda leaf: leaf[order], assign(name, rollout, evidence))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)


@each_rule
def test_permuted_samples_permute_the_credit(name):
    rollout, evidence = example(name)
    order = np.array([[1, 2, 0], [2, 1, 0], [0, 2, 1], [1, 0, 2]])
    got = assign(name, *rollouts.permute_samples(rollout, evidence, order))
    problems = np.arange(4)[:, None]
    want = jax.tree.map(lambda leaf: leaf[problems, order], assign(name, rollout, evidence))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)


def test_the_rules_that_claim_zero_for_equal_returns_are_found():
    assert {"grpo", "dr_grpo", "rloo", "reinforce_baseline"} <= set(EXACTLY_ZERO)


@pytest.mark.parametrize("name", EXACTLY_ZERO)
def test_equal_returns_give_exactly_zero(name):
    """Batches of one problem: group sizes 2 to 16 with rewards .05 to .95 (FL-018)."""
    size, value = (a.ravel() for a in np.mgrid[2:17, 1:20])
    rollout, evidence = example(name, problems=size.size, samples=16, length=3)
    mask = (np.arange(16) < size[:, None])[..., None] & (np.arange(3) == 2)
    reward = np.where(mask, np.float32(value / 20)[:, None, None], 0)
    batches = jax.tree.map(
        lambda leaf: leaf[:, None], (rollout._replace(mask=mask, reward=reward), evidence)
    )
    assert not np.any(jax.vmap(jitted(name))(*batches).advantage)


@each_rule
def test_no_chosen_token_gives_zeros(name):
    rollout, evidence = example(name)
    empty = rollout._replace(mask=np.zeros_like(rollout.mask))
    for leaf in jax.tree.leaves(assign(name, *rollouts.with_garbage(empty, evidence, np.nan))):
        assert not np.any(leaf)


@each_rule
def test_no_gradient_flows_through_credit(name):
    rollout, evidence = example(name)

    def total(reward, log_prob, evidence):
        changed = rollout._replace(reward=reward, log_prob=log_prob)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(assign(name, changed, evidence)))

    gradient = jax.grad(total, argnums=(0, 1, 2))(rollout.reward, rollout.log_prob, evidence)
    for leaf in jax.tree.leaves(gradient):
        assert not np.any(leaf)


@each_rule
def test_eager_equals_jitted(name):
    rollout, evidence = jax.tree.map(jnp.asarray, example(name))
    rule = credit.bind(name, ADVANTAGES, "advantage")
    got, want = credit.assign(rule, rollout, evidence), assign(name, rollout, evidence)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)


@each_rule
def test_only_a_batch_statistic_needs_communication(name):
    """With the problems spread over the devices."""
    rollout, evidence = example(name)
    mesh = sharding.make_mesh()
    spread = jax.NamedSharding(mesh, jax.P(sharding.AXIS))
    arguments = jax.device_put((rollout, evidence), spread)
    rule = credit.bind(name, ADVANTAGES, "advantage")
    assign_ = jax.jit(lambda r, e: credit.assign(rule, r, e), out_shardings=spread)
    compiled = assign_.lower(*arguments).compile()
    found = [word for word in COLLECTIVES if word in compiled.as_text()]
    assert bool(found) == (name in ACROSS_PROBLEMS), found
    got, want = compiled(*arguments), assign(name, rollout, evidence)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), got, want)
