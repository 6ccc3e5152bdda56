"""The kernels of backward recursions, in interpret mode, against loops over the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from rlcredit import recurrence
from rlcredit.kernels import gae as gae_module
from rlcredit.kernels import recurrence as affine_module
from rlcredit.kernels.platform import compiling_for
from rlcredit.kernels.recurrence_gpu import scan_gpu
from rlcredit.kernels.recurrence_pairs import gae_by, reverse_affine_by
from rlcredit.kernels.recurrence_tpu import scan_tpu
from rlcredit.types import InputError

DISCOUNT, LAMBDA = 0.97, 0.9
GPU = pytest.param(
    "gpu",
    marks=pytest.mark.skipif(
        jax.__version_info__ < (0, 11), reason="interpret mode of Mosaic GPU needs JAX >= 0.11"
    ),
)
# More than a tile and a chunk, and neither of them whole.
RAGGED = {"tpu": (257, 521), "gpu": (131, 83)}


@functools.cache
def kernels(platform):
    """(reverse_affine, gae) in interpret mode, jitted."""
    if platform == "tpu":
        scan = functools.partial(scan_tpu, interpret=True)
    else:
        from jax.experimental.pallas import mosaic_gpu as plgpu

        params = plgpu.InterpretGPUParams(detect_races=True)
        scan = functools.partial(scan_gpu, interpret=params)
    gae = functools.partial(gae_by, scan, discount=DISCOUNT, lambda_=LAMBDA)
    return jax.jit(functools.partial(reverse_affine_by, scan)), jax.jit(gae)


def affine_loop(x, decay, initial):
    y, following = np.zeros(x.shape), initial.astype(float)
    for t in reversed(range(x.shape[1])):
        reaches = np.where(decay[:, t] == 0, 0, following)
        following = y[:, t] = x[:, t] + decay[:, t] * reaches
    return y


def gae_loop(reward, value, mask, final, *, ends=None, bootstrap=None):
    reward, value = reward.astype(float), value.astype(float)
    advantage, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for row in range(mask.shape[0]):
        next_value, next_advantage = float(final[row]), 0.0
        for t in reversed(np.flatnonzero(mask[row])):
            if ends is not None and ends[row, t]:
                next_value = 0.0 if bootstrap is None else float(bootstrap[row, t])
                next_advantage = 0.0
            delta = reward[row, t] + DISCOUNT * next_value - value[row, t]
            advantage[row, t] = delta + DISCOUNT * LAMBDA * next_advantage
            returns[row, t] = advantage[row, t] + value[row, t]
            next_value, next_advantage = value[row, t], advantage[row, t]
    return advantage, returns


def affine_arrays(shape):
    generator = np.random.default_rng(0)
    decay = generator.uniform(0.6, 1.03, shape) * generator.choice([-1, 1], shape)
    decay[generator.random(shape) < 0.3] = 1
    decay[generator.random(shape) < 0.02] = 0
    x = generator.normal(size=shape)
    x[::2, -1] = np.nan
    arrays = x, decay, generator.normal(size=shape[0])
    return tuple(a.astype(np.float32) for a in arrays)


def gae_arrays(shape):
    """(reward, value, mask, final), ends and bootstrap; nan wherever nobody should read."""
    generator = np.random.default_rng(1)
    chosen = np.array([0.1, 0.8, 1.0])[np.arange(shape[0]) % 3 - 1]
    mask = generator.random(shape) < chosen[:, None]
    mask[1:2] = False
    ends = generator.random(shape) < 0.02
    reward, value, bootstrap = generator.normal(size=(3, *shape)).astype(np.float32)
    reward[~mask] = value[~mask] = bootstrap[~(ends & mask)] = np.nan
    final = generator.normal(size=shape[0]).astype(np.float32)
    return (reward, value, mask, final), ends, bootstrap


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 1), None])
@pytest.mark.parametrize("platform", ["tpu", GPU])
def test_affine_is_its_definition(platform, shape):
    arrays = affine_arrays(shape or RAGGED[platform])
    close(kernels(platform)[0](*arrays), affine_loop(*arrays))


@pytest.mark.parametrize("shape", [(1, 1), None])
@pytest.mark.parametrize("platform", ["tpu", GPU])
def test_gae_is_its_definition(platform, shape):
    arrays, _, _ = gae_arrays(shape or RAGGED[platform])
    close(kernels(platform)[1](*arrays), gae_loop(*arrays))


@pytest.mark.parametrize("bootstraps", [False, True])
@pytest.mark.parametrize("platform", ["tpu", GPU])
def test_gae_of_several_episodes_in_a_row(platform, bootstraps):
    arrays, ends, bootstrap = gae_arrays(RAGGED[platform])
    # What is not finite in one episode stays there.
    arrays[0][:, -20:] = np.nan
    several = {"ends": ends, **({"bootstrap": bootstrap} if bootstraps else {})}
    found, wanted = kernels(platform)[1](*arrays, **several), gae_loop(*arrays, **several)
    assert np.isnan(wanted).any() and np.isfinite(wanted[0]).mean() > 0.5
    close(found, wanted)


def test_bootstrap_needs_ends():
    (reward, value, mask, final), _, bootstrap = gae_arrays((2, 3))
    with pytest.raises(InputError, match="bootstrap needs ends"):
        recurrence.gae(reward, value, mask, final, discount=1, lambda_=1, bootstrap=bootstrap)


def test_tpu_kernels_have_no_races(capsys):
    interpret = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2)
    shape = RAGGED["tpu"]
    affine = affine_arrays(shape)
    scan = functools.partial(scan_tpu, interpret=interpret)
    close(reverse_affine_by(scan, *affine), affine_loop(*affine))
    arrays, ends, bootstrap = gae_arrays(shape)
    several = {"ends": ends, "bootstrap": bootstrap}
    found = gae_by(scan, *arrays, discount=DISCOUNT, lambda_=LAMBDA, **several)
    close(found, gae_loop(*arrays, **several))
    assert "RACE" not in capsys.readouterr().out


@pytest.mark.parametrize("several", [False, True])
def test_the_front_calls_the_kernels_and_has_the_gradient_of_the_plain_form(monkeypatch, several):
    scan = functools.partial(scan_tpu, interpret=True)
    for module in (gae_module, affine_module):
        monkeypatch.setattr(module, "scan_kernel", lambda: scan)
    arrays, ends, bootstrap = gae_arrays((6, 9))
    reward, value, mask, final = (np.nan_to_num(a.reshape(2, 3, *a.shape[1:])) for a in arrays)
    more = {"ends": ends.reshape(mask.shape), "bootstrap": np.nan_to_num(bootstrap)}
    more = {name: array.reshape(mask.shape) for name, array in more.items()} if several else {}

    def total(reward, value, final, platform):
        with compiling_for(platform):
            pair = recurrence.gae(
                reward, value, mask, final, discount=DISCOUNT, lambda_=LAMBDA, **more
            )
            affine = recurrence.reverse_affine(reward, value, final)
        return jnp.sum(jnp.sin(pair[0]) + pair[1]) + jnp.sum(jnp.cos(affine))

    graded = jax.value_and_grad(total, (0, 1, 2))
    found, wanted = (graded(reward, value, final, name) for name in ("tpu", "cpu"))
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
