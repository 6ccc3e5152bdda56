"""Field cases of masked statistics, log-probs and entropy, and the update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from field_cases import case

from rlcredit import masked, recurrence
from rlcredit.credit import Bound
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.kernels.token_log_prob import log_prob_and_entropy, token_log_prob
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.losses.kl import ESTIMATORS
from rlcredit.score import score
from rlcredit.types import Policy, Rollout, Sampling, TrainState
from rlcredit.update import Batch, Objective, Schedule, make_update


def lookup(vocabulary):
    """A policy whose logits after a token are the row of its parameters for that token."""
    return Policy(
        init=None,
        forward=lambda params, tokens: (params[tokens], None),
        head=lambda params: jnp.eye(vocabulary),
        init_cache=None,
        extend=None,
        vocabulary=vocabulary,
        has_value=False,
    )


@case("FL-015")
def test_a_position_scores_the_token_after_it(given, expected):
    logits = np.log(given["probs_per_position"])
    policy = lookup(3)._replace(forward=lambda params, tokens: (params[None], None))
    tokens = given["tokens"].astype(np.int32)[None]
    scores = score(policy, jnp.asarray(logits), tokens, sampling=Sampling())
    got = scores.log_prob[0, int(given["prompt_len"]) :]
    expected.check(got, "response_logprobs", "_faulty_unshifted")


@case("FL-028")
def test_nan_under_the_mask_is_selected_away(given, expected):
    values, mask = np.float32(given["values"]), given["mask"] > 0
    mean, gradient = jax.value_and_grad(masked.mean)(values, mask)
    expected.check(mean, "masked_mean", "_faulty")
    expected.check(gradient, "grad_wrt_values")


def update_once(loss, params, mask, advantage, optimizer):
    """One optimiser step of two micro-batches of a problem each; row n is full of token n."""
    batch = Batch(
        tokens=np.broadcast_to(np.arange(2)[:, None, None], mask.shape).astype(np.int32),
        mask=mask,
        old_log_prob=np.zeros(mask.shape, np.float32),
        advantage=np.asarray(advantage, np.float32),
        target=None,
        old_value=None,
        legal=None,
        evidence={},
    )
    optimizer = optax.apply_if_finite(optimizer, 10)
    objective = Objective(Bound("given", loss, ()), REDUCERS["token_mean"])
    schedule = Schedule(accumulate=2)
    policy = lookup(2)._replace(forward=lambda params, tokens: (jnp.diag(params)[tokens], None))
    update = make_update(policy, optimizer, objective, schedule, Sampling())
    state = TrainState(params, None, optimizer.init(params), None, jnp.int32(0))
    state, metrics = jax.jit(update)(state, batch, jax.random.key(0))
    return state.params, metrics


@case("FL-033")
def test_the_clip_sees_the_whole_minibatch(given, expected):
    """Parameter n moves the log-prob of row n, with slope 1/2 at 0: A = -2 g gives gradient g."""
    gradients = given["micro_grads"].max(-1)
    mask = np.broadcast_to(np.array([False, True]), (2, 1, 2))
    advantage = -2 * gradients[:, None, None] * np.array([0, 1])
    chain = optax.chain(optax.clip_by_global_norm(given["max_norm"]), optax.sgd(given["lr"]))

    def loss(log_prob, old_log_prob, advantage, weight):
        return LOSSES["policy_gradient"](log_prob, log_prob, advantage, weight)

    params, _ = update_once(loss, jnp.zeros(2), mask, advantage, chain)
    expected.check(params, "update", "_faulty")


@case("FL-116")
def test_metrics_are_pooled_by_token_count(given, expected):
    mask = np.arange(9) < 1 + given["tokens"].astype(int)[:, None, None]
    mask &= np.arange(9) > 0
    advantage = np.where(mask, given["clip_fraction"][:, None, None], 0)

    def loss(log_prob, old_log_prob, advantage, weight):
        return 0.0 * jnp.sum(log_prob), {"clip_fraction": masked.mean(advantage, weight > 0)}

    _, metrics = update_once(loss, jnp.zeros(2), mask, advantage, optax.sgd(1.0))
    expected.check(metrics["clip_fraction"], "pooled", "_faulty_mean", "_faulty_last")


@case("FL-038")
def test_length_counts_chosen_tokens(given, expected):
    expected.check(
        masked.count(given["mask"] > 0), "policy_length", "_faulty_span", "_faulty_turns"
    )


@case("FL-050")
def test_entropy_with_a_forbidden_token(given, expected):
    def entropy(logits):
        return log_prob_and_entropy(logits, jnp.int32(0))[1]

    value, slope = jax.value_and_grad(entropy)(np.float32(given["logits"]))
    expected.check(value, "entropy", "_faulty")
    expected.check(slope, "grad")


@case("FL-051")
def test_mean_entropy_is_over_chosen_tokens(given, expected):
    mean = masked.mean(given["entropy_per_token"], given["mask"] > 0)
    expected.check(mean, "mean_entropy", "_faulty")


@case("FL-054")
def test_log_probs_are_at_the_temperature_of_the_sampling(given, expected):
    tokens = np.array([[1, given["token"]]], np.int32)
    params = jnp.stack([jnp.zeros(2), given["logits"]])
    sampling = Sampling(temperature=given["temperature"])
    trained = score(lookup(2), params, tokens, sampling=sampling).log_prob[0, 1]
    expected.check(trained, "logp", "_faulty_logp")
    settings = {"temperature": given["temperature"]}
    sampled, _ = token_log_prob(given["logits"], jnp.eye(2), tokens[0, 1], **settings)
    expected.check(jnp.exp(trained - sampled), "ratio", "_faulty_ratio")


@case("FL-055")
def test_policy_and_reference_are_scored_at_one_temperature(given, expected):
    tokens = np.array([[[1, given["token"]]]], np.int32)
    mask, zero = np.array([[[False, True]]]), np.zeros((1, 1, 2), np.float32)
    rollout = Rollout(
        tokens, mask, zero, zero, tokens, tokens, np.int32([[2]]), mask, mask, *[None] * 6
    )
    params = jnp.stack([jnp.zeros(2), given["logits"]])
    for temperature in (1.0, given["temperature"], 1.3):
        context = Context(lookup(2), params, params, None, Sampling(temperature))
        reference, _ = EVIDENCE["ref_log_prob"](context, rollout, jax.random.key(0))
        log_prob = score(lookup(2), params, tokens, sampling=context.sampling).log_prob
        for estimate in ESTIMATORS.values():
            expected.check(
                masked.sum(estimate(log_prob, reference, mask), mask), "kl", "_faulty_k1"
            )


@case("FL-077")
def test_counts_and_sums_are_exact_whatever_the_dtype(given, expected):
    sizes = given["n_ones"].astype(int)
    ones = [jnp.ones(size, jnp.bfloat16) for size in sizes]
    expected.check([masked.count(x > 0) for x in ones], "counts", "_faulty_sum")
    expected.check([masked.sum(x, x > 0) for x in ones], "counts", "_faulty_sum")
    scanned = recurrence.reverse_affine(ones[0], ones[0])[0]
    assert scanned == sizes[0] != expected["_faulty_scan_300"]


@case("FL-078")
def test_log_probs_stay_float32(given, expected):
    first = np.log1p(-np.exp(given["logp"]))
    stored, _ = log_prob_and_entropy(np.float32([first, given["logp"]]), jnp.int32(1))
    assert stored.dtype == jnp.float32 and abs(stored - expected["_faulty_stored"]) > 1e-3
    expected.check(jnp.exp(given["logp"] - stored), "ratio", "_faulty_ratio")
    hidden = jnp.array([-10.0, -0.28125], jnp.bfloat16)  # their sum is no bfloat16
    head = jnp.array([[0.0, 1.0], [0.0, 1.0]])
    log_prob, _ = token_log_prob(hidden, head, jnp.int32(1))
    np.testing.assert_allclose(log_prob, -10.28125 - np.log1p(np.exp(-10.28125)), atol=1e-5)


@case("FL-126")
def test_a_bad_number_is_replaced_before_the_function_that_cannot_take_it(given, expected):
    """So do masked.std at 0 and the log-probs at -inf."""
    x = given["x"]
    mask = x > 0

    def total(x):
        return masked.sum(jnp.log(jnp.where(mask, x, 1)), mask)

    value, gradient = jax.value_and_grad(total)(x)
    expected.check(value, "value")
    expected.check(gradient, "grad", "_faulty_grad")
    assert not np.any(jax.grad(masked.std)(np.zeros(3, np.float32), np.ones(3, bool)))
    slope = jax.grad(lambda z: log_prob_and_entropy(z, jnp.int32(0))[0])
    assert np.isfinite(slope(jnp.array([0.0, -jnp.inf]))).all()


@case("FL-154")
def test_a_label_under_the_mask_may_be_anything(given, expected):
    """Token ids are compared, never used as an index."""
    rest = np.log1p(-np.exp(given["token_logp"]).sum(-1, keepdims=True))
    logits = np.concatenate([given["token_logp"], rest], axis=-1)
    ids, mask = given["ids"].astype(np.int32), given["mask"] > 0

    def loss(logits):
        log_prob, _ = log_prob_and_entropy(logits, ids)
        advantage = np.ones_like(mask, np.float32)
        return LOSSES["policy_gradient"](log_prob, log_prob, advantage, np.float32(mask))[0]

    value, gradient = jax.value_and_grad(loss)(logits)
    expected.check(value, "loss", "_faulty")
    assert np.isfinite(gradient).all() == expected["finite_grad"] and not np.any(gradient[1])
