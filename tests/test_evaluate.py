"""pass@k is exact, and a report says what a policy does on the held-out problems."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, parameters, quick_jit, scripts, tape

from rlcredit.evaluate import make_evaluate, make_judge, pass_at_k, trade_off
from rlcredit.rollout import ALL_AT_ONCE, sample
from rlcredit.tasks import TASKS
from rlcredit.types import InputError, Sampling, TrainState

POLICY, PARAMS = network()
HOW = Sampling(0.7)
K = 3
SAMPLES = 2 * K  # as many as a judge takes
PROMPTS = (1, 2, 3, 4, 1, 2)
# Two that any token solves, two that none does, two that half of the tokens solve.
REWARD = np.asarray([[1], [1], [-1], [0], [1], [1]])


def held_out(count, seed):
    problems = scripts(*["?"] * count, reward=REWARD, horizon=1, prompt_length=PROMPTS)
    return problems._replace(end=jnp.asarray([-1] * 4 + [-2] * 2))


def step(problem, count, token, key):
    earns = (problem.end == -1) | (token < 5)
    after = tape().step(problem, count, token, key)
    return after._replace(reward=jnp.where(earns, problem.reward[0], 0), terminated=count == 0)


TASK = tape(horizon=1)._replace(held_out=held_out, step=step)


def exact(n, c, k):
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


@pytest.mark.parametrize(
    "n, c, k, wanted",
    [
        (10, 3, 5, 0.9166667), (4, 1, 2, 0.5), (5, 5, 3, 1.0),
        (5, 0, 3, 0.0), (8, 2, 8, 1.0), (6, 2, 1, 0.3333333),
    ],
)  # fmt: skip
def test_edges_of_pass_at_k(n, c, k, wanted):  # FL-130
    assert float(pass_at_k(jnp.int32(c), n, k)) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(
    "n, c, k, wanted",
    [(1000, 5, 100, 0.4101678), (2000, 3, 500, 0.5783361), (10000, 1, 100, 0.01)],
)
def test_large_counts_do_not_overflow(n, c, k, wanted):  # FL-131
    assert float(pass_at_k(jnp.int32(c), n, k)) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("n", [1, 6])
def test_pass_at_k_is_exact_and_rises_with_k(n):
    correct = jnp.arange(n + 1)
    rows = np.asarray([pass_at_k(correct, n, k) for k in range(1, n + 1)])
    wanted = [[exact(n, c, k) for c in range(n + 1)] for k in range(1, n + 1)]
    np.testing.assert_allclose(rows, wanted, atol=1e-6)
    np.testing.assert_allclose(rows[0], np.arange(n + 1) / n, atol=1e-6)
    assert (np.diff(rows, axis=0) >= 0).all()
    assert rows.dtype == np.float32


def test_pass_at_k_keeps_the_shape_and_refuses_other_k():
    assert pass_at_k(jnp.zeros((2, 3), jnp.int32), 4, 2).shape == (2, 3)
    for k in (0, 5):
        with pytest.raises(InputError, match=f"pass@{k}"):
            pass_at_k(jnp.int32(1), 4, k)


@pytest.fixture(scope="module")
def judge():
    """`judge(ref_params)`: what is said of PARAMS."""
    inner = make_judge(POLICY, TASK, HOW, ALL_AT_ONCE, k=K, problems=6)
    return lambda ref_params: inner(TrainState(PARAMS, ref_params, None, None, None))


def test_report_counts_what_was_solved(judge):
    keys, problems = jax.random.split(jax.random.key(0), 6), held_out(6, 0)

    @quick_jit
    def run():
        return sample(POLICY, PARAMS, TASK, problems, keys, samples=SAMPLES, sampling=HOW)[0]

    rows = run()
    tokens = np.asarray(jnp.sum(jnp.where(rows.mask, rows.tokens, 0), axis=-1))
    correct = np.asarray([SAMPLES, SAMPLES, 0, 0, *(tokens[4:] < 5).sum(axis=1)])
    assert 0 < correct[4:].sum() < 2 * SAMPLES
    report = judge(PARAMS)
    assert list(report) == ["pass@1", "pass@3", "greedy", "entropy", "kl", "mean_length"]
    assert all(type(value) is float for value in report.values())
    assert report["pass@1"] == pytest.approx(np.mean(correct / SAMPLES), abs=1e-6)
    wanted = np.mean([exact(SAMPLES, int(c), K) for c in correct])
    assert report["pass@3"] == pytest.approx(wanted, abs=1e-6)
    assert report["mean_length"] == 1
    likeliest = np.argmax(np.stack([distribution(PARAMS, p) for p in (1, 2)]), axis=-1)
    assert report["greedy"] == pytest.approx((2 + (likeliest < 5).sum()) / 6, abs=1e-6)


@quick_jit
def prefix_logits(params):
    """Every prompt is a prefix of one row, so that one pass reads them all."""
    hidden, _ = POLICY.forward(params, jnp.asarray([[1, 2, 3, 1]]))
    return hidden[0] @ POLICY.head(params)


def distribution(params, prompt_length):
    z = np.asarray(prefix_logits(params), np.float64)[prompt_length - 1] / HOW.temperature
    return np.exp(z) / np.exp(z).sum()


def test_entropy_and_kl_are_exact(judge):
    other = parameters(POLICY, 3)
    report = judge(other)
    own = np.stack([distribution(PARAMS, size) for size in PROMPTS])
    reference = np.stack([distribution(other, size) for size in PROMPTS])
    entropy = -(own * np.log(own)).sum(axis=1).mean()
    kl = (own * np.log(own / reference)).sum(axis=1).mean()
    assert report["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert report["kl"] == pytest.approx(kl, rel=1e-4) and kl > 0.1


def test_kl_of_equal_policies_is_zero(judge):
    assert judge(PARAMS)["kl"] == 0


def test_what_cannot_be_evaluated_is_refused():
    task = TASKS["arithmetic"](digits=1, operators="+")
    policy, _ = network(vocabulary=len(task.vocabulary))
    with pytest.raises(InputError, match="21 held-out problems"):
        make_evaluate(policy, task, problems=21, samples=2, k=2, sampling=HOW)
    with pytest.raises(InputError, match="pass@3 needs at least 3 samples"):
        make_evaluate(policy, task, problems=20, samples=2, k=3, sampling=HOW)


@pytest.mark.parametrize(
    "one, many, sentence",
    [
        (0.25, -0.125, "pass@1 rose by 0.250 while pass@8 fell by 0.125"),
        (-0.25, 0.125, "pass@8 rose by 0.125 while pass@1 fell by 0.250"),
        (0.25, 0.125, None),
        (-0.25, -0.125, None),
        (0.25, 0.0, None),
        (0.0, 0.0, None),
    ],
)
def test_trade_off_is_said_where_the_curves_part(one, many, sentence):
    before = {"pass@1": 0.5, "pass@8": 0.5}
    after = {"pass@1": 0.5 + one, "pass@8": 0.5 + many}
    assert trade_off(before, after, 8) == sentence
