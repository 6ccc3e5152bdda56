"""Problems of code repair: a repository, its faulty line, and the inputs that the tests try.

Held out: a hash of the steps of the faulty file picks one residue class modulo `HOLD_OUT_EVERY` of
the guards, and no issue of a training problem asks for a program that ends with a guard of this
class. Both sides are drawn by arithmetic on indices, without rejection, so they are disjoint by
construction.
"""

from __future__ import annotations

import functools
import math
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.tasks import program
from rlcredit.types import Array, InputError, PyTree

HOLD_OUT_EVERY = 6


class Problem(NamedTuple):
    """The intended repository, and the line of it that was handed out wrong."""

    code: Array  # [files, lines, 2] int32 operation and operand
    file: Array  # int32
    line: Array  # int32
    fault: Array  # [2] int32 what stands there instead


def handed_out(problem: Problem) -> Array:
    """[files, lines, 2] the repository with its fault."""
    return problem.code.at[problem.file, problem.line].set(problem.fault)


def draw_problem(key: Array, *, files: int, lines: int) -> Problem:
    """A training problem."""
    file_key, steps_key, guard_key, rest_key = jax.random.split(key, 4)
    file = jax.random.randint(file_key, (), 0, files)
    steps = jax.random.randint(steps_key, (lines - 1,), 0, len(program.STEPS))
    kept = len(program.GUARDS) - len(program.GUARDS) // HOLD_OUT_EVERY
    rank = jax.random.randint(guard_key, (), 0, kept)
    block, offset = jnp.divmod(rank, HOLD_OUT_EVERY - 1)
    guard = block * HOLD_OUT_EVERY + (_held_class(steps) + 1 + offset) % HOLD_OUT_EVERY
    return _complete(rest_key, file, steps, guard, files=files)


def held_out_problems(count: int, seed: int, *, files: int, lines: int) -> Problem:
    """`count` problems with different issues, leaves [count, ...]; the same for the same seed.

    Raises: InputError if there are not so many held-out issues.
    """
    blocks = len(program.GUARDS) // HOLD_OUT_EVERY
    radices = (files, *[len(program.STEPS)] * (lines - 1), blocks)
    total = math.prod(radices)
    if not 0 < count <= total:
        raise InputError(f"{count} held-out problems asked for, repair has 1 to {total} issues")
    indices = random.Random(seed).sample(range(total), count)
    file, *steps, block = np.unravel_index(indices, radices)
    keys = jax.random.split(jax.random.key(seed), count)
    return _complete_held_out(keys, file, np.column_stack(steps), block, files=files)


def noise(problem: Problem) -> Array:
    """[DIGITS] float32 in [0, 1), one fixed number for each input of the faulty file."""
    numbers = flat(problem)
    hashes = jax.vmap(lambda x: mixed(jnp.append(numbers, x)))(jnp.arange(program.DIGITS))
    return (hashes >> 8).astype(jnp.float32) * 2.0**-24


def flat(tree: PyTree) -> Array:
    """[n] int32: all numbers of a tree."""
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.int32) for leaf in jax.tree.leaves(tree)])


def mixed(numbers: Array) -> Array:
    """uint32 hash of n numbers in 0..255: each is scrambled with its place, and so is their sum."""
    placed = numbers.astype(jnp.uint32) + (jnp.arange(numbers.size, dtype=jnp.uint32) << 8)
    return _scrambled(jnp.sum(_scrambled(placed), dtype=jnp.uint32))


def _scrambled(number: Array) -> Array:
    """The finalizer of MurmurHash3 (Appleby, 2011), a bijection of uint32."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x85EBCA6B)
    number = (number ^ (number >> 13)) * jnp.uint32(0xC2B2AE35)
    return number ^ (number >> 16)


def _held_class(steps: Array) -> Array:
    """int32: the residue class of the guards that are held out for these steps."""
    return (mixed(steps) % HOLD_OUT_EVERY).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames="files")
def _complete_held_out(keys: Array, file: Array, steps: Array, block: Array, *, files: int):
    """Problems, leaves [count, ...]; the guard is number `block` of the class held out."""

    def complete(key: Array, file: Array, steps: Array, block: Array) -> Problem:
        guard = block * HOLD_OUT_EVERY + _held_class(steps)
        return _complete(key, file, steps, guard, files=files)

    columns = (column.astype(jnp.int32) for column in (file, steps, block))
    return jax.vmap(complete)(keys, *columns)


def _complete(key: Array, file: Array, steps: Array, guard: Array, *, files: int) -> Problem:
    """The problem in which this program stands in this file; draws the fault and other files."""
    steps_key, guards_key, fault_key = jax.random.split(key, 3)
    shape = (files, steps.size)
    all_steps = jax.random.randint(steps_key, shape, 0, len(program.STEPS)).at[file].set(steps)
    guards = jax.random.randint(guards_key, (files,), 0, len(program.GUARDS)).at[file].set(guard)
    code = jax.vmap(program.assemble)(all_steps, guards)
    possible = program.faults(code[file])
    drawn = jax.random.categorical(fault_key, jnp.where(possible.ravel(), 0, -jnp.inf))
    line, operation, operand = jnp.unravel_index(drawn, possible.shape)
    return Problem(code, file, line, jnp.stack([operation, operand]))
