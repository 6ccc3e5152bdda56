"""Toy programs do what a plain interpreter does, and every line of them matters."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit
from workshops import interpret

from rlcredit.tasks.program import (
    EXCEPTIONS,
    GUARDS,
    OPERATIONS,
    STEPS,
    assemble,
    behaviour,
    differs,
    faults,
    run,
)

LINES = 3
DIGITS = range(10)


def readable(outcome):
    """Outcomes of any shape as a flat list of what `interpret` returns."""
    value, exception = (np.asarray(leaf).ravel().tolist() for leaf in outcome)
    assert not any(v for v, e in zip(value, exception, strict=True) if e)
    return [EXCEPTIONS[e - 1] if e else v for v, e in zip(value, exception, strict=True)]


def random_programs(count, lines=LINES, seed=0):
    rng = np.random.default_rng(seed)
    operations, operands = rng.integers(0, 4, (count, lines)), rng.integers(0, 10, (count, lines))
    return np.stack([operations, operands], axis=-1)


def drawn_like(count, seed=0):
    """Programs of the form that is drawn: steps, then a guard."""
    rng = np.random.default_rng(seed)
    steps = np.asarray(STEPS)[rng.integers(0, len(STEPS), (count, LINES - 1))]
    guards = np.asarray(GUARDS)[rng.integers(0, len(GUARDS), (count, 1))]
    return np.concatenate([steps, guards], axis=1)


@pytest.mark.parametrize(
    "lines, outcomes",
    [
        ("add3", [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]),
        ("mul3", [0, 3, 6, 9, 2, 5, 8, 1, 4, 7]),
        ("high7", [0, 1, 2, 3, 4, 5, 6, "high", "high", "high"]),
        ("low0", ["low", 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("low1 high1", ["low", "low", *["high"] * 8]),
        ("low9 high0", ["low"] * 10),
        ("high0 mul0", ["high"] * 10),
    ],
)
def test_worked_examples(lines, outcomes):
    code = [(OPERATIONS.index(word[:-1]), int(word[-1])) for word in lines.split()]
    assert [interpret(code, x) for x in DIGITS] == outcomes
    assert readable(behaviour(jnp.asarray(code))) == outcomes


def test_any_program_does_what_the_interpreter_does():
    programs = random_programs(500, lines=5)
    expected = [interpret(program, x) for program in programs.tolist() for x in DIGITS]
    assert {*DIGITS, "high", "low"} == set(expected)
    assert readable(quick_jit(jax.vmap(behaviour))(programs)) == expected
    one_input = quick_jit(jax.vmap(run, (0, None)))(programs, 7)
    assert readable(one_input) == expected[7::10]


def test_outcomes_differ_in_value_or_exception():
    behaviours = quick_jit(jax.vmap(behaviour))(random_programs(200))
    shifted = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), behaviours)
    one, other = readable(behaviours), readable(shifted)
    expected = [a != b for a, b in zip(one, other, strict=True)]
    assert np.asarray(differs(behaviours, shifted)).ravel().tolist() == expected


def reference_faults(lines):
    """The rules of `faults`, one instruction after the other."""
    found = np.zeros((len(lines), len(OPERATIONS), 10), bool)
    for line, operation, operand in itertools.product(*map(range, found.shape)):
        old = lines[line]
        if (operation == old[0]) == (operand == old[1]):
            continue  # the same instruction, or nothing of it left
        changed = [*lines[:line], (operation, operand), *lines[line + 1 :]]
        for x in DIGITS:
            intended = interpret(lines, x)
            if intended in EXCEPTIONS and interpret(changed, x) != intended:
                found[line, operation, operand] = True
    return found


@pytest.mark.parametrize("make", [random_programs, drawn_like])
def test_faults_are_near_misses_that_a_raising_input_notices(make):
    programs = make(64)
    expected = [reference_faults([tuple(line) for line in lines]) for lines in programs.tolist()]
    np.testing.assert_array_equal(quick_jit(jax.vmap(faults))(programs), expected)


def test_in_each_program_that_is_drawn_every_line_can_be_at_fault():
    indices = np.indices([len(STEPS)] * (LINES - 1) + [len(GUARDS)]).reshape(LINES, -1).T
    programs = quick_jit(jax.vmap(assemble))(indices[:, :-1], indices[:, -1])
    expected = itertools.product(STEPS, STEPS, GUARDS)
    assert np.asarray(programs).tolist() == [[list(line) for line in code] for code in expected]
    raising = quick_jit(jax.vmap(behaviour))(programs).exception > 0
    assert set(np.asarray(raising).sum(axis=1).tolist()) == set(range(1, 10))
    assert quick_jit(jax.vmap(faults))(programs).any(axis=(2, 3)).all()


def test_a_guard_that_lost_its_exception_is_a_fault_of_any_program():
    programs = drawn_like(64)
    found = np.asarray(quick_jit(jax.vmap(faults))(programs))
    operands = programs[:, -1, 1]
    assert found[np.arange(64), -1, OPERATIONS.index("add"), operands].all()
    assert found[np.arange(64), -1, OPERATIONS.index("mul"), operands].all()
