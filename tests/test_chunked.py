"""The head over a large vocabulary, a piece at a time: as the whole one, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.kernels import token_log_prob
from rlcredit.kernels.chunked import piece_of, token_log_prob_chunked
from rlcredit.kernels.token_log_prob import LARGE, log_prob_and_entropy, logits

N, H, V = 33, 16, 1003
rng = np.random.default_rng(0)
HIDDEN = rng.normal(size=(N, H)).astype(np.float32)
HEAD = rng.normal(size=(H, V)).astype(np.float32)
BIAS = rng.normal(size=V).astype(np.float32)
TOKENS = rng.integers(0, V, N).astype(np.int32)
LEGAL = (rng.random((N, V)) < 0.5) | (np.arange(V) == TOKENS[:, None])
COTANGENTS = rng.normal(size=(2, N)).astype(np.float32)
TEMPERATURE = 0.7


def in_double(hidden, head, bias, legal):
    """(log_prob, entropy, d hidden, d head, d bias) in float64, from the formulas."""
    hidden, head, bias = (np.asarray(a, np.float64) for a in (hidden, head, bias))
    z = (hidden @ head + bias) / TEMPERATURE
    z = z - z.max(axis=1, keepdims=True)
    weights = np.exp(z) * (1 if legal is None else legal)
    p = weights / weights.sum(axis=1, keepdims=True)
    log_p = np.log(np.where(p > 0, p, 1))
    entropy = -(p * log_p).sum(axis=1)
    one = np.arange(V) == TOKENS[:, None]
    g_log_prob, g_entropy = COTANGENTS.astype(np.float64)[..., None]
    dz = g_log_prob * (one - p) - g_entropy * p * (log_p + entropy[:, None])
    da = dz / TEMPERATURE
    log_prob = log_p[np.arange(N), TOKENS]
    return log_prob, entropy, da @ head.T, hidden.T @ da, da.sum(axis=0)


def results(function, hidden, head, bias, legal):
    def loss(hidden, head, bias):
        pair = function(hidden, head, TOKENS, temperature=TEMPERATURE, bias=bias, legal=legal)
        return jnp.sum(COTANGENTS * jnp.stack(pair)), pair

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    (_, pair), gradients = gradient(*map(jnp.asarray, (hidden, head, bias)))
    return (*pair, *gradients)


def relative(found, wanted):
    found = np.asarray(found, np.float64)
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("legal", [None, LEGAL], ids=["all", "some-legal"])
@pytest.mark.parametrize("columns, rows", [(None, N), (100, N), (17, N), (100, 11), (None, 10)])
def test_values_and_gradients_are_those_in_double_precision(columns, rows, legal):
    def function(*arrays, **settings):
        return token_log_prob_chunked(*arrays, columns=columns, rows=rows, **settings)

    wanted = in_double(HIDDEN, HEAD, BIAS, legal)
    for found, right in zip(results(function, HIDDEN, HEAD, BIAS, legal), wanted, strict=True):
        assert relative(found, right) < 2e-6


def test_a_bfloat16_network_has_accumulators_in_float32():
    hidden, head, bias = (jnp.asarray(a, jnp.bfloat16) for a in (HIDDEN, HEAD, BIAS))
    wanted = in_double(hidden.astype(jnp.float32), head.astype(jnp.float32), bias, None)
    found = results(token_log_prob_chunked, hidden, head, bias, None)
    assert [a.dtype for a in found] == [jnp.float32] * 2 + [jnp.bfloat16] * 3
    for array, right in zip(found, wanted, strict=True):
        assert relative(array, right) < 4e-3


def test_large_logits_stay_finite():
    found = results(token_log_prob_chunked, 1e4 * HIDDEN, HEAD, BIAS, None)
    assert all(np.all(np.isfinite(array)) for array in found)
    assert np.all(np.asarray(found[0]) <= 0) and np.all(np.asarray(found[1]) >= 0)


def test_a_row_without_a_legal_token_is_uniform():
    none = np.zeros((N, V), bool)
    log_prob, entropy = token_log_prob_chunked(HIDDEN, HEAD, TOKENS, legal=none, columns=100)
    np.testing.assert_allclose(log_prob, -np.log(V), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(V), rtol=1e-6)


def test_the_vocabulary_decides_who_does_it():
    """A large one is taken in pieces, whatever the leading axes; the numbers are the same."""
    hidden = rng.normal(size=(3, 5, 8)).astype(np.float32)
    head = rng.normal(size=(8, LARGE)).astype(np.float32)
    tokens = rng.integers(0, LARGE, (3, 5)).astype(np.int32)
    legal = np.ones((3, 5, LARGE), bool)
    legal[..., 7] = False
    traced = jax.make_jaxpr(lambda *a: token_log_prob(*a))
    in_pieces = [" scan[" in str(traced(hidden, h, tokens)) for h in (head, head[:, :-1])]
    assert in_pieces == [True, False]
    got = token_log_prob(hidden, head, tokens, temperature=1.3, legal=legal)
    wanted = log_prob_and_entropy(logits(hidden, head, 1.3, legal), tokens)
    np.testing.assert_allclose(got, wanted, atol=2e-5)


@pytest.mark.parametrize("tokens, vocabulary", [(512, 151_936), (2048, 151_936), (10**6, 50_257)])
def test_pieces_fit_and_divide_where_they_can(tokens, vocabulary):
    columns = piece_of(tokens, vocabulary)
    assert 512 <= columns <= 8192
    assert vocabulary % columns == 0 or vocabulary == 50_257  # 29 * 1733


@pytest.mark.parametrize("count", [512, 2048])
def test_no_array_of_tokens_by_vocabulary_is_held(count):
    """Temporary memory of the gradient is less than 1/32 of that with whole logits."""
    shapes = [((count, 256), "float32"), ((256, 151_936), "float32")]
    shapes += [((count,), "int32"), ((2, count), "float32")]
    arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]

    def temporary(function):
        def loss(hidden, head, tokens, cotangents):
            return jnp.sum(cotangents * jnp.stack(function(hidden, head, tokens)))

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def whole(hidden, head, tokens):
        return log_prob_and_entropy(logits(hidden, head), tokens)

    assert 32 * temporary(token_log_prob) < temporary(whole)
