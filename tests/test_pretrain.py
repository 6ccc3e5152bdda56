"""Demonstrations are rows to imitate; the warm start learns them from batches of its own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, quick_jit, same_bits

from rlcredit.pretrain import demonstrations, make_pretrain_step, warm_start_optimizer
from rlcredit.score import score
from rlcredit.tasks import TASKS
from rlcredit.tasks.arithmetic import encode
from rlcredit.types import InputError, Sampling
from rlcredit.update import guarded, initial_state

TASK = TASKS["arithmetic"](digits=1, operators="+")
POLICY, PARAMS = network(vocabulary=len(TASK.vocabulary))
FROZEN = 4  # updates with learning rate 0
OPTIMIZER = guarded(lambda count: jnp.where(count < FROZEN, 0.0, 0.02))
END = encode("$")[0]


@pytest.fixture(scope="module")
def data():
    return demonstrations(TASK, 0.0, 0.0, count=32, seed=0)


@pytest.fixture(scope="module")
def step():
    return quick_jit(make_pretrain_step(POLICY, OPTIMIZER, batch=8))


def new_state(step=0, seed=0):
    state = initial_state(PARAMS, OPTIMIZER, jax.random.key(seed))
    return state._replace(step=jnp.int32(step))


def test_rows_are_a_prompt_and_its_solution(data):
    tokens, mask = map(np.asarray, data)
    assert tokens.shape == mask.shape == (32, TASK.prompt_capacity + TASK.horizon)
    assert tokens.dtype == np.int32 and mask.dtype == bool
    for row, chosen in zip(tokens, mask, strict=True):
        prompt, solution = TASK.text(row[~chosen]), TASK.text(row[chosen])
        assert solution == f"{eval(prompt[:-1])}$"
        start = len(prompt)
        assert np.flatnonzero(chosen).tolist() == list(range(start, start + len(solution)))
        assert row[chosen][-1] == END and not row[start + len(solution) :].any()


def test_rows_follow_the_seed(data):
    assert same_bits(demonstrations(TASK, 0.0, 0.0, count=32, seed=0), data)
    assert not same_bits(demonstrations(TASK, 0.0, 0.0, count=32, seed=1), data)


def test_a_solution_too_long_for_the_row_loses_its_tail():
    task = TASK._replace(demonstrate=lambda problems, *rest: [[2] * 50] * len(problems.operands))
    tokens, mask = demonstrations(task, 0.0, 0.0, count=32)
    assert (mask.sum(axis=1) == TASK.horizon).all() and not (tokens == END).any()


@pytest.mark.parametrize(
    "wrong, skipped, count, named",
    [(1.5, 0, 1, "wrong=1.5"), (0, -0.1, 1, "skipped=-0.1"), (0, 0, 0, "count=0"),
     (float("nan"), 0, 1, "wrong=nan")],
)  # fmt: skip
def test_impossible_demonstrations_are_refused_by_name(wrong, skipped, count, named):
    with pytest.raises(InputError, match=named):
        demonstrations(TASK, wrong, skipped, count=count)


def test_a_batch_depends_on_key_and_step_alone(step, data):  # FL-105
    losses, states = [], [new_state()]
    for _ in range(FROZEN):
        state, metrics = step(states[-1], data)
        losses.append(float(metrics["loss"]))
        states.append(state)
    assert same_bits(states[-1].params, PARAMS) and int(states[-1].step) == FROZEN
    assert len(set(losses)) == FROZEN
    for number in (3, 1):
        assert float(step(new_state(number), data)[1]["loss"]) == losses[number]
    assert float(step(new_state(3, seed=1), data)[1]["loss"]) != losses[3]


def test_loss_is_the_mean_over_solution_tokens(step, data):
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), data)
    _, metrics = step(new_state(), same)
    rescore = quick_jit(lambda rows: score(POLICY, PARAMS, rows, sampling=Sampling()).log_prob)
    wanted = -np.asarray(rescore(data.tokens))[0][np.asarray(data.mask[0])].mean()
    assert metrics["loss"] == pytest.approx(wanted, rel=1e-5)
    assert metrics["tokens"] == 8 * int(data.mask[0].sum())


def test_loss_falls(step, data):
    state, losses = new_state(), []
    for _ in range(150):
        state, metrics = step(state, data)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[:FROZEN]) > 1.5 and np.mean(losses[-10:]) < 0.4
    assert metrics["skipped_updates"] == 0 and same_bits(state.ref_params, PARAMS)
    assert step._cache_size() <= 2


@pytest.mark.parametrize("steps", [0, 1, 300])
def test_any_length_of_warm_start_has_an_optimizer(steps):
    optimizer = warm_start_optimizer(steps)
    params = jnp.ones(2)
    updates, _ = quick_jit(optimizer.update)(params, optimizer.init(params), params)
    assert jnp.isfinite(updates).all()
