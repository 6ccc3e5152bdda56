"""Does a credit find the tokens that matter? Each figure against examples worked by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rlcredit.oracle.batch import apart
from rlcredit.oracle.identification import Judged, identification, judged, shift_invariant_rmse

# One problem: a first choice 0.25 : 0.75, then one of 0.5 : 0.5 that matters after the first way
# alone. Edges are numbered 0 1, then 2 3 below the first and 4 5 below the second.
PROBABILITY = np.array([0.125, 0.125, 0.375, 0.375])
TOTAL = np.array([1.0, 3.0, 0.0, 0.0])
EDGE = np.array([[0, 2, 6], [0, 3, 6], [1, 4, 6], [1, 5, 6]])
ADVANTAGE = np.array([1.5, -0.5, -1.0, 1.0, 0.0, 0.0])
VISIT = np.array([0.25, 0.75, 0.125, 0.125, 0.375, 0.375])
NODE = np.array([0, 0, 1, 1, 2, 2])
MASK = EDGE < 6
OF_ROWS = np.append(ADVANTAGE, 0)[EDGE]
ROW = np.array([[[0, 1, 2]], [[3, 2, 1]]])  # two batches of one problem and three samples
BATCHES = apart(jnp.asarray(ROW), jax.random.key(0))


def handmade(advantage=ADVANTAGE):
    rollout = SimpleNamespace(mask=jnp.asarray(MASK[None]))
    truth = SimpleNamespace(
        probability=jnp.asarray(PROBABILITY[None]),
        total=jnp.asarray(TOTAL[None]),
        advantage=jnp.asarray(np.append(advantage, 0)[EDGE][None]),
    )
    return SimpleNamespace(
        tree=SimpleNamespace(rollout=rollout),
        truth=truth,
        edge=jnp.asarray(EDGE[None]),
        visit=jnp.asarray(VISIT[None]),
        advantage=jnp.asarray(advantage[None]),
        node=jnp.asarray(NODE[None]),
    )


def figures(credit_of_rows):
    """Of a credit [M, T] given to the rows."""
    credit = jnp.asarray(credit_of_rows)[ROW]
    return identification(judged(handmade(), BATCHES, credit))


def test_perfect_credit_finds_everything():
    found = figures(OF_ROWS)
    for name, wanted in {"rmse": 0, "spearman": 1, "sign_accuracy": 1, "leakage": 0}.items():
        np.testing.assert_allclose(found[name], [wanted] * 2, atol=1e-7, err_msg=name)
    # Rows 0 and 1 have nothing but decisions; row 2 and row 3 have one, the first token.
    np.testing.assert_allclose(found["recall"], [1, 1])


def test_what_matters_and_what_is_a_decision():
    batches = judged(handmade(), BATCHES, jnp.asarray(OF_ROWS)[ROW])
    np.testing.assert_array_equal(batches.mask[0, 0], MASK[[0, 1, 2]])
    np.testing.assert_allclose(batches.advantage[1, 0], OF_ROWS[[3, 2, 1]])
    expected = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]], bool)
    for field in (batches.matters, batches.decision):
        np.testing.assert_array_equal(field, expected[ROW])


@pytest.mark.parametrize("size, counted", [(0.9, False), (1.1, True)])
def test_one_percent_is_where_a_token_begins_to_matter(size, counted):
    deviation = np.sqrt(PROBABILITY @ (TOTAL - PROBABILITY @ TOTAL) ** 2)
    small = ADVANTAGE.copy()
    small[4:] = [-0.01 * size * deviation, 0.01 * size * deviation]
    batches = judged(handmade(small), BATCHES, jnp.zeros((2, 1, 3, 3)))
    assert batches.matters[0, 0, 2, 1] == counted
    large = ADVANTAGE.copy()  # half of each sign: E[advantage^2] is the square of both
    large[4:] = np.array([-1, 1]) * np.sqrt(0.01 * size) * deviation
    batches = judged(handmade(large), BATCHES, jnp.zeros((2, 1, 3, 3)))
    assert batches.decision[0, 0, 2, 1] == counted


def test_equal_credit_is_shared_out():
    """Half the tokens of row 2 and 3 are decisions: equal credit finds half of them."""
    total = TOTAL - PROBABILITY @ TOTAL
    found = figures(np.where(MASK, total[:, None], 0))
    np.testing.assert_allclose(found["recall"], [0.5, 0.5])
    one = np.where(MASK, 1.0, 0)
    constant = figures(one)
    np.testing.assert_array_equal(constant["spearman"], [0, 0])
    np.testing.assert_allclose(constant["recall"], [0.5, 0.5])


def test_credit_on_the_wrong_token_finds_nothing():
    wrong = np.where(MASK, [[0, 0, 0], [0, 0, 0], [0, -2, 0], [0, 2, 0]], 0).astype(float)
    found = figures(wrong)
    np.testing.assert_allclose(found["recall"], [0, 0])
    np.testing.assert_allclose(found["leakage"], [1, 1])
    np.testing.assert_allclose(found["sign_accuracy"], [0, 0])


def test_every_figure_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    shape = (4, 2, 3, 5)
    mask = rng.random(shape) < 0.7
    advantage, credit = rng.integers(-3, 4, size=(2, *shape)).astype(float)  # with ties
    matters, decision = mask & (advantage != 0), mask & (np.abs(advantage) > 1)
    found = identification(Judged(credit, advantage, mask, matters, decision))
    for j in range(4):
        chosen = [at for at in np.ndindex(shape[1:]) if mask[(j, *at)]]
        given = [credit[(j, *at)] for at in chosen]
        true = [advantage[(j, *at)] for at in chosen]
        mean_square = sum((a - b) ** 2 for a, b in zip(given, true, strict=True)) / len(chosen)
        np.testing.assert_allclose(found["rmse"][j], mean_square**0.5)
        ranks = [stats.rankdata(given), stats.rankdata(true)]
        np.testing.assert_allclose(found["spearman"][j], np.corrcoef(*ranks)[0, 1])
        right = [np.sign(a) == np.sign(b) for a, b in zip(given, true, strict=True) if b]
        np.testing.assert_allclose(found["sign_accuracy"][j], np.mean(right))
        lost = sum(abs(a) for a, b in zip(given, true, strict=True) if not b)
        np.testing.assert_allclose(found["leakage"][j], lost / sum(map(abs, given)))
        np.testing.assert_allclose(found["recall"][j], slow_recall(credit, mask, decision, j))


def slow_recall(credit, mask, decision, j):
    """The mean over episodes of the share of decisions in a random order of equal credits."""
    shares = []
    for n, k in np.ndindex(mask.shape[1:3]):
        tokens = np.flatnonzero(mask[j, n, k])
        wanted = int(decision[j, n, k].sum())
        if not 0 < wanted < tokens.size:
            continue
        size = np.abs(credit[j, n, k, tokens])
        is_decision = decision[j, n, k, tokens]
        total = 0.0
        for level in np.unique(size)[::-1]:
            tied = size == level
            room = min(max(wanted - int((size > level).sum()), 0), int(tied.sum()))
            total += room / tied.sum() * is_decision[tied].sum()
        shares.append(total / wanted)
    return np.mean(shares)


def test_there_is_nothing_to_judge_by_without_credit_or_decisions():
    mask, nothing = np.ones((1, 1, 1, 3), bool), np.zeros((1, 1, 1, 3))
    found = identification(Judged(nothing, nothing, mask, nothing > 0, nothing > 0))
    for name in ("leakage", "sign_accuracy", "recall"):
        assert np.isnan(found[name]).all(), name
    assert found["rmse"] == [0] and found["spearman"] == [0]


def test_a_number_of_the_prefix_makes_no_difference():
    rng = np.random.default_rng(2)
    credit, shift = rng.normal(size=6), rng.normal(size=3)
    distance = shift_invariant_rmse(handmade(), jnp.asarray((VISIT * credit)[None]))
    moved = VISIT * (credit + shift[NODE])
    np.testing.assert_allclose(shift_invariant_rmse(handmade(), moved[None]), distance, rtol=1e-5)
    best = np.zeros(3)
    for node in range(3):
        here = node == NODE
        best[node] = np.average((credit - ADVANTAGE)[here], weights=VISIT[here])
    square = np.average((credit - ADVANTAGE - best[NODE]) ** 2, weights=VISIT)
    np.testing.assert_allclose(distance, np.sqrt(square), rtol=1e-5)
    exact = VISIT * (ADVANTAGE + shift[NODE])
    np.testing.assert_allclose(shift_invariant_rmse(handmade(), exact[None]), 0, atol=1e-6)
