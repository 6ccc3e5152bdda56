"""The policy loss from logits: every form of it against autodiff of the plain path."""

import contextlib
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from rlcredit import masked
from rlcredit.kernels import platform
from rlcredit.kernels import policy_loss as module
from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.kernels.platform import compiling_for
from rlcredit.kernels.policy_loss import policy_loss
from rlcredit.kernels.policy_loss_gpu import columns_of_piece
from rlcredit.kernels.policy_loss_tpu import tokens_of_block
from rlcredit.kernels.token_log_prob import log_prob_and_entropy
from rlcredit.losses import kl_loss
from rlcredit.losses.cispo import cispo
from rlcredit.losses.grpo import grpo
from rlcredit.losses.gspo import gspo
from rlcredit.losses.policy_gradient import policy_gradient
from rlcredit.losses.ppo import ppo
from rlcredit.types import InputError

N, V, TEMPERATURE = 130, 20, 0.7


def plain(loss, log_prob, entropy, **inputs):
    return loss(log_prob, **inputs)[0]


def with_bonus(log_prob, entropy, *, old_log_prob, advantage, weight, ref_log_prob):
    """What an update makes of a loss: an entropy bonus and a KL penalty beside it."""
    loss, _ = ppo(log_prob, old_log_prob, advantage, weight, clip_low=0.1, clip_high=0.3)
    loss -= 0.03 * masked.sum(weight * entropy, weight > 0)
    return loss + 0.1 * kl_loss(log_prob, ref_log_prob, weight, estimator="k2")[0]


LOSSES = {
    "policy_gradient": functools.partial(plain, policy_gradient),
    "ppo": functools.partial(plain, functools.partial(ppo, dual_clip=3.0)),
    "grpo": functools.partial(plain, grpo),
    "cispo": functools.partial(plain, functools.partial(cispo, clip_low=0.2)),
    "with_bonus": with_bonus,
}


def naive(token_loss, logits, tokens, inputs, temperature=TEMPERATURE):
    log_prob, entropy = log_prob_and_entropy(logits / temperature, tokens)
    return token_loss(log_prob, entropy, **inputs), (log_prob, entropy)


def fused(platform, token_loss, logits, tokens, inputs, temperature=TEMPERATURE):
    with compiling_for(platform):
        loss, *rest = policy_loss(token_loss, logits, tokens, inputs, temperature=temperature)
    return loss, tuple(rest)


def both(function, token_loss, *arrays, **scalars):
    """(loss, log_prob, entropy, d_logits)."""

    def run(logits, *rest):
        return function(token_loss, logits, *rest, **scalars)

    (loss, rest), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(*arrays)
    return loss, *rest, gradient


def example(name="grpo", *, count=N, vocabulary=V, seed=0, dtype=jnp.float32):
    """Ratios on both sides of the clip range, some weights 0, advantages of both signs whose loss
    does not cancel.
    """
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(count, vocabulary)).astype(np.float32)
    tokens = rng.integers(vocabulary, size=count).astype(np.int32)
    z = logits / TEMPERATURE
    log_prob = z[np.arange(count), tokens] - np.log(np.exp(z).sum(axis=1))
    near = [log_prob + 0.5 * rng.normal(size=count).astype(np.float32) for _ in "or"]
    inputs = {
        "old_log_prob": near[0],
        "advantage": (0.7 + rng.normal(size=count)).astype(np.float32),
        "weight": (rng.random(count) * (rng.random(count) < 0.8)).astype(np.float32),
    }
    if name in ("grpo", "with_bonus"):
        inputs["ref_log_prob"] = near[1]
    return jax.tree.map(jnp.asarray, (jnp.asarray(logits, dtype), tokens, inputs))


def assert_close(got, want, tolerance=2e-6):
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert np.isfinite(one).all()
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other)


def exact(token_loss, logits, tokens, inputs):
    """(log_prob, entropy, d_logits) by the equations, in float64; the loss's own two derivatives
    are those of the library.
    """
    z = np.asarray(logits, np.float64) / TEMPERATURE
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * z).sum(axis=1, keepdims=True)
    chosen = np.arange(z.shape[1]) == np.asarray(tokens)[:, None]
    log_prob, entropy = np.log(p[chosen]), -(p * np.log(p)).sum(axis=1)
    numbers = (jnp.asarray(a, jnp.float32) for a in (log_prob, entropy))
    derivatives = jax.jit(jax.grad(lambda *a: token_loss(*a, **inputs), argnums=(0, 1)))(*numbers)
    g_log_prob, g_entropy = (np.asarray(g, np.float64)[:, None] for g in derivatives)
    dz = g_log_prob * (chosen - p) - g_entropy * p * (z - mean)
    return log_prob, entropy, dz / TEMPERATURE


def interpreted(platform, count=N):
    """A context in which Pallas kernels run step by step on the CPU, and races are looked for; not
    where GPU tiles overlap, since they write the same twice.
    """
    if platform == "tpu":
        return pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True))
    if platform == "gpu":
        from jax.experimental.pallas import mosaic_gpu as plgpu

        return plgpu.force_gpu_interpret_mode(
            plgpu.InterpretGPUParams(detect_races=count % 64 == 0)
        )
    return contextlib.nullcontext()


on_new_jax = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="Mosaic GPU kernels can be interpreted from JAX 0.11 on"
)
PLATFORMS = ["cpu", "tpu", pytest.param("gpu", marks=on_new_jax)]


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_autodiff(name):
    arrays = example(name)
    got = both(functools.partial(fused, "cpu"), LOSSES[name], *arrays)
    assert_close(got, both(naive, LOSSES[name], *arrays))
    assert_close(got[1:], exact(LOSSES[name], *arrays))


# Tokens and vocabularies that no block divides, and ones that a block does.
@pytest.mark.parametrize(
    ("platform", "name", "count", "vocabulary"),
    [
        ("tpu", "grpo", 130, 20),
        ("tpu", "with_bonus", 256, 16),
        ("tpu", "with_bonus", 300, 1024),
        pytest.param("gpu", "grpo", 130, 24, marks=on_new_jax),
        pytest.param("gpu", "with_bonus", 128, 160, marks=on_new_jax),
    ],
)
def test_kernels_agree_with_the_plain_form(platform, name, count, vocabulary, capsys):
    arrays = example(name, count=count, vocabulary=vocabulary)
    want = both(functools.partial(fused, "cpu"), LOSSES[name], *arrays)
    with interpreted(platform, count):
        got = both(functools.partial(fused, platform), LOSSES[name], *arrays)
    assert_close(got, want)
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.parametrize("platform", PLATFORMS)
def test_forbidden_logits_and_what_lies_under_weight_0(platform):
    """Token 0: a forbidden choice. Token 1: nothing allowed. Token 2: left out, and all nan.
    Token 5: logits whose exp is infinite.
    """
    logits, tokens, inputs = example(vocabulary=24, name="ppo")
    logits = logits.at[:, 3].set(-jnp.inf).at[:, 4].set(FORBIDDEN)
    tokens = jnp.where((tokens == 3) | (tokens == 4), 5, tokens).at[0].set(3)
    logits = logits.at[1].set(-jnp.inf).at[2].set(jnp.nan).at[5].add(100)
    inputs |= {"weight": inputs["weight"].at[:2].set(1).at[2].set(0)}
    inputs = {name: a if name == "weight" else a.at[2].set(jnp.nan) for name, a in inputs.items()}
    loss = bonus_without_clip
    with interpreted(platform):
        got = both(functools.partial(fused, platform), loss, logits, tokens, inputs)
    assert np.isfinite(got[0])
    gradient = np.asarray(got[3])
    assert (gradient[1:3] == 0).all()
    assert (gradient[:, 3:5] == 0).all()
    np.testing.assert_allclose(got[2][1], np.log(24), rtol=1e-6)
    # The plain path lets the nan of a token that is left out through to its logits.
    want = both(naive, loss, logits.at[2].set(0), tokens, inputs)
    assert_close((got[0], gradient), (want[0], want[3].at[1].set(0)), 1e-5)


def bonus_without_clip(log_prob, entropy, **inputs):
    bonus = masked.sum(inputs["weight"] * entropy, inputs["weight"] > 0)
    return plain(policy_gradient, log_prob, entropy, **inputs) - 0.03 * bonus


def test_bfloat16_logits_get_a_gradient_of_their_own_dtype():
    logits, *rest = example("ppo", dtype=jnp.bfloat16)
    got = both(functools.partial(fused, "cpu"), LOSSES["ppo"], logits, *rest)
    want = both(functools.partial(fused, "cpu"), LOSSES["ppo"], logits.astype(jnp.float32), *rest)
    assert got[3].dtype == jnp.bfloat16
    assert_close(got[:3], want[:3])
    assert_close(got[3:], want[3:], 4e-3)


def test_only_the_loss_and_the_logits_have_a_gradient():
    logits, tokens, inputs = example("with_bonus")

    def others(logits, inputs):
        loss, rest = fused("cpu", with_bonus, logits, tokens, inputs)
        return 2 * loss + 1e3 * sum(jnp.sum(a) for a in rest)

    of_logits, of_inputs = jax.jit(jax.grad(others, argnums=(0, 1)))(logits, inputs)
    once = both(functools.partial(fused, "cpu"), with_bonus, logits, tokens, inputs)[3]
    assert_close([of_logits], [2 * once])
    assert all((leaf == 0).all() for leaf in of_inputs.values())


def test_leading_axes_and_no_gradient():
    logits, tokens, inputs = example("grpo")
    folded = jax.tree.map(lambda a: a.reshape(5, 26, *a.shape[1:]), (logits, tokens, inputs))
    alone = {
        name: jax.jit(functools.partial(fused, name, LOSSES["grpo"])) for name in ("cpu", "tpu")
    }
    loss, (log_prob, entropy) = alone["cpu"](*folded)
    assert log_prob.shape == entropy.shape == (5, 26)
    want, (flat, _) = alone["cpu"](logits, tokens, inputs)
    np.testing.assert_array_equal(log_prob.reshape(-1), flat)
    assert_close([loss], [want])
    with interpreted("tpu"):
        assert_close([alone["tpu"](logits, tokens, inputs)[0]], [want])


def test_nothing_is_scattered():
    run = functools.partial(both, functools.partial(fused, "cpu"), LOSSES["policy_gradient"])
    text = str(jax.make_jaxpr(run)(*example("policy_gradient")))
    assert "scatter" not in text


def test_losses_that_mix_tokens_are_refused():
    logits, tokens, inputs = example("ppo")
    with pytest.raises(InputError, match="from one token"):
        policy_loss(functools.partial(plain, gspo), logits, tokens, inputs)
    with pytest.raises(InputError, match="not a number"):
        policy_loss(lambda log_prob, entropy, **rest: (log_prob, {}), logits, tokens, inputs)
    with pytest.raises(InputError, match="advantage has shape"):
        inputs["advantage"] = inputs["advantage"][:-1]
        policy_loss(LOSSES["ppo"], logits, tokens, inputs)


def form(name, logits):
    with compiling_for(name):
        return module._form(logits)


def test_the_form_follows_platform_and_version(monkeypatch):
    logits = jnp.zeros((N, V))
    assert form("cpu", logits) is module.policy_loss_xla
    assert form("tpu", logits).__name__ == "policy_loss_tpu"
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 0))
    assert form("gpu", jnp.zeros((N, 24))).__name__ == "policy_loss_gpu"
    for odd in (jnp.zeros((N, V + 1)), jnp.zeros((63, 24)), jnp.zeros((N, 24), jnp.float16)):
        assert form("gpu", odd) is module.policy_loss_xla
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    platform._say_that_jax_is_old.cache_clear()
    with pytest.warns(UserWarning, match=r"need JAX 0\.11"):
        assert form("gpu", jnp.zeros((N, 24))) is module.policy_loss_xla
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        form("gpu", jnp.zeros((N, 24)))


def test_blocks_fit_and_pieces_divide():
    for vocabulary in (16, 64, 1000, 4096):
        assert tokens_of_block(10**6, vocabulary) * vocabulary <= 2**19
        assert tokens_of_block(130, vocabulary) in (128, 256)
    assert [columns_of_piece(v, 4) for v in (24, 128, 160, 1024)] == [24, 128, 80, 128]
    assert columns_of_piece(1024, 2) == 128
