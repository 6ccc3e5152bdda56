"""Field cases of losses: denominators, clipping, KL."""

import jax
import jax.numpy as jnp
import numpy as np
from field_cases import case

from rlcredit import sharding
from rlcredit.losses import LOSSES, REDUCERS, kl_loss, value_loss
from rlcredit.losses.kl import ESTIMATORS

ONE = np.ones((1, 1, 1), np.float32)
PPO = LOSSES["ppo"]


def weighted(token_loss, weight):
    """The loss whose token losses are given: the policy gradient with log_prob = -loss, A = 1."""
    log_prob = -np.asarray(token_loss, np.float32)
    return LOSSES["policy_gradient"](log_prob, log_prob, np.ones_like(log_prob), weight)[0]


def ragged(rows):
    """Rows of different lengths as ([N, 1, T] filled up with nan, mask)."""
    length = max(map(len, rows))
    padded = [list(row) + [np.nan] * (length - len(row)) for row in rows]
    array = np.asarray(padded, np.float32)[:, None]
    return array, ~np.isnan(array)


@case("FL-021")
def test_groups_without_advantage_keep_their_kl(given, expected):
    """The choice of the project: they are pulled to the reference like all others."""

    def loss(log_prob):
        ref_log_prob, zero = given["ref_logp"] * ONE, 0 * ONE
        old_log_prob = given["logp"] * ONE
        settings = {"ref_log_prob": ref_log_prob, "beta": given["beta"]}
        return LOSSES["grpo"](log_prob * ONE, old_log_prob, zero, ONE, **settings)[0]

    expected.check(jax.grad(loss)(given["logp"]), "grad_if_kept", "grad_if_dropped")


@case("FL-027")
def test_empty_rows_add_nothing_and_are_not_counted(given, expected):
    """sequence_mean leaves them out of its count, the first of the two accepted results."""
    token_loss, mask = given["token_loss"][None], given["mask"][None] > 0
    expected.check(weighted(token_loss, REDUCERS["token_mean"](mask)), "token_mean")
    sequence = weighted(token_loss, REDUCERS["sequence_mean"](mask))
    assert sequence == expected["seq_mean_any_of"][0]
    for reduce in REDUCERS.values():
        nothing = weighted(token_loss, reduce(np.zeros_like(mask)))
        expected.check(nothing, "all_masked_batch_loss", "_faulty")


@case("FL-031")
def test_micro_batches_share_one_denominator(given, expected):
    token_loss, mask = ragged(given["micro_batches_token_loss"])
    weight = REDUCERS["token_mean"](mask)
    parts = [weighted(token_loss[[i]], weight[i : i + 1]) for i in range(2)]
    expected.check(sum(parts), "token_mean", "_faulty_mean_of_means")


@case("FL-032")
def test_devices_share_one_denominator(given, expected):
    rows = [given[f"device{i}"]["token_loss"] for i in range(2)] + [[], []]
    token_loss, mask = ragged(rows)

    @jax.jit
    def loss(token_loss, mask):
        log_prob, weight = -token_loss, REDUCERS["token_mean"](mask)
        return LOSSES["policy_gradient"](log_prob, log_prob, jnp.ones_like(log_prob), weight)[0]

    for devices in (1, 2, 4):
        mesh = sharding.make_mesh(jax.devices()[:devices])
        split = jax.NamedSharding(mesh, jax.P(sharding.AXIS))
        got = loss(*jax.device_put((token_loss, mask), split))
        expected.check(got, "token_mean", "_faulty_pmean")


@case("FL-035")
def test_the_constant_length_counts_all_episodes(given, expected):
    token_loss, mask = given["token_loss"][None], given["mask"][None] > 0
    assert mask.shape[-1] == given["max_len"]
    weight = REDUCERS["constant_length"](mask)
    expected.check(weighted(token_loss, weight), "loss", "_faulty_no_batch")
    halves = [weighted(token_loss[:, [k]], weight[:, k : k + 1]) for k in range(2)]
    expected.check(sum(halves), "loss")


@case("FL-037")
def test_the_weight_of_a_token_of_a_short_and_a_long_answer(given, expected):
    mask = np.arange(given["max_len"]) < given["lengths"][:, None]
    log_prob, advantage = np.zeros((1, 2, 8), np.float32), given["advantages"][:, None] * mask[None]
    names = ("token_mean", "seq_mean", "constant")
    for name, reducer in zip(
        names, ("token_mean", "sequence_mean", "constant_length"), strict=True
    ):
        weight = REDUCERS[reducer](mask[None])
        slope = jax.grad(lambda x, w=weight: PPO(x, log_prob, advantage, w)[0])(log_prob)
        expected.check(slope[0, :, 0], f"token_weight_{name}")


@case("FL-041")
def test_direction_and_sign_of_the_estimators(given, expected):
    for name, estimate in ESTIMATORS.items():
        log_prob, ref_log_prob = given["logp"] * ONE, given["ref_logp"] * ONE
        expected.check(
            estimate(log_prob, ref_log_prob, ONE > 0)[0, 0, 0], name, "_faulty_k3_swapped"
        )
        assert estimate(log_prob, log_prob, ONE > 0) == 0


@case("FL-042")
def test_the_kl_is_added(given, expected):
    log_prob, ref_log_prob = given["logp"] * ONE, given["ref_logp"] * ONE
    settings = {"ref_log_prob": ref_log_prob, "beta": given["beta"]}
    total, _ = LOSSES["grpo"](log_prob, log_prob, -given["pg_loss"] * ONE, ONE, **settings)
    expected.check(total, "total_loss", "_faulty_total")
    slope = jax.grad(lambda x: kl_loss(x * ONE, ref_log_prob, ONE, estimator="k3")[0])(
        given["logp"]
    )
    expected.check(slope, "kl_grad_wrt_logp")


@case("FL-044")
def test_the_kl_metric_is_over_chosen_tokens(given, expected):
    _, metrics = kl_loss(given["logp"], given["ref_logp"], given["mask"], estimator="k1")
    expected.check(metrics["kl"], "mean_kl", "_faulty")


@case("FL-046")
def test_an_overflowing_ratio_is_finite_in_value_and_gradient(given, expected):
    for side, advantage in zip(("pos", "neg"), given["advantages"], strict=True):
        settings = {"clip_low": given["eps"], "clip_high": given["eps"]}
        name = side
        if side == "neg":
            settings["dual_clip"], name = given["dual_clip_c"], "neg_with_dual_clip"

        def loss(x, advantage=advantage, settings=settings):
            return PPO(x * ONE, given["old_logp"] * ONE, advantage * ONE, ONE, **settings)[0]

        value, slope = jax.value_and_grad(loss)(given["logp"])
        expected.check(value, f"loss_{name}", "_faulty_loss_neg")
        expected.check(slope, f"grad_{name}", "_faulty_grad_pos")
    unbounded = PPO(given["logp"] * ONE, given["old_logp"] * ONE, -ONE, ONE)[0]
    np.testing.assert_allclose(unbounded, np.exp(20.0), rtol=1e-5)  # as documented


@case("FL-047")
def test_a_saturated_k3_is_finite_and_the_normal_range_untouched(given, expected):
    def total(log_prob):
        return jnp.sum(ESTIMATORS["k3"](log_prob, given["ref_logp"], np.ones(2, bool)))

    estimate = ESTIMATORS["k3"](given["logp"], given["ref_logp"], np.ones(2, bool))
    slope = jax.grad(total)(given["logp"])
    assert np.isfinite(estimate).tolist() == [True, True] and slope[0] == 0
    expected.check(estimate[1], "k3_second")
    expected.check(slope[1], "grad_second", "_faulty_grad_first")


def ppo_token_losses(given, **settings):
    """(losses, metrics) of tokens on their own."""
    log_ratio = np.log(given["ratio"])
    pairs = zip(log_ratio, given["advantage"], strict=True)
    results = [PPO(r * ONE, 0 * ONE, a * ONE, ONE, **settings) for r, a in pairs]
    return [loss for loss, _ in results], [metrics for _, metrics in results]


@case("FL-081")
def test_the_dual_clip_is_for_negative_advantages(given, expected):
    settings = {"clip_low": given["eps"], "clip_high": given["eps"], "dual_clip": given["c"]}
    losses, _ = ppo_token_losses(given, **settings)
    expected.check(losses, "loss")
    assert losses[1] != expected["_faulty_applied_to_positive"]


@case("FL-082")
def test_low_and_high_clip_are_not_swapped(given, expected):
    settings = {"clip_low": given["eps_low"], "clip_high": given["eps_high"]}
    losses, metrics = ppo_token_losses(given, **settings)
    expected.check(losses, "loss", "_faulty_swapped")
    expected.check([m["clip_ratio/region_mean"] for m in metrics], "clipped")


@case("FL-084")
def test_value_clipping_is_pessimistic(given, expected):
    def losses(value):
        rows = zip(value, given["returns"], given["old"], strict=True)
        settings = {"clip": given["clip"]}
        return jnp.stack([value_loss(*(x * ONE for x in r), ONE, **settings)[0] for r in rows])

    expected.check(losses(given["new"]), "loss", "_faulty_min")
    expected.check(jax.grad(lambda v: losses(v).sum())(given["new"]), "grad")
