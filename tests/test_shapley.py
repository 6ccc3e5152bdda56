"""Shapley values: what makes them fair, and the estimate from orders of joining."""

import itertools

import numpy as np
import pytest
import reference_scores
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcredit import coalitions
from rlcredit.advantages.shapley import shapley_of_orders, shapley_value
from rlcredit.types import InputError

quickly = settings(max_examples=25, deadline=None, derandomize=True)
sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31)


def game(players, seed):
    """The values of all coalitions, with ties and both signs."""
    drawn = np.random.default_rng(seed).integers(-8, 9, 2**players)
    return (drawn / 8).astype(np.float32)


def along(value, order):
    """[orders, U + 1] the same game as the evidence has it along orders."""
    bit = 2 ** np.arange(order.shape[1])
    return value[(coalitions.joined(order) * bit).sum(axis=-1)]


def every_order(players):
    return np.array(list(itertools.permutations(range(players))))


@quickly
@given(sizes, seeds)
def test_it_is_the_mean_over_all_orders(players, seed):
    value = game(players, seed)
    wanted = reference_scores.shares(value)
    np.testing.assert_allclose(shapley_value(value), list(wanted.values()), atol=1e-5)


@quickly
@given(sizes, seeds)
def test_the_shares_sum_up_to_what_all_add(players, seed):
    value = game(players, seed)
    np.testing.assert_allclose(shapley_value(value).sum(), value[-1] - value[0], atol=1e-5)


@quickly
@given(st.integers(2, 5), seeds)
def test_players_who_add_the_same_have_the_same(players, seed):
    """Players 0 and 1: a coalition with only one of them is worth the same with the other."""
    index = np.arange(2**players)
    swapped = index & ~3 | (index & 1) << 1 | (index & 2) >> 1
    value = game(players, seed)
    value = (value + value[swapped]) / 2
    share = np.asarray(shapley_value(value))
    np.testing.assert_allclose(share[0], share[1], atol=1e-6)


@quickly
@given(sizes, seeds, st.integers(0, 4))
def test_a_player_who_adds_nothing_has_exactly_nothing(players, seed, idle):
    idle %= players
    value = game(players, seed)[np.arange(2**players) & ~(1 << idle)]
    assert shapley_value(value)[idle] == 0
    order = coalitions.orders(players, 7)
    assert shapley_of_orders(along(value, order), order)[idle] == 0


@quickly
@given(sizes, seeds, seeds)
def test_it_is_linear(players, one, other):
    left, right = game(players, one), game(players, other)
    together = shapley_value(2 * left - right)
    apart = 2 * shapley_value(left) - shapley_value(right)
    np.testing.assert_allclose(together, apart, atol=1e-5)


def test_gloves():
    """Players 0 and 1 have a left glove each, 2 the right one; a pair is worth 1."""
    value = np.float32([index >= 5 for index in range(8)])
    np.testing.assert_allclose(shapley_value(value), [1 / 6, 1 / 6, 4 / 6], rtol=1e-6)


def test_many_games_at_once():
    value = np.stack([game(3, seed) for seed in range(6)]).reshape(2, 3, 8)
    share = shapley_value(value)
    assert share.shape == (2, 3, 3)
    np.testing.assert_allclose(share[1, 2], shapley_value(value[1, 2]), atol=1e-6)


@pytest.mark.parametrize("players", range(1, 6))
def test_all_orders_give_the_value_itself(players):
    value, order = game(players, players), every_order(players)
    shares = shapley_of_orders(along(value, order), order)
    np.testing.assert_allclose(shares, shapley_value(value), atol=1e-5)


def test_some_orders_give_an_estimate_that_converges_and_always_sums_up():
    value = game(6, 0)
    wanted, errors = np.asarray(shapley_value(value)), []
    for count in (4, 64, 4096):
        order = coalitions.orders(6, count)
        shares = np.asarray(shapley_of_orders(along(value, order), order))
        np.testing.assert_allclose(shares.sum(), value[-1] - value[0], atol=1e-5)
        errors.append(np.abs(shares - wanted).max())
    assert errors[0] > 0.1 > errors[1] > errors[2] and errors[2] < 0.03


def test_coalitions_by_the_bits_of_their_index():
    np.testing.assert_array_equal(coalitions.all_coalitions(2), [[0, 0], [1, 0], [0, 1], [1, 1]])


def test_orders_are_permutations_and_always_the_same():
    order = coalitions.orders(12, 20)
    assert (np.sort(order, axis=1) == np.arange(12)).all()
    assert len(np.unique(order, axis=0)) == 20
    np.testing.assert_array_equal(order, coalitions.orders(12, 20))


def test_players_join_one_by_one():
    joined = coalitions.joined(np.array([[2, 0, 1]]))
    np.testing.assert_array_equal(joined, [[[0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1]]])


def test_all_coalitions_of_few_and_orders_of_many():
    assert coalitions.formed(coalitions.MOST, 3).shape == (2**10, 10)
    assert coalitions.formed(coalitions.MOST + 1, 3).shape == (3, 12, 11)


@pytest.mark.parametrize("players, count", [(0, 4), (31, 4), (11, 0)])
def test_numbers_that_cannot_be_used_are_named(players, count):
    named = f"orders={count}" if players == 11 else f"players={players}"
    with pytest.raises(InputError, match=named):
        coalitions.formed(players, count)
