"""The line reader against a grammar and the arithmetic of Python."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit

from rlcredit.tasks import TASKS
from rlcredit.tasks import line as lines
from rlcredit.tasks.arithmetic import Problem, encode

NUMBER = r"(?:0|[1-9]\d{0,7})"
INSIDE = rf"-?{NUMBER}(?:[+*-]{NUMBER})*"
FACTOR = rf"(?:{NUMBER}|\({INSIDE}\))"
LINE = re.compile(rf"-?{FACTOR}(?:[+*-]{FACTOR})*")
LONGEST = 64


@quick_jit
@jax.vmap
def read_all(tokens, size):
    def advance(line, inputs):
        token, position = inputs
        after = lines.read(line, token)
        return jax.tree.map(lambda a, b: jnp.where(position < size, a, b), after, line), None

    line = jax.lax.scan(advance, lines.empty_line(), (tokens, jnp.arange(LONGEST)))[0]
    return lines.complete(line), lines.value(line), lines.is_canonical_number(line)


def read(texts):
    """(complete, value, canonical) of each text."""
    rows = np.zeros((1 << (len(texts) - 1).bit_length(), LONGEST), np.int32)
    sizes = np.zeros(len(rows), np.int32)
    for i, text in enumerate(texts):
        rows[i, : len(text)], sizes[i] = encode(text), len(text)
    return [column[: len(texts)].tolist() for column in map(np.asarray, read_all(rows, sizes))]


def well_formed(rng):
    def join(parts):
        signs = rng.choice(list("+-*"), len(parts))
        return rng.choice(["", "-"]) + "".join(map("".join, zip(parts, signs, strict=True)))[:-1]

    def number():
        return str(rng.integers(0, 10 ** rng.integers(1, 3)))

    atoms = [number() for _ in range(rng.integers(1, 5))]
    if rng.random() < 0.5:
        cut = rng.integers(len(atoms))
        atoms[cut:] = [f"({join(atoms[cut:])})"]
    return join(atoms)


def mutated(text, rng):
    place = int(rng.integers(len(text)))
    insert = lines.CHARACTERS[rng.integers(len(lines.CHARACTERS))]
    return text[:place] + rng.choice(["", insert]) + text[place + int(rng.integers(2)) :]


def test_well_formed_lines_are_complete_with_pythons_value():
    rng = np.random.default_rng(0)
    texts = [well_formed(rng) for _ in range(2048)]
    complete, value, canonical = read(texts)
    assert all(complete)
    assert value == [eval(text) for text in texts]
    assert canonical == [text == str(eval(text)) for text in texts]


def test_lines_are_complete_exactly_where_the_grammar_says_so():
    rng = np.random.default_rng(1)
    spoilt = [mutated(well_formed(rng), rng) for _ in range(1024)]
    alphabet = list("0123456789+-*()")
    strings = ["".join(rng.choice(alphabet, rng.integers(1, 8))) for _ in range(1024)]
    texts = spoilt + strings
    complete, value, canonical = read(texts)
    expected = [bool(LINE.fullmatch(text)) for text in texts]
    assert complete == expected and 200 < sum(expected) < 1848
    for text, ok, number, only in zip(texts, complete, value, canonical, strict=True):
        assert not ok or number == eval(text)
        assert only == bool(ok and text == str(eval(text)))


@pytest.mark.parametrize(
    "text",
    ["65536*65536", "99999999*99999999", "99999999*99", "(99999999*99)", "(99999999*99)-1",
     "99999999*99*0", "1-65536*65536", "99999999*11", "-40000*(80000)", "(9*99999999)*9"],
)  # fmt: skip
def test_a_number_that_int32_cannot_hold_is_no_value(text):
    complete, value, _ = read([text])
    assert not complete[0] or value[0] == eval(text)


def test_largest_values_are_still_read():
    texts = ["99999999*10", "99999999*5+99999999*5", "-99999999*10", "(99999999+1)*10", "99999999"]
    complete, value, _ = read(texts)
    assert all(complete) and value == [eval(text) for text in texts]


@pytest.mark.parametrize("worked_steps", [True, False])
def test_a_random_legal_walk_stays_well_formed_and_never_sticks(worked_steps):
    task = TASKS["arithmetic"](worked_steps=worked_steps)
    problem = Problem(jnp.asarray([17, 24]), jnp.asarray([2]))

    def walk(key):
        def advance(state, step_key):
            legal = task.legal(problem, state)
            token = jax.random.categorical(step_key, jnp.where(legal, 0.0, -jnp.inf))
            after = task.step(problem, state, token, None)
            line = after.state.line
            return after.state, (token, jnp.any(legal), line.valid, after.terminated)

        return jax.lax.scan(advance, task.start(problem), jax.random.split(key, LONGEST))[1]

    tokens, any_legal, valid, ended = quick_jit(jax.vmap(walk))(
        jax.random.split(jax.random.key(0), 256)
    )
    assert np.asarray(any_legal).all()
    for row, ok, over in zip(*map(np.asarray, (tokens, valid, ended)), strict=True):
        size = 1 + (int(np.argmax(over)) if over.any() else LONGEST - 1)
        written = task.text(row[:size])
        assert len(written) == size
        for line in written.removesuffix("$").split(";"):
            assert any(LINE.fullmatch(line + rest) for rest in ("", "1", ")", "1)"))
        assert ok[:size].all() or too_large(written)
        if over.any() and ok[:size].all():
            assert re.fullmatch(r"0|-?[1-9]\d*", re.split("[;]", written[:-1])[-1])


def too_large(text):
    """Whether a line multiplies to more than the reader holds."""
    numbers = [re.findall(r"\d+", line) for line in text.split(";")]
    return any(np.prod([max(float(n), 1) for n in row]) > lines.MAX_MAGNITUDE for row in numbers)
