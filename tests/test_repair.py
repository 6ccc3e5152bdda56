"""Code repair: rules, limits, outputs, fingerprints; `test_repair_suite` has the rest."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit
from workshops import (
    LARGE,
    POOL,
    RULES,
    SMALL,
    WORDS,
    Workshop,
    any_legal,
    any_token,
    codes,
    drawn,
    example,
    first,
    keys,
    make,
    player,
)

from rlcredit.tasks import repair_view as view
from rlcredit.tasks.repair import Rules, repair
from rlcredit.tasks.repair_problems import handed_out, noise
from rlcredit.types import InputError

EXAMPLE_RULES, LONGEST = RULES._replace(lines=3, actions=3), 16


def perform(words):
    """(transitions, fingerprints, potentials) of words in the example; leaves [words, ...]."""
    tokens = codes(words)
    padded = jnp.asarray(tokens + [0] * (LONGEST - len(tokens)), jnp.int32)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(tokens)], performer()(padded))


@functools.cache
def performer():
    task, problem = make(EXAMPLE_RULES), example()

    def advance(state, token):
        after = task.step(problem, state, token, None)
        marks = task.fingerprint(problem, after.state), task.potential(problem, after.state)
        return after.state, (after, *marks)

    return quick_jit(lambda tokens: jax.lax.scan(advance, task.start(problem), tokens)[1])


@pytest.mark.parametrize("rules", [RULES, SMALL, LARGE], ids=str)
def test_play_follows_a_plain_reading_of_the_rules(rules):
    count, steps, task = 96, 24, make(rules)

    def choose(problem, state, key):
        kind_key, token_key = jax.random.split(key)
        legal = task.legal(problem, state)
        tokens = [task.expert(problem, state), any_legal(token_key, legal)]
        kind = jax.random.choice(kind_key, 3, p=jnp.asarray([0.55, 0.4, 0.05]))
        return jnp.stack([*tokens, any_token(token_key, legal)])[kind]

    def one(problem, key):
        def advance(state, key):
            token = choose(problem, state, key)
            after = task.step(problem, state, token, key)
            return after.state, (token, task.legal(problem, state), after)

        return jax.lax.scan(advance, task.start(problem), jax.random.split(key, steps))[1]

    problems = first(count, rules)
    tokens, legal, after = jax.device_get(quick_jit(jax.vmap(one))(problems, keys(count, 7)))
    noises = np.asarray(quick_jit(jax.vmap(noise))(problems))
    problems, ends, earned = jax.device_get(problems), 0, 0
    for row in range(count):
        problem = jax.tree.map(lambda leaf, row=row: leaf[row], problems)
        workshop = Workshop(rules, problem, noises[row] >= rules.weak)
        for at in range(steps):
            allowed = [
                word for word, is_legal in zip(WORDS, legal[row, at], strict=True) if is_legal
            ]
            assert allowed == workshop.legal()
            reward, over, late, ended, output, feedback = workshop.step(WORDS[tokens[row, at]])
            got = jax.tree.map(lambda leaf, at=at, row=row: leaf[row, at], after)
            assert (got.reward, got.terminated, got.truncated) == (reward, over, late)
            assert (got.turn_ended, got.step_ended) == (ended, ended)
            assert [WORDS[token] for token in got.observation if token] == output
            assert not got.observation[len(output) :].any()
            np.testing.assert_allclose(got.feedback, feedback, atol=1e-6)
            assert got.state.actions == workshop.actions
            if over or late:
                ends, earned = ends + 1, earned + reward
                break
    assert ends > 0.9 * count and 0.1 < earned / ends < 0.9


def gaps(tokens):
    """bool: some token follows a 0."""
    return jnp.any((tokens[:-1] == 0) & (tokens[1:] > 0))


def violations(rules, task, problem, state, token):
    """What one step breaks, by name."""
    after = task.step(problem, state, token, None)
    new, read = after.state, after.observation
    legal, hope = task.legal(problem, state), task.potential(problem, state)
    written = jnp.any(new.code != handed_out(problem), axis=-1).sum()
    leaves = zip(state._replace(actions=0), new._replace(actions=0), strict=True)
    same = jnp.stack([jnp.all(a == b) for a, b in leaves]).all()
    marks = [task.fingerprint(problem, s) for s in (state, new, new._replace(actions=0))]
    share, *passed, hidden = after.feedback
    told = jnp.any(after.feedback > 0)
    verb = jnp.where(state.typed[0] > 0, state.typed[0], token)
    broken = {
        "legal": legal[0] | ~legal.any() | ~legal[task.expert(problem, state)],
        "reward": ~((after.reward == 0) | (after.reward == 1) & after.terminated),
        "ends": after.terminated & after.truncated,
        "turn": (after.turn_ended != after.step_ended) | (~legal[token] & ~after.turn_ended),
        "actions": new.actions != state.actions + after.turn_ended,
        "limit": after.truncated != (~after.terminated & (new.actions == rules.actions)),
        "typed": after.turn_ended & jnp.any(new.typed > 0) | gaps(new.typed),
        "patch": (written > 1) | ((new.code < 0) | (new.code > 9)).any(),
        "output": ((read < 0) | (read >= len(WORDS))).any() | gaps(read),
        "error": ~legal[token] != (read[0] == view.ERROR),
        "feedback": told & ~((verb == view.TEST) | (verb == view.SUBMIT)),
        "share": jnp.abs(share - jnp.stack(passed).mean()) > 1e-6,
        "verdict": after.terminated & (after.reward != jnp.stack(passed).min()),
        "hidden": (hidden > after.reward) | (rules.weak == 0) & (hidden != after.reward),
        "potential": ~((hope >= 0) & (hope <= 1)),
        "fingerprint": (marks[1] != marks[2]) | (same != (marks[0] == marks[1])),
    }
    return after, broken


@pytest.mark.parametrize("choose, weak", [(any_legal, 0.0), (any_token, 0.5)])
def test_half_a_million_steps_of_random_play_break_nothing(choose, weak):
    lanes, steps, rules = 2048, 256, RULES._replace(weak=weak)
    task, pool = make(rules), drawn()

    def pick(key):
        number = jax.random.randint(key, (), 0, POOL)
        return jax.tree.map(lambda leaf: leaf[number], pool)

    def advance(carry, key):
        problem, state = carry
        choice_key, problem_key = jax.random.split(key)
        token = choose(choice_key, task.legal(problem, state))
        after, broken = violations(rules, task, problem, state, token)
        fresh = pick(problem_key)
        over = after.terminated | after.truncated
        select = functools.partial(jnp.where, over)
        following = jax.tree.map(select, (fresh, task.start(fresh)), (problem, after.state))
        return following, (broken, over)

    def lane(key):
        problem = pick(key)
        carry = (problem, task.start(problem))
        _, counts = jax.lax.scan(advance, carry, jax.random.split(key, steps))
        return jax.tree.map(jnp.sum, counts)

    # Half a million steps repay a real compilation.
    run = jax.jit(lambda keys: jax.tree.map(jnp.sum, jax.vmap(lane)(keys)))
    broken, ends = run(keys(lanes))
    assert {name: int(count) for name, count in broken.items() if count} == {}
    assert ends > lanes * steps / 30


SAME_STATE = [
    "inspect B write B #2 mul7",
    "write B #2 mul7 inspect B",
    "write A #1 low9 inspect A test inspect B error write B #2 mul7",
    "inspect B write B #2 mul7 test write B #2 mul7",
]
OTHER_STATES = [
    *("error", "inspect B", "test", "inspect B test", "write B #2 mul7"),
    *("inspect B write B #2 mul7 test", "inspect B write B #2 mul6"),
    *("inspect B write B #1 mul7", "inspect B write A #2 mul7"),
    *("inspect", "write", "write B", "write C", "write B #1", "inspect B write B #1"),
]
AS_AT_THE_START = [
    "inspect A",
    "test write A #1 add1",
    "write B #2 mul7 write B #2 mul9",
    "write #1",
]


def test_fingerprint_knows_the_code_what_was_seen_and_the_action_under_way():
    def last(words):
        return int(perform(words)[1][-1])

    assert len({last(words) for words in SAME_STATE}) == 1
    assert len({last(words) for words in SAME_STATE + OTHER_STATES}) == 1 + len(OTHER_STATES)
    assert {last(words) for words in AS_AT_THE_START} == {last("error")}


def test_problems_have_different_fingerprints():
    task, problems = make(RULES), drawn()
    marks = quick_jit(jax.vmap(lambda problem: task.fingerprint(problem, task.start(problem))))
    leaves = (np.asarray(leaf).reshape(POOL, -1) for leaf in problems)
    distinct = len(np.unique(np.concatenate(list(leaves), axis=1), axis=0))
    assert len(np.unique(marks(problems))) == distinct > 0.99 * POOL


def test_potential_is_the_share_of_tests_that_pass_and_the_look():
    hopes = perform("inspect A inspect B write B #2 mul7 write B #1 high0")[2]
    # The fault fails every test. A first line that always raises fails the inputs 0, 3, 6 and 7.
    np.testing.assert_allclose(hopes[[1, 3, 6, 7, 11]], [0, 0.25, 0.25, 1, 0.25 + 0.75 / 4])


def test_text_of_an_episode():
    words = "inspect B write B #2 mul6 inspect inspect test write B #2 mul7"
    row = make(EXAMPLE_RULES).prompt(example())[0].tolist()
    for token, output in zip(codes(words), perform(words)[0].observation.tolist(), strict=True):
        row += [token, *(read for read in output if read)]
    assert view.text([*row, 0, 0]) == (
        "issue B #1 add3 #2 mul7 #3 high4 | inspect B -> #1 add3 #2 mul9 #3 high4 "
        "| write B #2 mul6 | inspect inspect -> error "
        "| test -> fail fail !high fail !high fail | write B #2 mul7"
    )


# FL-149 and FL-150: an aborted action counts and changes nothing; truncated exactly at the limit.
@pytest.mark.parametrize(
    "words, actions",
    [
        ("test inspect A test", [1, 1, 2, 3]),
        ("error #1 mul7", [1, 2, 3]),
        ("write B #2 test write B mul7 write #1", [0, 0, 0, 1, 1, 1, 2, 2, 3]),
    ],
)
def test_limit_counts_actions(words, actions):
    after, *_ = perform(words)
    assert after.state.actions.tolist() == actions
    assert after.truncated.tolist() == [count == 3 for count in actions]
    assert after.turn_ended.tolist() == (np.diff([0, *actions]) > 0).tolist()
    assert not after.terminated.any() and not after.reward.any()
    assert (after.state.code == np.asarray(handed_out(example()))[None]).all()


@pytest.mark.parametrize("words, reward", [("write B #2 mul7 submit", 1), ("inspect B submit", 0)])
def test_last_action_may_be_to_submit(words, reward):
    after, *_ = perform(f"test {words}")
    assert after.state.actions[-1] == EXAMPLE_RULES.actions
    assert after.terminated[-1] and not after.truncated[-1] and after.reward[-1] == reward


def follow(task, script, problem, state, number, key):
    return script[number]


@pytest.mark.parametrize("rules", [RULES, SMALL, LARGE], ids=str)
@pytest.mark.parametrize("often, last", [("inspect A", "write A #1 add1"), ("test", "test")])
def test_every_action_and_output_has_room(rules, often, last):
    words = f"{often} " * (rules.actions - 1) + last
    tokens = jnp.asarray(codes(words))
    rollout = player(rules, follow)(first(8, rules), jnp.pad(tokens, (0, LONGEST - tokens.size)))
    assert rollout.truncated.all() and (rollout.turn.max(axis=1) + 1 == rules.actions).all()
    assert (rollout.mask.sum(axis=1) == tokens.size).all()


def test_expert_keeps_a_repair_and_completes_what_is_under_way():
    task = make(EXAMPLE_RULES._replace(actions=5))

    def advice(words):
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), perform(words)[0].state)
        return WORDS[task.expert(example(), state)]

    assert advice("write B #2 mul7") == "test"
    assert advice("write B #2 mul7 test") == "submit"
    assert advice("write A #1 add1 write B") == "#2"
    assert advice("write A #1") == "add3"
    assert advice("test test test") == "write"
    assert advice("test test test test") == "submit"


def test_defaults_are_the_rules_here():
    names = inspect.signature(repair).parameters
    assert Rules(*(parameter.default for parameter in names.values())) == RULES


@pytest.mark.parametrize(
    "change",
    [
        *({"files": 0}, {"files": 7}, {"lines": 1}, {"lines": 7}, {"tests": 0}, {"tests": 11}),
        *({"weak": -0.1}, {"weak": 1.1}, {"weak": float("nan")}, {"actions": 2}),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused_by_name(change):
    [(name, value)] = change.items()
    with pytest.raises(InputError, match=f"{name}={value}"):
        repair(**change)
