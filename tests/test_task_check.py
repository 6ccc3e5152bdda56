"""A task that is not what it says is refused by name, before or after it was played."""

import jax
import jax.numpy as jnp
import pytest
from stubs import HORIZON, network, scripts, talk, tape

from rlcredit.rollout import sample
from rlcredit.task_check import check_play, check_shapes
from rlcredit.tasks import TASKS
from rlcredit.types import InputError, Sampling

TALK = talk()
PROBLEM = TALK.draw(jax.random.key(0))
KEY = jax.random.key(1)


def after(**changes):
    """`talk` whose step returns something else in these fields; functions of the transition."""

    def step(*arguments):
        right = TALK.step(*arguments)
        return right._replace(**{name: change(right) for name, change in changes.items()})

    return TALK._replace(step=step)


BROKEN = {
    r"step: reward returned float32\[1\], expected float32\[\]": after(
        reward=lambda right: right.reward[None]
    ),
    r"step: reward returned int32\[\], expected float32": after(reward=lambda right: jnp.int32(1)),
    r"step: terminated returned int32": after(terminated=lambda right: jnp.int32(1)),
    r"step: observation returned int32\[2\], expected int32\[3\]": after(
        observation=lambda right: right.observation[:2]
    ),
    r"step: observation returned None, expected int32\[3\]": after(observation=lambda right: None),
    r"step: feedback returned float32\[1\], expected float32\[2\]": after(
        feedback=lambda right: right.feedback[:1]
    ),
    r"step: state returned float32\[2\], expected int32\[2\]": after(
        state=lambda right: right.state * 1.0
    ),
    r"step: state returned int32\[3\]": after(state=lambda right: jnp.zeros(3, jnp.int32)),
    r"legal returned bool\[9\], expected bool\[10\]": TALK._replace(
        legal=lambda problem, state: jnp.ones(9, bool)
    ),
    r"prompt returned int32\[3\], int32\[\], expected int32\[4\]": TALK._replace(
        prompt=lambda problem: (jnp.ones(3, jnp.int32), jnp.int32(3))
    ),
    r"fingerprint returned float32": TALK._replace(fingerprint=lambda problem, state: 1.0),
    r"step cannot be traced": TALK._replace(step=lambda problem, state: None),
    r"horizon=3 has no room for a choice and an observation of 3": TALK._replace(horizon=3),
}


@pytest.mark.parametrize("said", list(BROKEN))
def test_what_a_function_returns_is_checked_by_name(said):
    with pytest.raises(InputError, match=f"task 'talk': {said}"):
        check_shapes(BROKEN[said], PROBLEM)


def test_sampling_checks_before_it_compiles():
    policy, params = network()
    broken = after(reward=lambda right: right.reward[None])
    drawn = jax.tree.map(lambda leaf: leaf[None], PROBLEM), KEY[None]
    with pytest.raises(InputError, match="task 'talk': step: reward"):
        sample(policy, params, broken, *drawn, samples=1, sampling=Sampling())


def test_a_reward_that_is_no_number_is_reported_with_its_episode():
    reward = jnp.zeros(HORIZON).at[2].set(jnp.nan)
    broken = tape()._replace(
        draw=lambda key: jax.tree.map(lambda leaf: leaf[0], scripts("abcdef", reward=reward))
    )
    said = r"task 'tape': a reward that is not finite \(nan\) in episode 0 at position 4"
    with pytest.raises(InputError, match=said):
        check_play(broken, KEY, episodes=4)


def test_an_episode_without_an_end_is_reported():
    endless = tape()._replace(
        draw=lambda key: jax.tree.map(lambda leaf: leaf[0], scripts("abcdef", end=None))
    )
    with pytest.raises(InputError, match="task 'tape' never ends: none of 4 random episodes"):
        check_play(endless, KEY, episodes=4)
    limited = endless._replace(
        draw=lambda key: jax.tree.map(lambda leaf: leaf[0], scripts("abcdef", end=None, limit=3))
    )
    check_play(limited, KEY, episodes=4)


def test_a_state_without_a_legal_token_is_reported():
    stuck = TALK._replace(
        legal=lambda problem, state: (jnp.arange(10) > 0) & (state[0] < 2),
    )
    with pytest.raises(InputError, match=r"task 'talk': no legal token \(0\) in episode 0"):
        check_play(stuck, KEY, episodes=4)


@pytest.mark.parametrize("name", list(TASKS))
def test_the_tasks_of_the_library_are_what_they_say(name):
    check_play(TASKS[name](), KEY)
