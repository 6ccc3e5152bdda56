"""Toy programs: a few instructions on one register that holds a digit.

A line is an operation and an operand, both int32. `add d` and `mul d` compute modulo 10, `high d`
raises the exception `high` if the register is at least d, `low d` raises `low` if it is at most d.
A program starts with its input in the register and returns what the last line left there, or the
first exception that was raised.

The programs that are drawn here have steps that can be undone (`add1` to `add9`, `mul3`, `mul7`,
`mul9`), then on the last line a guard that raises for some inputs and not for others. So each
program returns a value for some input and raises for another, and no line is idle.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.types import Array

OPERATIONS = ("add", "mul", "high", "low")
ADD, MUL, HIGH, LOW = range(len(OPERATIONS))
EXCEPTIONS = OPERATIONS[HIGH:]  # exception k is EXCEPTIONS[k - 1]; 0 is none
DIGITS = 10

STEPS = (*((ADD, d) for d in range(1, DIGITS)), (MUL, 3), (MUL, 7), (MUL, 9))
GUARDS = (*((HIGH, d) for d in range(1, DIGITS)), *((LOW, d) for d in range(DIGITS - 1)))


class Outcome(NamedTuple):
    """What a run ended with."""

    value: Array  # int32 digit; 0 where an exception was raised
    exception: Array  # int32; 0 where none was


def run(lines: Array, register: Array) -> Outcome:
    """The outcome of one program on one input.

    Args: lines: [L, 2] operation and operand of each line; register: int32 digit.
    """

    def execute(before: Outcome, line: Array) -> tuple[Outcome, None]:
        operation, operand = line
        value = before.value
        too_high = (operation == HIGH) & (value >= operand)
        too_low = (operation == LOW) & (value <= operand)
        raised = jnp.where(too_high | too_low, 1 + operation - HIGH, 0)
        exception = jnp.where(before.exception > 0, before.exception, raised)
        value = jnp.where(operation == ADD, value + operand, value)
        value = jnp.where(operation == MUL, value * operand, value) % DIGITS
        return Outcome(jnp.where(exception > 0, 0, value), exception), None

    start = Outcome(jnp.asarray(register, jnp.int32), jnp.int32(0))
    return jax.lax.scan(execute, start, lines, unroll=True)[0]


def behaviour(lines: Array) -> Outcome:
    """The outcomes on all inputs, leaves [DIGITS]."""
    return jax.vmap(run, (None, 0))(lines, jnp.arange(DIGITS))


def differs(one: Outcome, other: Outcome) -> Array:
    """bool: another value, or another exception."""
    return (one.value != other.value) | (one.exception != other.exception)


def assemble(steps: Array, guard: Array) -> Array:
    """[L, 2] lines of the program with `STEPS[steps]` and then `GUARDS[guard]`.

    Args: steps: [L - 1] int32; guard: int32.
    """
    return jnp.concatenate([jnp.asarray(STEPS)[steps], jnp.asarray(GUARDS)[guard][None]])


def faults(lines: Array) -> Array:
    """[L, operations, digits] bool: the instructions that make one line faulty.

    A fault has the operation or the operand of the line that it replaces, and changes the outcome
    on an input for which the program raises an exception. Each program that is drawn has one, for
    its guard can become an `add`, which raises nothing.
    """
    intended = behaviour(lines)
    grid = jnp.meshgrid(jnp.arange(len(OPERATIONS)), jnp.arange(DIGITS), indexing="ij")
    instructions = jnp.stack(grid, axis=-1).reshape(-1, 2)

    def is_fault(line: Array, instruction: Array) -> Array:
        near = jnp.sum(instruction == lines[line]) == 1
        changed = differs(behaviour(lines.at[line].set(instruction)), intended)
        return near & jnp.any(changed & (intended.exception > 0))

    by_instruction = jax.vmap(is_fault, (None, 0))
    found = jax.vmap(by_instruction, (0, None))(jnp.arange(lines.shape[0]), instructions)
    return found.reshape(-1, len(OPERATIONS), DIGITS)
