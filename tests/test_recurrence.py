"""Backward recursions against plain loops, with several episodes in a row."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit import recurrence
from rlcredit.kernels.gae import gae_time_major
from rlcredit.kernels.platform import compiling_for, platform
from rlcredit.testing import measured, rollouts

ROWS, LENGTH = 200, 12
DISCOUNT, LAMBDA = 0.9, 0.7
equal = functools.partial(np.testing.assert_allclose, atol=1e-5, rtol=1e-5)


@pytest.fixture(params=["cpu", "another"], autouse=True)
def form(request):
    """Position after position, or in passes over all of them."""
    with compiling_for(request.param):
        yield request.param


@pytest.fixture(scope="module")
def data():
    """200 rows of random reward, values, mask and ends; ends lie on chosen tokens."""
    rng = np.random.default_rng(0)
    reward, value, following = rng.normal(size=(3, ROWS, LENGTH)).astype(np.float32)
    mask = rng.random((ROWS, LENGTH)) < 0.7
    mask[0] = False
    ends = mask & (rng.random((ROWS, LENGTH)) < 0.25)
    ends |= np.asarray(recurrence.last_chosen(mask))
    for row in range(ROWS):  # inside an episode the value that follows is that of the next token
        chosen = np.flatnonzero(mask[row])
        for t, after in itertools.pairwise(chosen):
            following[row, t] = following[row, t] if ends[row, t] else value[row, after]
    return {"reward": reward, "value": value, "following": following, "mask": mask, "ends": ends}


def episodes(data):
    """(row, positions of the chosen tokens) of every episode of every row."""
    for row, (mask, ends) in enumerate(zip(data["mask"], data["ends"], strict=True)):
        positions = []
        for t in np.flatnonzero(mask):
            positions.append(t)
            if ends[t]:
                yield row, positions
                positions = []
        assert not positions


def forwards(data, credit_at):
    """credit_at(rewards, values, next values of the rest of the episode) at each chosen token."""
    result = np.zeros((ROWS, LENGTH))
    for row, positions in episodes(data):
        for i, t in enumerate(positions):
            rest = positions[i:]
            names = ("reward", "value", "following")
            result[row, t] = credit_at(*(data[name][row, rest].astype(float) for name in names))
    return result


def spoiled(data):
    return {k: np.where(data["mask"], a, np.nan) if a.dtype != bool else a for k, a in data.items()}


def gae(data, **more):
    """Of rows that hold several episodes; the values behind their ends are `following`."""
    arrays = (data[k] for k in ("reward", "value", "mask"))
    nowhere = np.full(ROWS, 7.0, np.float32)  # each row's last chosen token is an end
    return recurrence.gae(
        *arrays, nowhere, ends=data["ends"], **{"bootstrap": data["following"]} | more
    )


def powers(base, count):
    return base ** np.arange(count)


def test_discounted_return_equals_the_loop(data):
    want = forwards(data, lambda r, v, f: powers(DISCOUNT, len(r)) @ r)
    d = spoiled(data)
    got = recurrence.discounted_return(d["reward"], d["mask"], d["ends"], discount=DISCOUNT)
    equal(got, want)


def test_gae_equals_the_loop(data):
    def credit_at(r, v, f):
        return powers(DISCOUNT * LAMBDA, len(r)) @ (r + DISCOUNT * f - v)

    advantage, returns = gae(spoiled(data), discount=DISCOUNT, lambda_=LAMBDA)
    want = forwards(data, credit_at)
    equal(advantage, want)
    equal(returns, np.where(data["mask"], want + data["value"], 0))


@pytest.mark.parametrize("discount, lambda_", [(1.0, 1.0), (DISCOUNT, 1.0), (1.0, LAMBDA)])
def test_gae_of_whole_rows_equals_the_loop(data, discount, lambda_):
    reward, value, mask = (data[name] for name in ("reward", "value", "mask"))
    final = data["following"][:, 0]
    want = np.zeros((ROWS, LENGTH))
    for row in range(ROWS):
        after, flows = final[row], 0.0
        for t in reversed(np.flatnonzero(mask[row])):
            delta = reward[row, t] + discount * after - value[row, t]
            flows = want[row, t] = delta + discount * lambda_ * flows
            after = value[row, t]
    d = spoiled(data)
    own = {"discount": discount, "lambda_": lambda_}
    equal(recurrence.gae(d["reward"], d["value"], mask, final, **own)[0], want)
    each = own | {"discount": np.full((ROWS, LENGTH), discount, np.float32)}
    equal(recurrence.gae(d["reward"], d["value"], mask, final, **each)[0], want)


@pytest.mark.parametrize("bootstraps", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_gae_of_arrays_with_time_first_is_the_same(data, several, bootstraps):
    d = {name: np.where(data["mask"], array, 0) for name, array in data.items()}
    final = data["following"][:, 0]
    more = {"ends": d["ends"]} if several else {}
    more |= {"bootstrap": d["following"]} if several and bootstraps else {}
    arrays = tuple(d[name] for name in ("reward", "value", "mask"))
    both = {"discount": DISCOUNT, "lambda_": LAMBDA}
    want = recurrence.gae(*arrays, final, **both, **more)
    turned = {name: array.T for name, array in more.items()}
    got = gae_time_major(*(a.T for a in arrays), final, **both, **turned)
    equal([a.T for a in got], want)


def test_an_end_off_the_mask_is_none(data):
    both = {"discount": DISCOUNT, "lambda_": LAMBDA}
    everywhere = data | {"ends": data["ends"] | ~data["mask"]}
    equal(gae(everywhere, **both), gae(data, **both))


def test_nothing_lies_behind_an_end_without_a_bootstrap(data):
    both = {"discount": DISCOUNT, "lambda_": LAMBDA}
    bootstrap = np.zeros((ROWS, LENGTH), np.float32)
    equal(gae(data, bootstrap=None, **both), gae(data, bootstrap=bootstrap, **both))


def test_lambda_return_equals_the_loop(data):
    def credit_at(r, v, f):
        share = np.array([1 - LAMBDA] * (len(r) - 1) + [1])  # the last bootstrap counts in full
        return powers(DISCOUNT * LAMBDA, len(r)) @ (r + DISCOUNT * share * f)

    d = spoiled(data)
    arrays = [d[k] for k in ("reward", "following", "mask", "ends")]
    got = recurrence.lambda_return(*arrays, discount=DISCOUNT, lambda_=LAMBDA)
    equal(got, forwards(data, credit_at))


def test_all_give_exactly_0_off_the_mask(data):
    d = spoiled(data)
    reward, _, following, mask, ends = d.values()
    both = {"discount": DISCOUNT, "lambda_": LAMBDA}
    for got in (
        recurrence.discounted_return(reward, mask, ends, discount=DISCOUNT),
        *gae(d, **both),
        recurrence.lambda_return(reward, following, mask, ends, **both),
    ):
        assert got.dtype == jnp.float32 and not np.any(got[~mask])


def test_gradient_is_finite_and_0_off_the_mask(data):
    d = spoiled(data)

    def total(reward, value):
        own = d | {"reward": reward, "value": value}
        return gae(own, discount=DISCOUNT, lambda_=LAMBDA)[0].sum()

    for gradient in jax.grad(total, argnums=(0, 1))(d["reward"], d["value"]):
        assert np.isfinite(gradient).all() and not np.any(gradient[~d["mask"]])


def test_one_discount_for_each_chosen_token_however_far_apart():
    mask = np.array([1, 0, 0, 0, 1, 0, 1], bool)
    reward = np.where(np.arange(7) == 6, 1.0, 0.0)
    ends = recurrence.last_chosen(mask)
    got = recurrence.discounted_return(reward, mask, ends, discount=0.5)
    equal(got, [0.25, 0, 0, 0, 0.5, 0, 1])


@pytest.mark.parametrize("initial", [0.0, 2.0])
def test_reverse_affine_equals_the_loop(initial):
    x, decay = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    want, following = np.zeros((3, 5)), np.full(3, initial)
    for t in reversed(range(5)):
        following = want[:, t] = x[:, t] + decay[:, t] * following
    equal(recurrence.reverse_affine(x, decay, initial), want)


def test_last_chosen_is_one_token_or_none():
    mask = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], bool)
    want = [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    np.testing.assert_array_equal(recurrence.last_chosen(mask), np.array(want, bool))


@pytest.mark.parametrize("seed", range(3))
def test_next_value_equals_the_loop(seed):
    rng = np.random.default_rng(seed)
    rollout = rollouts.random_rollout(rng)
    value = measured.evidence_for(rng, rollout, ["value"])["value"]
    want = np.zeros(rollout.mask.shape)
    for row in np.ndindex(rollout.mask.shape[:2]):
        following = 0 if rollout.terminated[row] else value[row][rollout.length[row]]
        for t in reversed(np.flatnonzero(rollout.mask[row])):
            want[row][t], following = following, value[row][t]
    got = recurrence.next_value(value, rollout.mask, rollout.length, rollout.terminated)
    np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("terminated, final", [(False, 9.0), (True, 0.0)])
def test_next_value_reads_the_observation_after_the_last_choice(terminated, final):
    value = np.float32([0, 1, 2, 3, 9, 99])
    mask = np.array([0, 1, 1, 0, 0], bool)
    got = recurrence.next_value(value, mask, np.int32(4), np.bool_(terminated))
    equal(got, [0, 2, final, 0, 0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["float", "int", "bool"])
def test_running_sums_equal_numpy(kind, reverse):
    x = np.random.default_rng(0).integers(0, 2, (3, 4, 7))
    x = x.astype({"float": np.float32, "int": np.int32, "bool": bool}[kind])
    turned = x[..., ::-1] if reverse else x
    want = np.cumsum(turned, axis=-1, dtype=np.int32 if kind == "bool" else x.dtype)
    got = recurrence.running_sum(jnp.asarray(x), reverse=reverse)
    np.testing.assert_array_equal(got, want[..., ::-1] if reverse else want)
    assert got.dtype == want.dtype


def test_running_maxima_equal_numpy():
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    want = np.maximum.accumulate(x, axis=-1)
    np.testing.assert_array_equal(recurrence.running_max(jnp.asarray(x)), want)


def test_the_platform_is_the_default_one_unless_said_otherwise(form):
    assert platform() == form
    with compiling_for("tpu"):
        assert platform() == "tpu"
    assert platform() == form


def test_the_latest_and_the_next_entry_equal_loops():
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(4, 9)).astype(np.float32), rng.random((4, 9)) < 0.4
    at[0], final = False, np.float32([5, 6, 7, 8])
    before, after = np.zeros((4, 9), np.float32), np.zeros((4, 9), np.float32)
    for row in range(4):
        newest, following = 0.0, final[row]
        for t in range(9):
            newest = before[row, t] = x[row, t] if at[row, t] else newest
        for t in reversed(range(9)):
            after[row, t] = following
            following = x[row, t] if at[row, t] else following
    np.testing.assert_array_equal(recurrence.latest(jnp.asarray(x), jnp.asarray(at)), before)
    got = recurrence.next_at(jnp.asarray(x), jnp.asarray(at), jnp.asarray(final))
    np.testing.assert_array_equal(got, after)
