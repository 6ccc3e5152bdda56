"""The training step of an experiment as a pure function: vmap, scan, devices, recompilation."""

import dataclasses
import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit import sharding, update

EXPERIMENT = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "arithmetic.py"))
MESH = sharding.make_mesh()
SMALL = dataclasses.replace(
    EXPERIMENT["PRESETS"]["cpu"], width=16, layers=1, problems=4, samples=2, accumulate=1
)


def make(config):
    """(train_step, initial state)."""
    parts = EXPERIMENT["build"](config)
    optimizer = update.guarded(1e-3)
    place = functools.partial(sharding.over_problems, MESH)
    collect = EXPERIMENT["make_collect"](config, parts, place)
    step = EXPERIMENT["make_train_step"](config, parts, collect, optimizer)

    def initial(seed):
        init_key, key = jax.random.split(jax.random.key(seed))
        return update.initial_state(parts.policy.init(init_key), optimizer, key)

    return step, initial


@pytest.fixture(scope="module")
def small():
    step, initial = make(SMALL)
    return step, jax.jit(step), jax.jit(initial)


def assert_close(one, other, atol):
    for mine, yours in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, yours, atol=atol, rtol=1e-4)


def test_vmap_over_seeds_is_each_seed_alone(small):
    step, jitted, initial = small
    seeds = jnp.arange(2)
    together, metrics = jax.jit(jax.vmap(step))(jax.vmap(initial)(seeds))
    for seed in range(2):
        alone, own = jitted(initial(seed))
        assert_close(alone.params, jax.tree.map(lambda a, i=seed: a[i], together.params), 1e-5)
        assert float(metrics["reward"][seed]) == float(own["reward"])


def test_scan_over_steps_is_the_loop(small):
    step, jitted, initial = small
    scanned, metrics = jax.jit(lambda s: jax.lax.scan(lambda s, _: step(s), s, length=3))(
        initial(0)
    )
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
    step, initial = make(EXPERIMENT["PRESETS"]["accelerator"])
    state = jax.eval_shape(initial, 0)
    after, _ = jax.eval_shape(step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert [a.dtype for a in jax.tree.leaves(after)] == [a.dtype for a in jax.tree.leaves(state)]
