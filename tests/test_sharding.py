"""Problems spread over devices: groups stay together, parameters are everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from stubs import quick_jit

from rlcredit import masked, recurrence
from rlcredit.sharding import (
    AXIS,
    jit_step,
    make_mesh,
    over_problems,
    over_rows,
    replicated,
    spread,
)
from rlcredit.testing.properties import COLLECTIVES
from rlcredit.types import InputError

REWARD = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
MASK = jnp.ones((8, 3), bool)


def test_mesh_has_all_devices_in_a_row_or_those_given():
    assert make_mesh().shape == {AXIS: 4}
    assert list(make_mesh(jax.devices()[1:3]).devices.flat) == jax.devices()[1:3]


def test_parameters_are_whole_on_every_device():
    tree = replicated(make_mesh(), {"a": REWARD, "b": jnp.int32(3)})
    assert all(len(leaf.devices()) == 4 and leaf.is_fully_replicated for leaf in tree.values())
    assert (tree["a"] == REWARD).all()


def test_a_group_stays_on_one_device():
    mesh = make_mesh()

    @quick_jit
    def center(reward, keys):
        reward, keys = over_problems(mesh, (reward, keys))
        return over_problems(mesh, (masked.center(reward, MASK, axis=1), keys))

    keys = jax.random.split(jax.random.key(0), 8)
    centered, keys = center(REWARD, keys)
    for array, shape in ((centered, (2, 3)), (keys, (2,))):
        shards = array.addressable_shards
        assert len({shard.device for shard in shards}) == 4
        assert {shard.data.shape for shard in shards} == {shape}
        assert sorted(shard.index[0].start or 0 for shard in shards) == [0, 2, 4, 6]
    np.testing.assert_allclose(centered, masked.center(REWARD, MASK, axis=1), atol=1e-6)


def test_group_statistics_need_no_communication():
    mesh = make_mesh()

    def program(axis):
        def center(reward):
            reward = over_problems(mesh, reward)
            return over_problems(mesh, masked.center(reward, MASK, axis=axis))

        return jax.jit(center).lower(REWARD).compile().as_text()

    assert "all-" not in program(1) and "all-reduce" in program(None)


def test_recursions_in_time_need_no_communication():
    sharded = NamedSharding(make_mesh(), PartitionSpec(AXIS))

    def program(reward, mask):
        final = jnp.zeros(len(reward))
        estimate = recurrence.gae(reward, reward, mask, final, discount=0.9, lambda_=0.8, ends=mask)
        return estimate, recurrence.latest(reward, mask), recurrence.running_max(reward)

    jitted = jax.jit(program, in_shardings=sharded, out_shardings=sharded)
    text = jitted.lower(REWARD, MASK).compile().as_text()
    assert not [name for name in COLLECTIVES if name in text]


@pytest.mark.parametrize("count", [6, 3, 1])
def test_problems_that_do_not_divide_are_refused(count):
    with pytest.raises(InputError, match=f"{count} problems do not divide over 4 devices"):
        jax.jit(lambda x: over_problems(make_mesh(), x))(jnp.zeros((count, 4)))
    jax.jit(lambda x: over_problems(make_mesh(jax.devices()[:1]), x))(jnp.zeros((count, 4)))


def test_a_loop_over_its_own_output_compiles_once():
    mesh = make_mesh()

    @quick_jit
    def step(params, reward):
        return params + jnp.mean(over_problems(mesh, reward)), 2 * reward

    params, reward = replicated(mesh, (jnp.zeros(()), REWARD))
    for _ in range(4):
        params, _ = step(params, reward)
    assert step._cache_size() == 1 and params.is_fully_replicated


def squares(rows, shared):
    """What a kernel may be: each row by itself."""
    return jnp.sin(rows["x"] @ shared)


def refused(rows, shared):
    raise AssertionError("the plain form of a kernel that could be called")


@pytest.mark.parametrize("rows, form", [(8, refused), (6, squares)])
def test_a_kernel_is_called_on_each_device_with_its_rows(rows, form):
    shared, x = jnp.arange(6.0).reshape(2, 3), jnp.linspace(0, 1, 2 * rows).reshape(rows, 2)
    seen = []

    def kernel(of_rows, shared):
        seen.append(of_rows["x"].shape[0])
        return squares(of_rows, shared)

    def step(shared, x):
        return jax.value_and_grad(lambda w: jnp.sum(over_rows(kernel, form, {"x": x}, w) ** 2))(
            shared
        )

    found = jit_step(make_mesh(), step)(jnp.copy(shared), x)
    wanted = step(shared, x)
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert seen == ([2, 8] if rows == 8 else [6])


def test_a_kernel_is_called_as_it_is_where_devices_are_apart_already():
    mesh = make_mesh()

    def own(x):
        return over_rows(lambda rows, _: rows * 2, refused, x)

    split = jax.sharding.PartitionSpec(AXIS)

    def step(state, x):
        return state, jax.shard_map(own, mesh=mesh, in_specs=split, out_specs=split)(x)

    _, doubled = jit_step(mesh, step)(replicated(mesh, jnp.zeros(())), jnp.ones(8))
    np.testing.assert_array_equal(doubled, 2 * np.ones(8))


def test_rows_that_are_spread_are_worked_on_by_all_devices():
    weight, x = jnp.ones((64, 64)), jnp.ones((16, 64))

    def flops(change):
        def step(weight, x):
            return jax.grad(lambda w: jnp.sum(jnp.tanh(change(x) @ w)))(weight)

        return jit_step(make_mesh(), step).lower(weight, x).compile().cost_analysis()["flops"]

    assert flops(spread) < 0.3 * flops(lambda x: x)
    np.testing.assert_array_equal(jit_step(make_mesh(), lambda x: spread(x) + 1)(jnp.ones(3)), 2)
