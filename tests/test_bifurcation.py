"""Bifurcation: rules hold over a million steps, the expert earns all, no problem leaks."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit, same_bits

from rlcredit import episode
from rlcredit.credit import signature
from rlcredit.tasks.bifurcation import HOLD_OUT_EVERY, State, bifurcation
from rlcredit.tasks.bifurcation_chain import PRESETS, Chain, settle
from rlcredit.tasks.bifurcation_credit import start_value
from rlcredit.types import InputError

LANES, STEPS = 2048, 256
SOAK = {"gaps": (0.2, 0.3, 0.1), "branches": 3, "recoverable": True, "filler": 2, "delay": 2}
SOAK_SIZE = 11
DRAWS = 2**14


@functools.cache
def drawn(**settings):
    keys = jax.random.split(jax.random.key(1), DRAWS)
    return quick_jit(jax.vmap(bifurcation(**settings).draw))(keys)


def as_rows(problems):
    """A problem's serial number, good branches and hints as one tuple of numbers."""
    return list(map(tuple, np.column_stack(jax.tree.map(np.asarray, problems)).tolist()))


def any_legal(key, legal):
    return jnp.argmax(jax.random.uniform(key, legal.shape) * legal)


def any_token(key, legal):
    return jax.random.randint(key, (), 0, legal.size)


def violations(task, problem, state, twin, token, key):
    """What one step breaks, by name; the twin took padding for every token that is not good."""
    legal, best = task.legal(problem, state), task.expert(problem, state)
    deciding = legal[task.vocabulary.index("A")]
    after = task.step(problem, state, token, key)
    other = task.step(problem, twin, jnp.where(deciding & (token == best), token, 0), key)
    marks = [task.fingerprint(problem, s) for s in (state, after.state, other.state)]
    hopes = [task.potential(problem, s) for s in (state, after.state)]
    position, secured, pending = after.state
    broken = {
        "legal": legal[0] | (legal.sum() != jnp.where(deciding, 3, 2)) | ~legal[best],
        "reward": ~((after.reward == 0) | (after.reward == 1) & after.terminated),
        "end": after.terminated != (position == SOAK_SIZE),
        "ends": after.truncated | (after.turn_ended != after.terminated),
        "steps": after.step_ended != (deciding | after.terminated),
        "position": position != state.position + 1,
        "secured": ~((secured >= state.secured) & (secured < 0.71)),
        "pending": (pending < 0) | (pending > 0.31) | (after.terminated & (pending > 0)),
        "potential": ~((hopes[1] < hopes[0] + 1e-6) & (hopes[1] > secured - 1e-6)),
        "twin": jnp.stack([a != b for a, b in zip(after.state, other.state, strict=True)]).any(),
        "fingerprint": (marks[1] != marks[2]) | (marks[0] == marks[1]),
    }
    return after, other, broken


@pytest.mark.parametrize("choose, skill", [(any_legal, 1 / 3), (any_token, 1 / 18)])
def test_half_a_million_steps_of_random_play_break_nothing(choose, skill):
    task = bifurcation(alias=0.3, chance=True, **SOAK)

    def advance(carry, key):
        problem, state, twin = carry
        choice_key, chance_key, problem_key = jax.random.split(key, 3)
        token = choose(choice_key, task.legal(problem, state))
        after, other, broken = violations(task, problem, state, twin, token, chance_key)
        fresh = task.draw(problem_key)
        renewed = (fresh, task.start(fresh), task.start(fresh))
        going_on = (problem, after.state, other.state)
        select = functools.partial(jnp.where, after.terminated)
        return jax.tree.map(select, renewed, going_on), (broken, after.terminated, after.reward)

    def lane(key):
        problem = task.draw(key)
        carry = (problem, task.start(problem), task.start(problem))
        _, outcome = jax.lax.scan(advance, carry, jax.random.split(key, STEPS))
        return jax.tree.map(jnp.sum, outcome)

    run = quick_jit(lambda keys: jax.tree.map(jnp.sum, jax.vmap(lane)(keys)))
    broken, ends, earned = run(jax.random.split(jax.random.key(0), LANES))
    assert {name: int(count) for name, count in broken.items() if count} == {}
    episodes = LANES * (STEPS // SOAK_SIZE)
    assert ends == episodes
    expected = start_value(Chain(**SOAK), [skill] * 3)
    assert float(earned) / episodes == pytest.approx(expected, abs=4 * 0.5 * episodes**-0.5)


@pytest.mark.parametrize(
    "settings, best",
    [
        ({}, 0.9),
        ({"filler": 0, "delay": 0, "branches": 5, "alias": 1.0}, 0.9),
        ({"gaps": (0.5, 0.5, 0.0), "base": 0, "recoverable": True, "chance": True}, 1),
        ({"gaps": "0.6,0.1,0.2"}, 1),  # in float32 the sum exceeds 1
        ({"preset": "recovery"}, 1),
        ({"preset": "insight", "delay": 4}, 0.9),
        ({"preset": "two_approaches"}, 0.98),
        ({"preset": "delayed_effect"}, 0.8),
    ],
)
def test_expert_earns_all_there_is_on_the_last_token(settings, best):
    task = bifurcation(**settings)
    training = quick_jit(jax.vmap(task.draw))(jax.random.split(jax.random.key(0), 32))
    problems = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), training, task.held_out(32, 0))

    def choose(problem, state, number, key):
        del number, key
        return task.expert(problem, state)

    run = quick_jit(lambda problems, keys: episode.play(task, problems, keys, choose))
    rollout = run(problems, jax.random.split(jax.random.key(0), 64))
    rollout, problems = jax.tree.map(np.asarray, (rollout._replace(key=None), problems))
    capacity, size = task.prompt_capacity, task.horizon
    assert rollout.terminated.all() and (rollout.length == capacity + size).all()
    np.testing.assert_allclose(rollout.reward[:, 0, -1], best, atol=1e-6)
    assert (rollout.reward <= 1).all()
    assert not rollout.reward[..., :-1].any() and (rollout.turn[..., capacity:] == 0).all()
    for row, good, step in zip(rollout.tokens, problems.good, rollout.step, strict=True):
        answer = task.text(row[0])[capacity:]
        assert re.sub(r"\.", "", answer) == "".join("ABCDEFGH"[branch] for branch in good)
        ends = [sum(c.isalpha() for c in answer[:i]) for i in range(size)]
        assert step[0, capacity:].tolist() == ends


def test_chance_draws_what_would_else_be_paid():
    keys = jax.random.split(jax.random.key(3), DRAWS)
    for secured in (0.1, 0.5, 0.9):
        outcomes = []
        for chance in (True, False):
            task = bifurcation(chance=chance)
            problem = jax.tree.map(lambda leaf: leaf[0], task.held_out(1, 0))
            state = State(jnp.int32(task.horizon - 1), jnp.float32(secured), jnp.float32(0))
            step = functools.partial(task.step, problem, state, task.expert(problem, state))
            outcomes.append(quick_jit(jax.vmap(step))(keys))
        drawn, paid = outcomes
        assert set(np.unique(drawn.reward)) == {0, 1} and (paid.reward == np.float32(secured)).all()
        assert np.mean(drawn.reward) == pytest.approx(secured, abs=4 * 0.5 * DRAWS**-0.5)
        assert same_bits(drawn._replace(reward=0), paid._replace(reward=0))


def test_prompts_read_as_the_problem():
    settings = {"gaps": (0.2, 0.3, 0.1), "branches": 3, "alias": 0.3}
    task = bifurcation(**settings)
    problems = jax.tree.map(lambda leaf: leaf[:512], drawn(**settings))
    rows, lengths = quick_jit(jax.vmap(task.prompt))(problems)
    assert rows.dtype == jnp.int32 and (lengths == task.prompt_capacity).all()
    for row, (serial, *rest) in zip(np.asarray(rows), as_rows(problems), strict=True):
        hints = ["ABC"[g] if told else "?" for g, told in zip(rest[:3], rest[3:], strict=True)]
        assert row.all() and task.text(row) == f"{serial:03}{''.join(hints)}>"


def test_fingerprints_of_different_problems_differ():
    settings = {"gaps": (0.2, 0.3, 0.1), "branches": 3, "alias": 0.3}
    task, problems = bifurcation(**settings), drawn(**settings)
    marks = quick_jit(jax.vmap(lambda p: task.fingerprint(p, task.start(p))))(problems)
    different = len(set(as_rows(problems)))
    assert different > DRAWS / 2 and different - len(np.unique(marks)) <= 2


def test_text_of_a_row_is_that_of_the_module_docstring():
    task = bifurcation()
    row = [task.vocabulary.index(c) for c in "417A?>.A,B."]
    assert task.text([*row, 0, 0]) == "417A?>.A,B."
    assert len(row) == task.prompt_capacity + task.horizon


@pytest.mark.parametrize("alias", [0.0, 0.3, 1.0])
def test_hints_are_missing_at_the_rate_of_aliasing(alias):
    task = bifurcation(alias=alias)
    for problems in (drawn(alias=alias), task.held_out(800, 1)):
        tolerance = 4 * np.sqrt(alias * (1 - alias) / problems.hinted.size)
        assert np.mean(~problems.hinted) == pytest.approx(alias, abs=tolerance)


@pytest.mark.parametrize("settings, every", [({"gaps": (0.4,)}, 400), ({"branches": 3}, 1800)])
def test_serial_numbers_part_training_from_held_out_problems(settings, every):
    task = bifurcation(**settings)
    training, held = drawn(**settings), task.held_out(every, 0)
    assert len(set(as_rows(held))) == every and not set(as_rows(held)) & set(as_rows(training))
    serials = set(range(0, 1000, HOLD_OUT_EVERY))
    assert set(np.asarray(held.serial).tolist()) == serials
    assert set(np.asarray(training.serial).tolist()) == set(range(1000)) - serials
    branches = settings.get("branches", 2)
    for problems in (training, held):
        share = np.bincount(np.asarray(problems.good).ravel(), minlength=branches)
        np.testing.assert_allclose(share / share.sum(), 1 / branches, atol=0.02)
    assert [leaf.dtype for leaf in held] == [leaf.dtype for leaf in training]
    for count in (0, every + 1):
        with pytest.raises(InputError, match=f"{count} held-out"):
            task.held_out(count, 0)


def test_held_out_follows_the_seed_and_copes_with_the_longest_chain():
    task = bifurcation(gaps=(0.0125,) * 48, alias=0.5)
    one, same, other = (as_rows(task.held_out(20, seed)) for seed in (0, 0, 1))
    assert one == same != other and len(set(one)) == 20
    assert 0.4 < np.mean([row[1:49] for row in one]) < 0.6


def test_factory_and_chain_have_the_same_defaults():
    defaults = signature(bifurcation)[1]
    assert defaults.pop("preset") == ""
    assert defaults | {"gaps": (0.4, 0.4)} == Chain()._asdict() and defaults["gaps"] == "0.4,0.4"


def test_a_preset_fixes_the_law_and_leaves_the_rest():
    for name, preset in PRESETS.items():
        assert settle(Chain(), name) == settle(preset, name) == settle(preset) == preset
        free = {"filler": 3, "delay": 0, "alias": 0.5, "chance": True}
        assert settle(Chain(**free), name) == preset._replace(**free)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"preset": "x"}, "preset 'x'; known are insight, "),
        ({"preset": "recovery", "gaps": "0.5,0.5"}, r"gaps=\(0.5, 0.5\) contradicts .*'recovery'"),
        ({"preset": "insight", "branches": 3}, "branches=3 contradicts .*'insight'"),
        ({"preset": "insight", "recoverable": True}, "recoverable=True contradicts"),
        ({"gaps": "0.4;0.4"}, "gaps='0.4;0.4'"),
        ({"gaps": ""}, "gaps=''"),
        ({"gaps": ()}, r"gaps=\(\)"),
        ({"gaps": (0.4, -0.1)}, r"gaps\[1\]=-0.1"),
        ({"gaps": "nan"}, r"gaps\[0\]=nan"),
        ({"gaps": (0.5, 0.5)}, r"base=0.1 and gaps=\(0.5, 0.5\)"),
        ({"base": -0.1}, "base=-0.1"),
        ({"alias": 1.5}, "alias=1.5"),
        ({"filler": -1}, "filler=-1"),
        ({"delay": -1}, "delay=-1"),
        ({"branches": 1}, "branches=1"),
        ({"branches": 27}, "branches=27"),
        ({"gaps": (0.01,) * 49}, "branches=2 to the 49"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(settings, named):
    with pytest.raises(InputError, match=named):
        bifurcation(**settings)
