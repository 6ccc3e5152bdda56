"""Cases of the field log that are no table of numbers and belong to no other file."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlcredit import recurrence, update
from rlcredit.policy import Architecture, transformer
from rlcredit.tasks import TASKS
from rlcredit.types import Sampling


def test_fl_060_a_token_that_was_not_sampled_is_not_trained():
    """The mask is what was chosen; a forced end token behind it has no reward and no return."""
    mask = jnp.asarray([[True, True, False]])
    reward = jnp.asarray([[0.0, 1.0, 5.0]])
    ends = recurrence.last_chosen(mask)
    returns = recurrence.discounted_return(reward, mask, ends, discount=1.0)
    np.testing.assert_array_equal(returns, [[1.0, 1.0, 0.0]])


def test_fl_064_the_last_token_on_either_side_of_the_padding():
    """Expected index 3 and 1; counting the tokens would give 1 for both."""
    attention = jnp.asarray([[0, 0, 1, 1], [1, 1, 0, 0]], bool)
    last = recurrence.last_chosen(attention)
    np.testing.assert_array_equal(jnp.argmax(last, axis=-1), [3, 1])


def test_fl_075_there_is_no_dropout_to_be_left_on():
    names = {*inspect.signature(transformer).parameters, *Architecture._fields, *Sampling._fields}
    assert not [name for name in names if "drop" in name]
    policy = transformer(Architecture(vocabulary=5, width=8, layers=1, heads=2, kv_heads=1))
    params = policy.init(jax.random.key(0))
    tokens = jnp.asarray([[1, 2, 3]])
    first, second = (policy.forward(params, tokens)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_fl_102_the_schedule_goes_on_where_it_was():
    """The rate of update 7 comes from the count in the optimiser's state, which is checkpointed."""
    optimizer = update.guarded(optax.linear_schedule(0.0, 1e-3, 10), max_norm=1e9)
    params = {"w": jnp.zeros(1)}
    gradient = {"w": jnp.ones(1)}
    state = optimizer.init(params)
    for _ in range(6):
        _, state = optimizer.update(gradient, state, params)
    restored = jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(state))
    updates, _ = optimizer.update(gradient, restored, params)
    # Adam's step on a constant gradient is the rate itself.
    np.testing.assert_allclose(-updates["w"][0], 6e-4, rtol=1e-5)


def test_fl_119_fl_120_shapes_do_not_follow_lengths():
    """Prompts of 1 to 3 digits an operand make rows of one shape: one trace, no ragged batch."""
    task = TASKS["arithmetic"](digits=3, operands=2, operators="+")
    prompt = jax.jit(jax.vmap(task.prompt))
    lengths = set()
    for seed in range(3):
        problems = jax.vmap(task.draw)(jax.random.split(jax.random.key(seed), 64))
        tokens, length = prompt(problems)
        assert tokens.shape == (64, task.prompt_capacity)
        lengths |= set(length.tolist())
    assert len(lengths) > 2
    assert prompt._cache_size() == 1
