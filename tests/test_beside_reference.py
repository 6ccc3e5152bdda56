"""A policy's head beside a reference's, in one pass: as both whole ones, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.kernels.beside_reference import token_log_prob_beside_reference

N, H, G, V, TEMPERATURE = 21, 12, 8, 307, 0.7
rng = np.random.default_rng(0)
HIDDEN, REF_HIDDEN = (rng.normal(size=(N, width)).astype(np.float32) for width in (H, G))
HEAD, REF_HEAD = (rng.normal(size=(width, V)).astype(np.float32) for width in (H, G))
TOKENS = rng.integers(0, V, N).astype(np.int32)
COTANGENTS = rng.normal(size=(4, N)).astype(np.float32)


def log_softmax(z):
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def in_double():
    """(log_prob, entropy, ref_log_prob, kl, d hidden, d head) in float64, from the formulas."""
    hidden, head, ref_hidden, ref_head = (
        a.astype(np.float64) for a in (HIDDEN, HEAD, REF_HIDDEN, REF_HEAD)
    )
    log_p = log_softmax(hidden @ head / TEMPERATURE)
    log_q = log_softmax(ref_hidden @ ref_head / TEMPERATURE)
    p, row = np.exp(log_p), np.arange(N)
    entropy, kl = -(p * log_p).sum(axis=1), (p * (log_p - log_q)).sum(axis=1)
    one = np.arange(V) == TOKENS[:, None]
    g_log_prob, g_entropy, _, g_kl = COTANGENTS.astype(np.float64)[..., None]
    dz = g_log_prob * (one - p) - g_entropy * p * (log_p + entropy[:, None])
    dz += g_kl * p * (log_p - log_q - kl[:, None])
    da = dz / TEMPERATURE
    return log_p[row, TOKENS], entropy, log_q[row, TOKENS], kl, da @ head.T, hidden.T @ da


def found(columns, dtype=jnp.float32):
    def loss(hidden, head):
        results = token_log_prob_beside_reference(
            hidden,
            head,
            TOKENS,
            jnp.asarray(REF_HIDDEN, dtype),
            REF_HEAD,
            temperature=TEMPERATURE,
            columns=columns,
        )
        return jnp.sum(COTANGENTS * jnp.stack(results)), results

    graded = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (_, results), gradients = graded(jnp.asarray(HIDDEN, dtype), HEAD)
    return *results, *gradients


def relative(one, other):
    return np.linalg.norm(np.asarray(one, np.float64) - other) / np.linalg.norm(other)


@pytest.mark.parametrize("columns", [None, 100])
def test_values_and_gradients_are_those_in_double_precision(columns):
    for one, other in zip(found(columns), in_double(), strict=True):
        assert relative(one, other) < 2e-6


def test_bfloat16_is_the_dtype_of_operands_alone():
    exact = found(100)
    for one, other in zip(found(100, jnp.bfloat16)[:4], exact[:4], strict=True):
        assert one.dtype == jnp.float32 and relative(one, np.asarray(other, np.float64)) < 0.05


def test_a_policy_is_not_apart_from_itself_and_the_reference_learns_nothing():
    def kl(head, reference):
        return token_log_prob_beside_reference(
            jnp.asarray(HIDDEN), head, TOKENS, jnp.asarray(HIDDEN), reference
        ).kl

    np.testing.assert_allclose(kl(jnp.asarray(HEAD), jnp.asarray(HEAD)), 0, atol=1e-5)
    assert (kl(jnp.asarray(HEAD), jnp.asarray(2 * HEAD)) > 0.1).all()
    of_reference = jax.grad(lambda head: kl(jnp.asarray(HEAD), head).sum())(jnp.asarray(HEAD))
    assert not of_reference.any()


def test_memory_is_less_than_an_eighth_of_whole_logits():
    count, vocabulary = 512, 65_536
    shapes = [(count, 16), (16, vocabulary), (count, 8), (8, vocabulary)]
    hidden, head, *reference = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    tokens = jax.ShapeDtypeStruct((count,), jnp.int32)

    def loss(hidden, head, *rest):
        return jnp.sum(token_log_prob_beside_reference(hidden, head, *rest).kl)

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, head, tokens, *reference).compile()
    assert 8 * compiled.memory_analysis().temp_size_in_bytes < 2 * 4 * count * vocabulary
