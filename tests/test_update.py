"""One optimiser step is the same however it is split, and a broken one changes nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stubs import VOCABULARY, assert_trees_close, distance, network, quick_jit, same_bits

from rlcredit import masked
from rlcredit.credit import Bound, bind
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.policy import Architecture, transformer
from rlcredit.score import score as eager_score
from rlcredit.sharding import jit_step, make_mesh, over_problems, replicated
from rlcredit.types import InputError, Sampling, TrainState
from rlcredit.update import (
    Batch,
    Objective,
    Schedule,
    check_schedule,
    guarded,
    initial_state,
    inverse_sqrt,
    make_update,
)

SHAPE = (8, 2, 10)
MAX_NORM = 0.05
POLICY, PARAMS = network(value_head="shared")
CLIPPED_SGD = optax.apply_if_finite(
    optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.sgd(1.0)), 1000
)


@quick_jit
def score(tokens):
    return eager_score(POLICY, PARAMS, tokens, sampling=Sampling())


@functools.cache
def make_batch():
    """Rows of different lengths; nan wherever nothing may be read."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, len(VOCABULARY), SHAPE).astype(np.int32)
    mask = np.arange(SHAPE[-1]) < rng.integers(3, 11, (*SHAPE[:2], 1))
    mask[..., :2] = False
    mask[3, 1] = False
    noise = rng.normal(size=(4, *SHAPE)).astype(np.float32)
    old = score(tokens)
    arrays = (old.log_prob + 0.3 * noise[0], noise[1], noise[2], noise[3])
    old_log_prob, advantage, target, value = (jnp.where(mask, a, jnp.nan) for a in arrays)
    return Batch(
        jnp.asarray(tokens), jnp.asarray(mask), old_log_prob, advantage, target, value, None, {}
    )


def make_state(optimizer, params=PARAMS):
    return initial_state(params, optimizer, jax.random.key(0))


def numbered(functions):
    """`functions[which](...)` for a traced `which`: one compilation for all of them."""
    return lambda which: lambda *args: jax.lax.switch(which, functions, *args)


@functools.cache
def split_update(accumulate, devices=1):
    """(state, batch, key, number of a reducer) -> (state, metrics), two minibatches of PPO."""
    by_number = numbered(list(REDUCERS.values()))
    mesh = make_mesh(jax.devices()[:devices])

    def run(state, batch, key, which):
        objective = Objective(bind("ppo", LOSSES, "loss"), by_number(which), entropy_coef=0.1)
        schedule = Schedule(minibatches=2, accumulate=accumulate)
        update = make_update(POLICY, CLIPPED_SGD, objective, schedule, Sampling())
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return update(state, over_problems(mesh, batch), key)

    jitted = quick_jit(run)
    return lambda state, *rest: jitted(replicated(mesh, state), *replicated(mesh, rest))


@pytest.mark.parametrize("reducer", list(REDUCERS))
@pytest.mark.parametrize("accumulate, devices", [(4, 1), (2, 4), (1, 4)])
def test_no_split_changes_the_step(accumulate, devices, reducer):
    # FL-031, FL-032, FL-033, FL-035
    state, key = make_state(CLIPPED_SGD), jax.random.key(3)
    which = jnp.int32(list(REDUCERS).index(reducer))
    whole, metrics = split_update(1)(state, make_batch(), key, which)
    split, split_metrics = split_update(accumulate, devices)(state, make_batch(), key, which)
    assert_trees_close(split.params, whole.params, 1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(split_metrics[name], value, rtol=1e-5, atol=1e-6)
    moved = distance(whole.params, PARAMS)
    # Two clipped steps: pieces clipped one by one would point and reach elsewhere.
    assert metrics["grad_norm"] > 2 * MAX_NORM and 0.2 * MAX_NORM < moved <= 2.001 * MAX_NORM


@pytest.mark.parametrize("packed", [False, True])
def test_devices_share_the_work(packed):
    def flops(devices):
        objective = Objective(bind("ppo", LOSSES, "loss"), next(iter(REDUCERS.values())))
        schedule = Schedule(packed=packed)
        update = make_update(POLICY, CLIPPED_SGD, objective, schedule, Sampling())
        mesh = make_mesh(jax.devices()[:devices])
        step = jit_step(mesh, lambda state, batch: update(state, batch, jax.random.key(0)))
        arguments = replicated(mesh, (make_state(CLIPPED_SGD), make_batch()))
        return step.lower(*arguments).compile().cost_analysis()["flops"]

    assert flops(4) < 0.5 * flops(1)


def test_a_large_vocabulary_is_learned_from_without_its_logits():
    vocabulary, shape = 151_936, (16, 8, 64)
    policy = transformer(Architecture(vocabulary, width=16, layers=1, heads=2, kv_heads=1))
    objective = Objective(bind("ppo", LOSSES, "loss"), next(iter(REDUCERS.values())), 0.01)
    update = make_update(policy, CLIPPED_SGD, objective, Schedule(), Sampling())

    def start(key):
        return initial_state(policy.init(key), CLIPPED_SGD, key)

    key = jax.eval_shape(lambda: jax.random.key(0))
    numbers, mask = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, bool)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    batch = Batch(tokens, mask, numbers, numbers, None, None, None, {})
    compiled = jax.jit(update).lower(jax.eval_shape(start, key), batch, key).compile()
    logits = 4 * vocabulary * np.prod(shape)
    assert 16 * compiled.memory_analysis().temp_size_in_bytes < logits


def test_without_a_value_clip_nothing_is_clipped():
    state, which = make_state(CLIPPED_SGD), jnp.int32(0)
    _, metrics = split_update(1)(state, make_batch(), jax.random.key(3), which)
    assert Objective._field_defaults["value_clip"] == float("inf")
    assert metrics["value/clip_ratio"] == 0


def test_reducers_differ_on_these_rows():
    state, key = make_state(CLIPPED_SGD), jax.random.key(3)
    step = split_update(1)
    losses = [step(state, make_batch(), key, jnp.int32(i))[1]["loss"] for i in range(len(REDUCERS))]
    assert len({round(float(loss), 5) for loss in losses}) == len(REDUCERS)


def test_minibatches_are_drawn_by_the_key():
    state, which = make_state(CLIPPED_SGD), jnp.int32(0)
    first, same, other = (
        split_update(1)(state, make_batch(), jax.random.key(seed), which)[0].params
        for seed in (0, 0, 1)
    )
    assert same_bits(first, same)
    assert distance(first, other) > 1e-4


@pytest.fixture(scope="module")
def still():
    """PPO at learning rate 0: three epochs of two minibatches."""
    objective = Objective(bind("ppo", LOSSES, "loss"), REDUCERS["token_mean"])
    schedule = Schedule(epochs=3, minibatches=2)
    optimizer = guarded(0.0)
    update = quick_jit(make_update(POLICY, optimizer, objective, schedule, Sampling()))
    return lambda batch: update(make_state(optimizer), batch, jax.random.key(1))


def test_ratio_stays_one_while_nothing_is_learnt(still):  # FL-073
    log_prob = score(make_batch().tokens).log_prob
    state, metrics = still(make_batch()._replace(old_log_prob=log_prob))
    assert same_bits(state.params, PARAMS)
    assert metrics["clip_ratio/region_mean"] == 0 and abs(metrics["approx_kl"]) < 1e-8


def test_metrics_are_one_number_an_update_pooled_by_tokens(still):  # FL-115, FL-116
    batch = make_batch()
    log_prob = score(batch.tokens).log_prob
    outside = jnp.arange(SHAPE[0])[:, None, None] < 2  # of the first two problems alone
    moved = jnp.where(outside, jnp.log(1.5), 0)
    one_token = outside & (jnp.arange(SHAPE[-1])[None, None] == 4)
    batch = batch._replace(
        old_log_prob=log_prob - moved,
        advantage=jnp.ones(SHAPE),
        mask=batch.mask & ~outside | one_token,
    )
    _, metrics = still(batch)
    share = masked.count(batch.mask & outside) / masked.count(batch.mask)
    assert 0 < share < 0.1
    assert all(value.shape == () for value in metrics.values())
    assert metrics["clip_ratio/region_mean"] == pytest.approx(float(share), abs=1e-6)
    assert metrics["value/mean"] == pytest.approx(values_on(batch.mask), abs=1e-5)


def values_on(mask):
    value = score(make_batch().tokens).value[..., :-1]
    return float(masked.mean(value, mask))


def touchy(log_prob, old_log_prob, advantage, weight):
    """A policy gradient whose value, and not whose gradient, breaks on a large advantage."""
    loss, metrics = LOSSES["policy_gradient"](log_prob, old_log_prob, advantage, weight)
    broken = jnp.any(jnp.where(weight > 0, advantage, 0) > 100)
    return loss + jnp.where(broken, jnp.inf, 0), metrics


@pytest.fixture(scope="module")
def careful():
    """(optimizer, update) that clips, steps and skips what is not finite."""
    optimizer = guarded(1e-2, max_norm=MAX_NORM, weight_decay=0.1)
    objective = Objective(Bound("touchy", touchy, ()), REDUCERS["token_mean"])
    return optimizer, quick_jit(make_update(POLICY, optimizer, objective, Schedule(), Sampling()))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e3], ids=["nan", "inf", "loss-alone"])
def test_a_step_that_is_not_finite_is_left_out(careful, bad):
    optimizer, update = careful
    good, key = make_batch(), jax.random.key(0)
    spoilt = good._replace(advantage=good.advantage.at[0, 0, 2].set(bad))
    state, metrics = update(make_state(optimizer), good, key)
    assert metrics["skipped_updates"] == 0 and jnp.isfinite(metrics["loss"])
    after = state
    for failures in (1, 2):
        after, metrics = update(after, spoilt, key)
        assert metrics["skipped_updates"] == failures and not jnp.isfinite(metrics["loss"])
        assert same_bits(after.params, state.params)
        assert same_bits(after.opt_state.inner_state, state.opt_state.inner_state)
    after, metrics = update(after, good, key)
    assert metrics["skipped_updates"] == 0
    assert same_bits(after.params, update(state, good, key)[0].params)
    assert not same_bits(after.params, state.params)


def test_the_clip_sees_the_whole_gradient(careful):
    optimizer, update = careful
    state, metrics = update(make_state(optimizer), make_batch(), jax.random.key(0))
    assert metrics["grad_norm"] > 2 * MAX_NORM
    [adam] = [part for part in jax.tree.leaves(state.opt_state, is_leaf=is_adam) if is_adam(part)]
    length = distance(adam.mu, jax.tree.map(np.zeros_like, adam.mu))
    assert length / 0.1 == pytest.approx(MAX_NORM, rel=1e-4)


def is_adam(part):
    return isinstance(part, optax.ScaleByAdamState)


def test_policy_and_separate_critic_learn_apart():  # FL-152
    objective = Objective(bind("policy_gradient", LOSSES, "loss"), REDUCERS["token_mean"])

    policy, params = network(value_head="separate")

    @quick_jit
    def run(state, batch, value_coef):
        chosen = objective._replace(value_coef=value_coef)
        update = make_update(policy, CLIPPED_SGD, chosen, Schedule(), Sampling())
        return update(state, batch, jax.random.key(0))[0].params

    batch, state = make_batch(), make_state(CLIPPED_SGD, params)
    policy_only = run(state, batch, 0.0)
    critic_only = run(state, batch._replace(advantage=0 * batch.mask), 0.5)
    moved = {
        kind: {name for name in params if not same_bits(after[name], params[name])}
        for kind, after in (("policy", policy_only), ("critic", critic_only))
    }
    assert moved == {"policy": {"policy"}, "critic": {"critic", "value_head"}}


@pytest.mark.parametrize(
    "schedule", [Schedule(1, 3, 1), Schedule(1, 2, 8), Schedule(0, 1, 1), Schedule(1, 0, 1)]
)
def test_a_schedule_that_does_not_divide_is_refused(schedule):
    with pytest.raises(InputError, match=f"minibatches={schedule.minibatches}"):
        check_schedule(schedule, 8)
    check_schedule(Schedule(2, 2, 4), 8)


def test_the_reference_is_a_copy():
    state = make_state(CLIPPED_SGD)
    assert isinstance(state, TrainState) and same_bits(state.ref_params, state.params)
    mine, theirs = (
        {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params)}
        for params in (state.params, state.ref_params)
    )
    assert not mine & theirs


def test_the_rate_rises_and_falls_without_an_end():
    rate = inverse_sqrt(1e-3, rise=10, plateau=50)
    rates = [float(rate(jnp.int32(count))) for count in (0, 5, 50, 150)]
    np.testing.assert_allclose(rates, [0, 5e-4, 1e-3 / 2**0.5, 5e-4], rtol=1e-5)
