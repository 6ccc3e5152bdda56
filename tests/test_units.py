"""What credit is given to as one: every unit against a slow loop, names, sums over units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import chosen
from reference_branches import segments

from rlcredit import units
from rlcredit.testing.grafts import graft
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError

RNG = np.random.default_rng(5)
ROLLOUT = graft(RNG, random_rollout(RNG, 6, 4))
ENTROPY = evidence_for(RNG, ROLLOUT, ["entropy"])["entropy"]
SHAPE = ROLLOUT.mask.shape


def numbers(begins):
    """[N, K, T]: units that open at the chosen tokens for which `begins(row, tokens, i)`."""
    unit = np.full(SHAPE, -1)
    for row in np.ndindex(SHAPE[:2]):
        positions, number = chosen(ROLLOUT.mask[row]), -1
        for i, t in enumerate(positions):
            number += bool(i == 0 or begins(row, positions, i))
            unit[row][t] = number
    return unit


def changes(field):
    return lambda row, at, i: field[row][at[i]] != field[row][at[i - 1]]


def unsure(row, at, i):
    """The third, the fifth ... of the tokens of probability below 0.5 (every second)."""
    seen = [t for t in at[: i + 1] if np.exp(ROLLOUT.log_prob[row][t]) < 0.5]
    return bool(seen) and seen[-1] == at[i] and (len(seen) - 1) % 2 == 0


def uncertain(row, at, i):
    ranked = sorted(at, key=lambda t: -ENTROPY[row][t])
    return at[i] in ranked[: int(np.ceil(0.4 * len(at)))]


def forks(row, at, i):
    return at[i] in {piece[0] for _, piece in dict(segments(ROLLOUT))[row]}


CASES = {
    "token": lambda row, at, i: True,
    "step": changes(ROLLOUT.step),
    "turn": changes(ROLLOUT.turn),
    "episode": lambda row, at, i: False,
    "segment:3": lambda row, at, i: i % 3 == 0,
    "low_probability:0.5:2": unsure,
    "high_entropy:0.4": uncertain,
    "fork": forks,
}


@pytest.mark.parametrize("name", CASES)
def test_units_are_those_of_a_slow_loop(name):
    function, by_entropy = units.find(name)
    assert by_entropy == name.startswith("high_entropy")
    # What lies off the mask is not read.
    spoiled = ROLLOUT._replace(log_prob=np.where(ROLLOUT.mask, ROLLOUT.log_prob, np.nan))
    entropy = np.where(ROLLOUT.mask, ENTROPY, np.nan)
    found = jax.jit(function)(spoiled, **({"entropy": entropy} if by_entropy else {}))
    np.testing.assert_array_equal(found, numbers(CASES[name]))
    assert len(CASES) == len(units.UNITS)


@pytest.mark.parametrize(
    "name, said",
    [
        ("word", "word"),
        ("step:3", "step has 0 settings"),
        ("segment:x", "length='x'"),
        ("segment:0", "length=0"),
        ("low_probability:0.9:5:1", "2 settings"),
        ("", "''"),
    ],
)
def test_a_unit_that_is_none_is_refused_by_name(name, said):
    with pytest.raises(InputError, match=r"known are|settings|not of type|above 0") as caught:
        units.find(name)
    assert said in str(caught.value)


def test_sums_and_numbers_of_units():
    unit = jnp.asarray([[[-1, 0, 0, -1, 1, 2, -1]]])
    x = jnp.asarray([[[jnp.nan, 1.0, 2.0, jnp.inf, 4.0, 8.0, jnp.nan]]])
    sums = units.per_unit(x, unit)
    np.testing.assert_array_equal(sums[0, 0, :3], [3, 4, 8])
    assert not np.any(sums[0, 0, 3:])
    np.testing.assert_array_equal(units.of_unit(sums, unit)[0, 0], [0, 3, 3, 0, 4, 8, 0])
    np.testing.assert_array_equal(units.opens(unit)[0, 0], [0, 1, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal(units.closes(unit)[0, 0], [0, 0, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(units.capped(unit, 2)[0, 0], [-1, 0, 0, -1, 1, 1, -1])
