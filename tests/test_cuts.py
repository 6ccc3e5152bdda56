"""Where trees branch: cuts by name, and the positions that they give."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit import cuts
from rlcredit.testing.grafts import graft
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError

RNG = np.random.default_rng(3)
ROLLOUT = graft(RNG, random_rollout(RNG, 6, 4))


def positions(name, stage):
    return np.asarray(cuts.find(name)(ROLLOUT, stage))


def each_row():
    return np.ndindex(ROLLOUT.mask.shape[:2])


def test_every_cuts_before_a_number_of_chosen_tokens():
    for stage in (1, 2):
        found = positions("every:2", stage)
        for row in each_row():
            chosen = np.flatnonzero(ROLLOUT.mask[row])
            assert found[row] == (chosen[2 * stage] if len(chosen) > 2 * stage else -1)


def test_a_unit_is_cut_before_its_first_token():
    for stage in (1, 2):
        found = positions("unit:step", stage)
        assert np.any(found >= 0)
        for row in each_row():
            steps = list(dict.fromkeys(ROLLOUT.step[row][ROLLOUT.mask[row]]))
            wanted = -1
            if len(steps) > stage:
                wanted = np.flatnonzero(ROLLOUT.mask[row] & (ROLLOUT.step[row] == steps[stage]))[0]
            assert found[row] == wanted


def test_what_surprised_most_of_the_rows_own_is_cut():
    found = positions("surprising", 1)
    assert np.any(found >= 0) and np.any(ROLLOUT.branch_at > 0)
    for row in each_row():
        chosen = np.flatnonzero(ROLLOUT.mask[row])[1:]
        own = [t for t in chosen if t > ROLLOUT.branch_at[row]]
        wanted = min(own, key=lambda t, row=row: ROLLOUT.log_prob[row][t], default=-1)
        assert found[row] == wanted
    spoiled = ROLLOUT._replace(log_prob=jnp.where(ROLLOUT.mask, ROLLOUT.log_prob, jnp.nan))
    np.testing.assert_array_equal(cuts.surprising(spoiled, 1), found)


def test_of_equal_surprises_the_first_is_cut_and_in_every_stage():
    equal = ROLLOUT._replace(log_prob=np.where(ROLLOUT.mask, np.float32(-1), 0))
    found = np.asarray(cuts.surprising(equal, 1))
    for row in each_row():
        chosen = np.flatnonzero(ROLLOUT.mask[row])[1:]
        assert found[row] == min((t for t in chosen if t > ROLLOUT.branch_at[row]), default=-1)
    np.testing.assert_array_equal(cuts.surprising(equal, 2), found)


@pytest.mark.parametrize(
    "name", ["every", "every:0", "every:x", "unit", "unit:word", "unit:high_entropy", "best", ""]
)
def test_a_cut_that_is_none_is_refused_by_name(name):
    with pytest.raises(InputError) as caught:
        cuts.find(name)
    assert name.removeprefix("unit:") in str(caught.value)
