"""Log-probability and entropy against numpy in double precision, and the cases others hit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.kernels import token_log_prob
from rlcredit.kernels.token_log_prob import LARGE, log_prob_and_entropy, logits
from rlcredit.types import Sampling

rng = np.random.default_rng(0)
hidden = rng.normal(size=(5, 4, 8)).astype(np.float32)
head = rng.normal(size=(8, 6)).astype(np.float32)
tokens = rng.integers(0, 6, (5, 4)).astype(np.int32)
allowed = rng.random((5, 4, 6)) < 0.6
allowed |= np.arange(6) == tokens[..., None]


def reference(temperature, legal):
    z = hidden.astype(np.float64) @ head.astype(np.float64) / temperature
    weights = np.exp(z) if legal is None else np.where(legal, np.exp(z), 0)
    p = weights / weights.sum(-1, keepdims=True)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    return np.log(np.take_along_axis(p, tokens[..., None], -1)[..., 0]), entropy


@pytest.mark.parametrize("legal", [None, allowed], ids=["all", "some-legal"])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.3])
def test_equals_numpy(temperature, legal):
    got = token_log_prob(hidden, head, tokens, temperature=temperature, legal=legal)
    for array, wanted in zip(got, reference(temperature, legal), strict=True):
        assert array.dtype == jnp.float32
        np.testing.assert_allclose(array, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("legal", [None, allowed[0, 0]], ids=["all", "some-legal"])
def test_probabilities_sum_to_one_and_never_exceed_it(dtype, legal):  # FL-079
    states = jnp.asarray(20 * rng.normal(size=(256, 1, 8)), dtype)
    every = jnp.broadcast_to(jnp.arange(6), (256, 6))
    legal = None if legal is None else jnp.broadcast_to(legal, (256, 6, 6))
    log_prob, entropy = token_log_prob(
        jnp.broadcast_to(states, (256, 6, 8)), jnp.asarray(head), every, legal=legal
    )
    assert log_prob.dtype == entropy.dtype == jnp.float32
    assert log_prob.max() <= 0 and entropy.min() >= 0
    np.testing.assert_allclose(jnp.exp(log_prob).sum(axis=1), 1, atol=1e-5)


def test_forbidden_logits_leave_entropy_and_its_gradient_finite():  # FL-050
    z = jnp.asarray([0.0, 0.0, -jnp.inf])

    def parts(z):
        return jnp.stack(log_prob_and_entropy(z, jnp.int32(0)))

    np.testing.assert_allclose(parts(z), [-np.log(2), np.log(2)], atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(parts)(z), [[0.5, -0.5, 0], [0, 0, 0]], atol=1e-6)


def test_gradients_are_those_of_the_softmax():
    z = jnp.asarray(rng.normal(size=6), jnp.float32)
    p = np.asarray(jax.nn.softmax(z), np.float64)
    of_log_prob = jax.grad(lambda z: log_prob_and_entropy(z, jnp.int32(2))[0])(z)
    np.testing.assert_allclose(of_log_prob, np.eye(6)[2] - p, atol=1e-6)
    of_entropy = jax.grad(lambda z: log_prob_and_entropy(z, jnp.int32(2))[1])(z)
    np.testing.assert_allclose(of_entropy, -p * (np.log(p) - p @ np.log(p)), atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_large_logits_stay_finite(scale):
    z = scale * jnp.asarray([1.0, -1.0, 0.5])
    for token in range(3):
        values, gradients = jax.value_and_grad(
            lambda z, token=token: sum(log_prob_and_entropy(z, jnp.int32(token)))
        )(z)
        assert jnp.isfinite(values) and jnp.isfinite(gradients).all()


def test_temperature_divides_the_logits():  # FL-054, FL-055
    states, identity = jnp.asarray([2.0, 0.0]), jnp.eye(2)
    log_prob, _ = token_log_prob(states, identity, jnp.int32(0), temperature=0.5)
    assert log_prob == pytest.approx(-0.0181499, abs=1e-6)
    log_prob, _ = token_log_prob(states, identity, jnp.int32(0), temperature=0.7)
    assert log_prob == pytest.approx(-np.log1p(np.exp(-2 / 0.7)), abs=1e-6)


def test_a_token_that_is_not_legal_is_impossible_and_gets_no_gradient():
    legal = jnp.asarray([True, True, False])

    def log_prob(states, token):
        return token_log_prob(states, jnp.eye(3), token, legal=legal)[0]

    states = jnp.asarray([0.3, -0.2, 5.0])
    assert log_prob(states, jnp.int32(2)) < -1e20
    gradient = jax.grad(log_prob)(states, jnp.int32(0))
    assert gradient[2] == 0 and jnp.isfinite(gradient).all() and gradient[0] > 0


def test_a_row_without_a_legal_token_is_uniform():
    nothing = jnp.zeros((5, 4, 6), bool)
    log_prob, entropy = token_log_prob(hidden, head, tokens, legal=nothing)
    np.testing.assert_allclose(log_prob, -np.log(6), atol=1e-6)
    np.testing.assert_allclose(entropy, np.log(6), atol=1e-6)


def test_log_probs_of_a_bfloat16_network_are_not_rounded():  # FL-078
    states = jnp.asarray(hidden, jnp.bfloat16)
    got, _ = token_log_prob(states, head, tokens)
    z = np.asarray(states, np.float64) @ np.asarray(jnp.asarray(head, jnp.bfloat16), np.float64)
    z -= z.max(-1, keepdims=True)
    wanted = np.take_along_axis(z, tokens[..., None], -1)[..., 0] - np.log(np.exp(z).sum(-1))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_logits_are_float32():
    assert logits(jnp.asarray(hidden, jnp.bfloat16), head).dtype == jnp.float32


def test_sampling_cannot_truncate_the_distribution():  # FL-056
    assert Sampling._fields == ("temperature", "legal", "greedy")
    assert Sampling() == (1.0, False, False)


@pytest.mark.parametrize("vocabulary", [6, LARGE])
def test_no_accelerator_rounds_the_operands_of_float32(vocabulary):
    """What a token is drawn from is what scores it, on a TPU too, whose kernel does not round."""
    weight, chosen = jnp.ones((8, vocabulary)), jnp.zeros(2, jnp.int32)

    def loss(hidden, weight):
        return token_log_prob(hidden, weight, chosen)[0].sum()

    for function in (jax.grad(loss, (0, 1)), logits):
        program = str(jax.make_jaxpr(function)(jnp.ones((2, 8)), weight))
        products = program.count("dot_general[")
        assert products and program.count("Precision.HIGHEST") == 2 * products
