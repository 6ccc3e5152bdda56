"""The training step of an experiment as a pure function: vmap, scan, devices, recompilation."""

import dataclasses
import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit, same_bits

from rlcredit import sharding, train, update
from rlcredit.pretrain import demonstrations
from rlcredit.stage import Stage
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import Layout

EXPERIMENT = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "arithmetic.py"))
MESH = sharding.make_mesh()
ONE_DEVICE = sharding.make_mesh(jax.devices()[:1])
SMALL = Training(width=16, layers=1, problems=4, samples=2, accumulate=1)
TASK = TASKS["arithmetic"](digits=1, operands=3)


def make(training, task=TASK, mesh=MESH):
    """(train_step, initial state)."""
    parts = train.build(training, task)
    optimizer = update.guarded(1e-3)
    collect = train.make_collect(training, parts, mesh)
    step = train.make_train_step(training, parts, collect, optimizer)

    def initial(seed):
        init_key, key = jax.random.split(jax.random.key(seed))
        return update.initial_state(parts.policy.init(init_key), optimizer, key)

    return step, initial


@pytest.fixture(scope="module")
def small():
    step, initial = make(SMALL)
    return step, quick_jit(step), quick_jit(initial)


def assert_close(one, other, atol):
    for mine, yours in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, yours, atol=atol, rtol=1e-4)


def test_vmap_over_seeds_is_each_seed_alone(small):
    step, jitted, initial = small
    seeds = jnp.arange(2)
    together, metrics = quick_jit(jax.vmap(step))(jax.vmap(initial)(seeds))
    for seed in range(2):
        alone, own = jitted(initial(seed))
        assert_close(alone.params, jax.tree.map(lambda a, i=seed: a[i], together.params), 1e-5)
        assert float(metrics["reward"][seed]) == float(own["reward"])


def test_scan_over_steps_is_the_loop(small):
    step, jitted, initial = small
    scan = quick_jit(lambda s: jax.lax.scan(lambda s, _: step(s), s, length=3))
    scanned, metrics = scan(initial(0))
    state = initial(0)
    for number in range(3):
        state, own = jitted(state)
        assert float(metrics["reward"][number]) == float(own["reward"])
    assert_close(state.params, scanned.params, 1e-5)


@pytest.fixture
def compilations():
    """A list that grows by one with every compilation."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def test_steps_compile_once_and_write_over_their_state(compilations):
    step, initial = make(SMALL)
    step = sharding.jit_step(MESH, step)
    state = sharding.replicated(MESH, initial(0))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.ref_params)))
    compiled = step.lower(state).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= held
    state, _ = step(state)
    assert compilations
    compilations.clear()
    for _ in range(3):
        state, _ = step(state)
    assert not compilations


def test_new_problems_and_draws_every_step(small):
    """With one state and another step number the rollout is another one."""
    _, jitted, initial = small
    state = initial(0)
    rewards = [
        float(jitted(state._replace(step=jnp.int32(step)))[1]["completions/mean_length"])
        for step in range(3)
    ]
    assert len(set(rewards)) > 1


def test_the_accelerator_preset_traces():
    config = EXPERIMENT["PRESETS"]["accelerator"]
    step, initial = make(config.training, EXPERIMENT["make_task"](config))
    state = jax.eval_shape(initial, 0)
    after, _ = jax.eval_shape(step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [a.dtype for a in jax.tree.leaves(after)] == [a.dtype for a in jax.tree.leaves(state)]


def test_lanes_change_how_and_not_what(small):
    """Fewer lanes leave fewer idle; what is sampled and learned is the same."""
    _, jitted, initial = small
    state, metrics = jitted(initial(0))
    step, _ = make(dataclasses.replace(SMALL, lanes=1))
    again, refilled = quick_jit(step)(initial(0))
    assert refilled.pop("occupancy") > metrics.pop("occupancy")
    assert_close(again.params, state.params, 1e-5)
    assert_close(refilled, metrics, 1e-5)


def test_the_layout_reaches_sampling_and_evidence(monkeypatch):
    seen = []

    def noted(function):
        def call(*arguments, **named):
            everything = (*arguments, *named.values())
            seen.extend(value for value in everything if isinstance(value, Layout))
            return function(*arguments, **named)

        return call

    for name in ("sample", "Context"):
        monkeypatch.setattr(train, name, noted(getattr(train, name)))
    step, initial = make(dataclasses.replace(SMALL, lanes=2))
    jax.eval_shape(step, jax.eval_shape(initial, 0))
    assert seen == [Layout(2, MESH)] * 2


def test_two_stages_start_from_one_warm_start(tmp_path, monkeypatch):
    """A stage leaves the state and the key that it starts from as they are."""
    quick_step = functools.partial(quick_jit, donate_argnums=0)
    monkeypatch.setattr(sharding, "jit_step", lambda mesh, step: quick_step(step))
    parts = train.build(SMALL, TASK)
    data = demonstrations(TASK, 0.4, count=64)
    warm_key, rl_key = jax.random.split(jax.random.key(0))
    new = train.untrained(parts, ONE_DEVICE, jax.random.key(1))
    stage = Stage("warm", tmp_path / "warm", 2)
    warm = train.warm_start(stage, parts, ONE_DEVICE, new, warm_key, data, lambda: False)
    assert same_bits(warm.ref_params, new.params) and not same_bits(warm.params, new.params)

    def reinforce(name):
        stage = Stage(name, tmp_path / name, 2, evaluate_every=1)
        judged = []

        def judge(state):
            judged.append(int(state.step))
            return {"pass@1": 0.0}

        where = (SMALL, parts, ONE_DEVICE, warm, rl_key)
        state = train.reinforce(stage, *where, lambda: False, judge)
        assert judged == [1, 2]
        return state

    one, other = reinforce("one"), reinforce("other")
    assert same_bits(one.params, other.params) and not same_bits(one.params, warm.params)
    assert same_bits(one.ref_params, warm.params)
