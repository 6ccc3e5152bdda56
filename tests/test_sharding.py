"""Problems spread over devices: groups stay together, parameters are everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit

from rlcredit import masked
from rlcredit.sharding import AXIS, make_mesh, over_problems, replicated
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
