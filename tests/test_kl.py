"""The KL estimators: values, and the gradients that their docstrings claim, by enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_losses

from rlcredit.losses import REDUCERS, kl_in_reward, kl_loss
from rlcredit.losses.kl import ESTIMATORS
from rlcredit.testing import measured, rollouts

LOGITS = jnp.array([0.4, -0.3, 1.1, 0.0])
REF = jax.nn.log_softmax(jnp.array([-0.2, 0.9, 0.3, 0.5]))
EVERY = jnp.ones(4, bool)
each_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def kl(log_p, log_q):
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q))


def kl_of_policy(logits):
    return kl(jax.nn.log_softmax(logits), REF)


def kl_of_reference(logits):
    return kl(REF, jax.nn.log_softmax(logits))


def expected(name, logits, sampled_from=LOGITS):
    """The mean over actions of the estimate; the sampling is not differentiated."""
    probability = jax.nn.softmax(sampled_from)
    return jnp.sum(probability * ESTIMATORS[name](jax.nn.log_softmax(logits), REF, EVERY))


def gradient_in_loss(name):
    return jax.grad(lambda logits: expected(name, logits))(LOGITS)


def close(got, want):
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name):
    close(expected(name, LOGITS), kl_of_policy(LOGITS))


def test_k2_is_biased():
    assert abs(expected("k2", LOGITS) - kl_of_policy(LOGITS)) > 0.005


def test_only_k1_can_be_negative():
    log_prob = jax.nn.log_softmax(LOGITS)
    low = {name: ESTIMATORS[name](log_prob, REF, EVERY).min() for name in ESTIMATORS}
    assert low["k1"] < 0 <= min(low["k2"], low["k3"])


def test_k1_in_a_loss_has_no_expected_gradient():
    close(gradient_in_loss("k1"), 0)


def test_k2_in_a_loss_has_the_gradient_of_the_kl_of_the_policy():
    close(gradient_in_loss("k2"), jax.grad(kl_of_policy)(LOGITS))


def test_k3_in_a_loss_has_the_gradient_of_the_other_kl():
    close(gradient_in_loss("k3"), jax.grad(kl_of_reference)(LOGITS))
    assert np.abs(gradient_in_loss("k3") - jax.grad(kl_of_policy)(LOGITS)).max() > 0.01


def test_k1_in_the_reward_has_the_gradient_of_the_kl_of_the_policy():
    """With a return, the gradient is that of the penalised objective."""
    returns = jnp.array([1.0, 0.0, -2.0, 0.5])
    log_prob = jax.nn.log_softmax(LOGITS)
    paid = kl_in_reward(returns, log_prob, REF, EVERY, coefficient=0.3)

    def surrogate(logits):
        return jnp.sum(jnp.exp(log_prob) * paid * jax.nn.log_softmax(logits))

    def objective(logits):
        return jnp.sum(jax.nn.softmax(logits) * returns) - 0.3 * kl_of_policy(logits)

    close(jax.grad(surrogate)(LOGITS), jax.grad(objective)(LOGITS))


@each_estimator
def test_is_exactly_0_for_equal_policies(name):
    log_prob = jax.nn.log_softmax(LOGITS)
    assert not np.any(ESTIMATORS[name](log_prob, log_prob, EVERY))


@each_estimator
def test_a_loss_pulls_towards_the_reference_or_has_no_side(name):
    """Where the policy is above the reference, descent lowers it."""
    high, low = jnp.array([-1.0]), jnp.array([-1.5])
    gradient = jax.grad(lambda x: ESTIMATORS[name](x, low, EVERY[:1]).sum())(high)
    assert gradient[0] > 0


@each_estimator
def test_loss_and_reward_equal_their_references_under_garbage(name):
    rng = np.random.default_rng(0)
    rollout = rollouts.random_rollout(rng)
    mask, reward, log_prob = rollout.mask, rollout.reward, rollout.log_prob
    ref_log_prob = measured.evidence_for(rng, rollout, ["ref_log_prob"])["ref_log_prob"]
    spoiled = [np.where(mask, a, np.nan) for a in (reward, log_prob, ref_log_prob)]
    weight = np.asarray(REDUCERS["token_mean"](mask))

    def loss(log_prob):
        return kl_loss(log_prob, spoiled[2], weight, estimator=name)

    (got, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(spoiled[1])
    want = reference_losses.kl_loss(log_prob, ref_log_prob, weight, name)
    close([got, metrics["kl"]], [want, want])
    assert np.isfinite(gradient).all() and not np.any(gradient[~mask])
    keywords = {"coefficient": 0.3, "estimator": name}
    np.testing.assert_allclose(
        kl_in_reward(*spoiled, mask, **keywords),
        reference_losses.kl_in_reward(reward, log_prob, ref_log_prob, mask, **keywords),
        atol=1e-5,
    )


@each_estimator
@pytest.mark.parametrize("distance", [-1e4, -21.0, 21.0, 1e4])
def test_far_apart_policies_have_a_finite_estimate_and_no_gradient(name, distance):
    far, zero = jnp.array([distance]), jnp.zeros(1)

    def estimate(log_prob):
        return ESTIMATORS[name](log_prob, zero, EVERY[:1]).sum()

    value, gradient = jax.value_and_grad(estimate)(far)
    assert np.isfinite(value) and gradient[0] == 0
