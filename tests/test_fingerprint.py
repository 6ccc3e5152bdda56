"""The evidence `fingerprint` is the task's, of the state that each token was chosen in."""

import functools

import jax
import numpy as np
from stubs import network, quick_jit, talk, talks

from rlcredit.branching import grow
from rlcredit.credit import measure
from rlcredit.cuts import every
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.sharding import make_mesh
from rlcredit.types import Layout, Price, Sampling

PROBLEMS, HOW = 4, Sampling(0.8, legal=True)
TASK = talk()
POLICY, PARAMS = network()


@functools.cache
def tree():
    """Roots, and rows that branch off them; every choice is answered by chance."""
    problems, keys = talks(PROBLEMS), jax.random.split(jax.random.key(5), PROBLEMS)
    how = {"branching": (2, 2), "cut": every(2), "sampling": HOW}
    return quick_jit(lambda *drawn: grow(POLICY, PARAMS, TASK, *drawn, **how)[0])(problems, keys)


@functools.cache
def measured(devices=0):
    mesh = make_mesh(jax.devices()[:devices]) if devices else None
    context = Context(POLICY, PARAMS, PARAMS, TASK, HOW, Layout(mesh=mesh))
    call = functools.partial(measure, ("fingerprint",), context)
    found, price = quick_jit(call)(tree(), jax.random.key(0))
    return np.asarray(found["fingerprint"]), price


def test_it_is_that_of_the_state_before_each_chosen_token():
    """A state of `talk` sums the tokens chosen and what was drawn, which its feedback records."""
    rollout, found = jax.tree.map(np.asarray, tree()._replace(key=None)), measured()[0]
    told = rollout.tokens + rollout.feedback[..., 0].astype(int)
    before = np.cumsum(np.where(rollout.mask, told, 0), axis=-1) - told
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, np.where(rollout.mask, before % 97, 0))
    branched = rollout.mask & (rollout.branch_at > 0)[..., None]
    assert branched.any() and rollout.feedback[..., 0][branched].any()
    assert len(np.unique(found)) > 20


def test_its_price_is_one_environment_step_a_chosen_token():
    assert measured()[1] == Price(environment_steps=int(tree().mask.sum()))


def test_problems_may_be_spread_over_devices():
    found, price = measured(devices=2)
    np.testing.assert_array_equal(found, measured()[0])
    assert price == measured()[1]


def test_tokens_off_the_mask_do_not_matter():
    rollout = tree()
    changed = rollout._replace(tokens=np.where(rollout.mask, rollout.tokens, 3))
    context = Context(POLICY, PARAMS, PARAMS, TASK, HOW)
    found, _ = quick_jit(functools.partial(EVIDENCE["fingerprint"], context))(changed, None)
    np.testing.assert_array_equal(found, measured()[0])
