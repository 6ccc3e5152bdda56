"""Every loss: equal to its slow reference in value and gradient, whatever lies off the mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_losses

from rlcredit import credit, masked, sharding
from rlcredit.losses import LOSSES, REDUCERS, value_loss
from rlcredit.losses.ratio import MAX_LOG_RATIO
from rlcredit.testing import rollouts
from rlcredit.testing.measured import evidence_for

SETTINGS = {
    "ppo": [{"clip_low": 0.1, "clip_high": 0.5}, {"dual_clip": 1.5}],
    "grpo": [{"beta": 0.5, "clip_high": 0.5}],
    "gspo": [{"clip_low": 0.05, "clip_high": 0.1}],
    "cispo": [{"clip_low": 0.3, "clip_high": 0.1}],
    "sorl": [{"clip_low": 0.05, "clip_high": 0.1}],
}
NAMES = list(LOSSES)
NAMES_AND_SETTINGS = [(name, given) for name in NAMES for given in [{}, *SETTINGS.get(name, [])]]
each_loss = pytest.mark.parametrize("name", NAMES)
each_reducer = pytest.mark.parametrize("reducer", REDUCERS)
equal = functools.partial(np.testing.assert_allclose, atol=1e-6, rtol=1e-5)


def example(seed=0):
    """(mask, arguments): [N, K, T] each, ratios of 0.3 to 3, and all that a loss may ask for."""
    rng = np.random.default_rng(seed)
    rollout = rollouts.random_rollout(rng)
    mask = rollout.mask
    old_log_prob = rollout.log_prob
    near = np.where(mask, old_log_prob + rng.normal(0, 0.4, mask.shape), 0).astype(np.float32)
    arguments = {
        "log_prob": near,
        "old_log_prob": old_log_prob,
        "advantage": np.where(mask, rng.normal(size=mask.shape), 0).astype(np.float32),
        **evidence_for(rng, rollout, ["ref_log_prob", "entropy", "unit"]),
    }
    return mask, arguments


@functools.cache
def function(name, settings=()):
    """(arguments, weight) -> (loss, metrics), with the evidence taken from `arguments`."""
    bound = credit.bind(name, LOSSES, "loss", dict(settings))

    def call(arguments, weight):
        positional = [arguments[k] for k in ("log_prob", "old_log_prob", "advantage")]
        return bound.function(*positional, weight, **{k: arguments[k] for k in bound.evidence})

    return call


@functools.cache
def measured(name, settings=()):
    """(arguments, weight) -> ((loss, metrics), gradient with respect to every number)"""

    def call(arguments, weight):
        whole = {k: array for k, array in arguments.items() if array.dtype == np.int32}
        numbers = {k: array for k, array in arguments.items() if k not in whole}

        def loss(numbers):
            return function(name, settings)(numbers | whole, weight)

        return jax.value_and_grad(loss, has_aux=True)(numbers)

    return jax.jit(call)


def jitted(name, settings=()):
    """(arguments, weight) -> (loss, gradient)"""

    def call(arguments, weight):
        (loss, _), gradient = measured(name, settings)(arguments, weight)
        return loss, gradient

    return call


def referenced(name, arguments, weight, moved=None, **settings):
    """The reference loss, with `moved` in place of the log_prob that is differentiated."""
    if name not in reference_losses.LOSSES:
        pytest.fail(f"loss {name!r} has no reference: add one to tests/reference_losses.py")
    evidence, _ = credit.signature(LOSSES[name])
    log_prob = arguments["log_prob"]
    return reference_losses.LOSSES[name](
        log_prob if moved is None else moved,
        log_prob,
        arguments["old_log_prob"],
        arguments["advantage"],
        weight,
        **{key: arguments[key] for key in evidence},
        **settings,
    )


def finite_difference(loss, x, places, step=1e-5):
    slopes = []
    for place in places:
        nudge = np.zeros(x.shape)
        nudge[place] = step
        slopes.append((loss(x + nudge) - loss(x - nudge)) / (2 * step))
    return slopes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name, settings", NAMES_AND_SETTINGS)
def test_equals_its_reference_and_the_finite_difference(name, settings, seed):
    mask, arguments = example(seed)
    weight = np.asarray(REDUCERS["sequence_mean"](mask))
    loss, gradient = jitted(name, tuple(settings.items()))(arguments, weight)
    equal(loss, referenced(name, arguments, weight, **settings))
    places = list(zip(*np.nonzero(mask), strict=True))[::5]
    moved = functools.partial(referenced, name, arguments, weight, **settings)
    slopes = finite_difference(moved, arguments["log_prob"].astype(float), places)
    np.testing.assert_allclose(gradient["log_prob"][mask][::5], slopes, atol=1e-5)
    assert np.any(slopes)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
@each_loss
def test_what_lies_off_the_mask_changes_nothing(name, garbage):
    mask, arguments = example()
    weight = REDUCERS["token_mean"](mask)
    spoiled = {
        key: np.where(mask, array, ~array if array.dtype == np.int32 else np.float32(garbage))
        for key, array in arguments.items()
    }
    (loss, metrics), gradient = measured(name)(spoiled, weight)
    want, want_gradient = jitted(name)(arguments, weight)
    assert loss == want
    for key, array in gradient.items():
        np.testing.assert_array_equal(array, want_gradient[key])
        assert not np.any(np.asarray(array)[~mask])
    assert all(np.isfinite(metric) for metric in metrics.values())


@each_loss
def test_is_0_without_a_token(name):
    mask, arguments = example()
    loss, gradient = jitted(name)(arguments, REDUCERS["token_mean"](np.zeros_like(mask)))
    assert loss == 0 and not any(np.any(array) for array in gradient.values())


@each_loss
def test_policy_gradient_at_the_sampling_policy(name):
    """Before the first step all losses have the gradient -weight * A (where they have no KL)."""
    mask, arguments = example()
    arguments["log_prob"] = arguments["ref_log_prob"] = arguments["old_log_prob"]
    weight = np.asarray(REDUCERS["sequence_mean"](mask))
    if name in ("gspo", "sorl"):  # one ratio for many tokens: one advantage for all of them
        arguments["advantage"] = np.where(mask, arguments["advantage"][..., :1] + 0.5, 0)
    _, gradient = jitted(name)(arguments, weight)
    equal(gradient["log_prob"], -weight * arguments["advantage"])


@each_reducer
@each_loss
def test_micro_batches_change_neither_loss_nor_gradient(name, reducer, pieces=4):
    mask, arguments = example()
    weight = np.asarray(REDUCERS[reducer](mask))
    loss, gradient = jitted(name)(arguments, weight)
    split = jax.tree.map(lambda a: a.reshape(pieces, -1, *a.shape[1:]), (arguments, weight))
    parts = [jitted(name)(*jax.tree.map(lambda a, i=i: a[i], split)) for i in range(pieces)]
    equal(sum(part for part, _ in parts), loss)
    for key, want in gradient.items():
        equal(np.concatenate([part[key] for _, part in parts]), want)


@jax.jit
def all_reduced(mask, arguments):
    """PPO's loss and gradient with every reducer."""
    return {name: jitted("ppo")(arguments, reduce(mask)) for name, reduce in REDUCERS.items()}


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_change_neither_loss_nor_gradient(devices):
    mask, arguments = example()
    mesh = sharding.make_mesh(jax.devices()[:devices])
    over_problems = jax.NamedSharding(mesh, jax.P(sharding.AXIS))
    got = all_reduced(*jax.device_put((mask, arguments), over_problems))
    jax.tree.map(equal, got, all_reduced(mask, arguments))


def test_gspo_is_the_mean_over_sequences_of_one_clipped_ratio_each():
    mask, arguments = example()
    present = mask.any(-1)
    per_sequence = np.random.default_rng(1).normal(size=present.shape).astype(np.float32)
    arguments["advantage"] = np.where(mask, per_sequence[..., None], 0)

    def objective(log_prob):
        ratio = jnp.exp(masked.mean(log_prob - arguments["old_log_prob"], mask, axis=-1))
        low = jnp.minimum(ratio * per_sequence, jnp.clip(ratio, 0.9, 1.1) * per_sequence)
        return -jnp.sum(jnp.where(present, low, 0)) / present.sum()

    settings = (("clip_low", 0.1), ("clip_high", 0.1))
    loss, gradient = jitted("gspo", settings)(arguments, REDUCERS["sequence_mean"](mask))
    want, want_gradient = jax.value_and_grad(objective)(arguments["log_prob"])
    equal(loss, want)
    equal(gradient["log_prob"], want_gradient)


def test_sorl_lies_between_gspo_and_the_ratio_of_every_token():
    """One unit an episode is the first, one a token the second."""
    mask, arguments = example()
    weight = np.asarray(REDUCERS["token_mean"](mask))
    clips = (("clip_low", 0.2), ("clip_high", 0.2))
    number = np.where(mask, np.cumsum(mask, axis=-1) - 1, -1).astype(np.int32)
    for unit, other in ((np.where(mask, 0, -1).astype(np.int32), "gspo"), (number, "ppo")):
        loss, gradient = jitted("sorl", clips)(arguments | {"unit": unit}, weight)
        want, want_gradient = jitted(other, clips)(arguments, weight)
        equal(loss, want)
        equal(gradient["log_prob"], want_gradient["log_prob"])


def test_cispo_keeps_a_bounded_gradient_for_every_token():
    mask, arguments = example()
    weight = np.asarray(REDUCERS["token_mean"](mask))
    ratio = np.exp(arguments["log_prob"] - arguments["old_log_prob"])
    _, gradient = jitted("cispo")(arguments, weight)
    equal(gradient["log_prob"], -weight * np.minimum(ratio, 1.2) * arguments["advantage"])
    assert np.all(np.asarray(gradient["log_prob"])[mask] != 0) and np.any(ratio[mask] > 1.2)


# By hand: (ratio, advantage, token loss, gradient wrt log_prob, clipped low, clipped high) for
# the range [0.8, 1.2].
HAND = [
    (1.0, 2.0, -2.0, -2.0, 0, 0),
    (1.5, 1.0, -1.2, 0.0, 0, 1),
    (1.5, -1.0, 1.5, 1.5, 0, 0),
    (0.5, 1.0, -0.5, -0.5, 0, 0),
    (0.5, -1.0, 0.8, 0.0, 1, 0),
    (1.5, 0.0, 0.0, 0.0, 0, 0),
]


@pytest.mark.parametrize("ratio, advantage, loss, slope, low, high", HAND)
def test_ppo_by_hand(ratio, advantage, loss, slope, low, high):
    arguments = {
        "log_prob": np.full((1, 1, 1), np.log(ratio), np.float32),
        "old_log_prob": np.zeros((1, 1, 1), np.float32),
        "advantage": np.full((1, 1, 1), advantage, np.float32),
    }
    (got, metrics), gradient = measured("ppo")(arguments, np.ones((1, 1, 1), np.float32))
    equal([got, gradient["log_prob"].item()], [loss, slope])
    clipped = [metrics[f"clip_ratio/{side}_mean"] for side in ("low", "high", "region")]
    equal(clipped, [low, high, low + high])
    equal(metrics["approx_kl"], ratio - 1 - np.log(ratio))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@each_loss
def test_extreme_ratios_stay_finite(name, advantage):
    mask, arguments = example()
    extremes = np.float32([-1e4, -MAX_LOG_RATIO, 0.0, MAX_LOG_RATIO, 1e4])
    arguments = jax.tree.map(np.zeros_like, arguments)
    arguments["log_prob"] = np.resize(extremes, mask.shape)
    arguments["advantage"] = np.full(mask.shape, advantage, np.float32)
    loss, gradient = jitted(name)(arguments, REDUCERS["token_mean"](np.ones_like(mask)))
    assert np.isfinite(loss) and np.isfinite(gradient["log_prob"]).all()


@pytest.mark.parametrize("clip", [np.inf, 0.3])
def test_value_loss_equals_its_reference_and_the_finite_difference(clip):
    mask, _ = example()
    rng = np.random.default_rng(3)
    value, target, old_value = rng.normal(size=(3, *mask.shape)).astype(np.float32)
    weight = np.asarray(REDUCERS["token_mean"](mask))
    spoiled = [np.where(mask, a, np.nan) for a in (value, target, old_value)]

    def loss(*arrays):
        return value_loss(*arrays, weight, clip=clip)[0]

    got, gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))(*spoiled)

    def slow(moved):
        return reference_losses.value_loss(moved, target, old_value, weight, clip=clip)

    equal(got, slow(value))
    places = list(zip(*np.nonzero(mask), strict=True))
    slopes = finite_difference(slow, value.astype(float), places)
    np.testing.assert_allclose(gradient[0][mask], slopes, atol=1e-5)
    assert not any(np.any(constant) for constant in gradient[1:])
    assert not np.any(gradient[0][~mask])
