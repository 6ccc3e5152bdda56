"""Arithmetic with worked steps: `17*24=` is answered by `17*(20+4);340+68;408$`.

Tokens are characters. Every step ends with the delimiter `;`, the last with the end token `$`. The
reward is 1 only if the last line is the right number in its canonical form (sign where negative, no
plus, no leading zero, no -0) and was ended by the end token; what stands in the steps before it
earns nothing. It is paid on the end token. A wrong character makes its line invalid, no more.

Held-out problems: for each choice of the operators and of all operands but the last, a hash picks
one residue class modulo `HOLD_OUT_EVERY`, and the last operands of that class are never trained on.
Both sides are drawn by arithmetic on indices, without rejection, so they are disjoint by
construction.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.tasks import line as lines
from rlcredit.tasks import worked
from rlcredit.types import Array, InputError, Task, Transition

HOLD_OUT_EVERY = 5
OPERATORS = "+-*"


class Problem(NamedTuple):
    """operands[0] operators[0] operands[1] ...; operators index `OPERATORS`."""

    operands: Array  # [M] int32
    operators: Array  # [M - 1] int32


class State(NamedTuple):
    """What the answer so far amounts to."""

    line: lines.Line  # the line being written
    last_line: Array  # uint32 hash of the line before it
    last_line_true: Array  # bool; its value was that of the problem


def arithmetic(
    *,
    digits: int = 2,
    operands: int = 2,
    operators: str = OPERATORS,
    worked_steps: bool = True,
    spare: int = 3,
) -> Task:
    """The task for operands of up to `digits` digits.

    Args:
      digits: of each operand, 1 or more; operands: how many, 2 or more.
      operators: those that occur, out of `+-*`.
      worked_steps: False for answers only; the delimiter is then not a legal token.
      spare: tokens that an episode may have beyond the longest solution.
    Raises: InputError if a value could leave the range that the checker reads.
    """
    codes = _operator_codes(operators)
    _check_size(digits, operands, operators)
    if spare < 0:
        raise InputError(f"{spare=}: an episode cannot be shorter than the longest solution")
    base, gaps = 10**digits, operands - 1
    prompt_capacity = operands * digits + operands
    usable = jnp.asarray(codes, jnp.int32)

    def draw(key: Array) -> Problem:
        operator_key, operand_key, last_key = jax.random.split(key, 3)
        chosen = usable[jax.random.randint(operator_key, (gaps,), 0, len(codes))]
        first = jax.random.randint(operand_key, (operands - 1,), 0, base)
        rank = jax.random.randint(last_key, (), 0, base - base // HOLD_OUT_EVERY)
        held = _held_residue(first, chosen)
        block, offset = jnp.divmod(rank, HOLD_OUT_EVERY - 1)
        last = block * HOLD_OUT_EVERY + (held + 1 + offset) % HOLD_OUT_EVERY
        return Problem(jnp.append(first, last).astype(jnp.int32), chosen)

    def held_out(count: int, seed: int) -> Problem:
        return _held_out(count, seed, codes=codes, base=base, operands=operands)

    def prompt(problem: Problem) -> tuple[Array, Array]:
        return _prompt(problem, digits=digits, capacity=prompt_capacity)

    def legal(problem: Problem, state: State) -> Array:
        del problem
        tokens = lines.allowed(state.line)
        if worked_steps:
            tokens = tokens.at[lines.DELIMITER].set(lines.complete(state.line))
        tokens = tokens.at[lines.END].set(lines.is_canonical_number(state.line))
        # A line that is beyond repair can still be ended, so that no state is without a token.
        return tokens.at[lines.END].set(tokens[lines.END] | ~jnp.any(tokens))

    return Task(
        name="arithmetic",
        vocabulary=lines.CHARACTERS,
        prompt_capacity=prompt_capacity,
        horizon=_longest(digits, operands, operators, worked_steps) + spare,
        draw=draw,
        prompt=prompt,
        start=_start,
        step=_step,
        legal=legal,
        fingerprint=_fingerprint,
        held_out=held_out,
        demonstrate=lambda *args: _demonstrate(*args, worked_steps=worked_steps),
        text=text,
        checker=_checker,
        answer=lambda problem: lines.written(answer(problem)),
    )


def answer(problem: Problem) -> Array:
    """int32 value of the problem, products first."""
    total, product = jnp.int32(0), problem.operands[0]
    for i in range(problem.operators.shape[0]):
        operand, operator = problem.operands[i + 1], problem.operators[i]
        times = operator == OPERATORS.index("*")
        signed = jnp.where(operator == OPERATORS.index("-"), -operand, operand)
        total = jnp.where(times, total, total + product)
        product = jnp.where(times, product * operand, signed)
    return total + product


def steps_true(problem: Problem, tokens: Array, mask: Array) -> Array:
    """The checker of intermediate steps: is each line an equation that holds?

    Args:
      tokens, mask: [T] one row of a rollout.
    Returns: [T] bool, True at each delimiter or end token whose line has the value of the problem.
    """

    def check(state: State, inputs: tuple[Array, Array]) -> tuple[State, Array]:
        token, chosen = inputs
        after = _step(problem, state, token, None)
        following = jax.tree.map(lambda a, b: jnp.where(chosen, a, b), after.state, state)
        return following, chosen & after.step_ended & following.last_line_true

    return jax.lax.scan(check, _start(problem), (tokens, mask))[1]


def encode(characters: str) -> list[int]:
    """Token ids of a text; InputError for a character that the task does not have."""
    unknown = sorted(set(characters) - set(lines.CODES))
    if unknown:
        raise InputError(f"arithmetic has no token for {unknown[0]!r} in {characters!r}")
    return [lines.CODES[character] for character in characters]


def text(tokens: Array) -> str:
    """The characters of a row without its padding."""
    return "".join(lines.CHARACTERS[int(token)] for token in tokens if int(token) != lines.PAD)


def _start(problem: Problem) -> State:
    del problem
    return State(lines.empty_line(), jnp.uint32(0), jnp.bool_(True))


def _step(problem: Problem, state: State, token: Array, key: Array | None) -> Transition:
    del key  # nothing here is left to chance
    line = state.line
    ended = token == lines.END
    step_ended = ended | (token == lines.DELIMITER)
    true = lines.complete(line) & (lines.value(line) == answer(problem))
    right = ended & true & lines.is_canonical_number(line)
    fresh = State(lines.empty_line(), line.code, true)
    going_on = state._replace(line=lines.read(line, token))
    return Transition(
        state=jax.tree.map(lambda a, b: jnp.where(step_ended, a, b), fresh, going_on),
        reward=right.astype(jnp.float32),
        terminated=ended,
        truncated=jnp.bool_(False),
        step_ended=step_ended,
        turn_ended=ended,
    )


def _checker(problem: Problem, state: State, after: State) -> Array:
    """1 if the last line that was ended by then is true, else -1."""
    del problem, state
    return jnp.where(after.last_line_true, 1.0, -1.0)


def _fingerprint(problem: Problem, state: State) -> Array:
    """The problem, the line before and the line being written: all that a next step builds on."""
    parts = [*problem.operands, *problem.operators, state.last_line, state.line.code]
    mixed = jnp.uint32(2166136261)
    for part in parts:
        mixed = (mixed ^ part.astype(jnp.uint32)) * jnp.uint32(16777619)
        mixed = mixed ^ (mixed >> 15)
    return mixed


def _held_residue(first: Array, operators: Array) -> Array:
    """int32 [...]: the residue class of the last operand that is held out.

    Args: first: [..., M - 1] the other operands; operators: [..., M - 1].
    """
    mixed = jnp.full(first.shape[:-1], 7, jnp.uint32)
    for part in (*jnp.moveaxis(first, -1, 0), *jnp.moveaxis(operators, -1, 0)):
        mixed = (mixed ^ part.astype(jnp.uint32)) * jnp.uint32(2654435761)
        mixed = mixed ^ (mixed >> 13)
    return (mixed % HOLD_OUT_EVERY).astype(jnp.int32)


def _held_out(count: int, seed: int, *, codes: list[int], base: int, operands: int) -> Problem:
    """`count` different held-out problems, the same for the same seed."""
    radices = [len(codes)] * (operands - 1) + [base] * (operands - 1) + [base // HOLD_OUT_EVERY]
    total = math.prod(radices)
    if not 0 < count <= total:
        raise InputError(f"{count} held-out problems asked for, arithmetic has 1 to {total}")
    indices = random.Random(seed).sample(range(total), count)
    columns = np.asarray([_mixed_radix(index, radices) for index in indices])
    operators = jnp.asarray(np.asarray(codes)[columns[:, : operands - 1]], jnp.int32)
    first = jnp.asarray(columns[:, operands - 1 : -1], jnp.int32)
    last = columns[:, -1] * HOLD_OUT_EVERY + _held_residue(first, operators)
    return Problem(jnp.concatenate([first, last[:, None]], axis=1), operators)


def _mixed_radix(index: int, radices: list[int]) -> list[int]:
    places = []
    for radix in reversed(radices):
        index, place = divmod(index, radix)
        places.append(place)
    return places[::-1]


def _prompt(problem: Problem, *, digits: int, capacity: int) -> tuple[Array, Array]:
    """The problem's characters and `=`, without leading zeros, from the left."""
    powers = 10 ** jnp.arange(digits - 1, -1, -1)[None]
    characters = 1 + problem.operands[:, None] // powers % 10  # [M, digits]
    written = (problem.operands[:, None] >= powers) | (powers == 1)
    after = jnp.append(lines.PLUS + problem.operators, lines.EQUALS)
    characters = jnp.column_stack([characters, after]).ravel()
    written = jnp.column_stack([written, jnp.ones_like(after, bool)]).ravel()
    position = jnp.where(written, jnp.cumsum(written) - 1, capacity)
    row = jnp.zeros(capacity, jnp.int32).at[position].set(characters, mode="drop")
    return row, jnp.sum(written, dtype=jnp.int32)


def _demonstrate(
    problems: Problem,
    rng: np.random.Generator,
    wrong: float,
    skipped: float,
    *,
    worked_steps: bool,
) -> list[list[int]]:
    """What an imperfect teacher writes after each prompt; see `worked.slipping_solution`."""
    operands, operators = np.asarray(problems.operands), np.asarray(problems.operators)
    demonstrations = []
    for row, codes in zip(operands.tolist(), operators.tolist(), strict=True):
        symbols = "".join(OPERATORS[code] for code in codes)
        steps = worked.slipping_solution(tuple(row), symbols, rng, wrong, skipped)
        written = steps if worked_steps else steps[-1:]
        demonstrations.append(encode(";".join(written) + "$"))
    return demonstrations


def _longest(digits: int, operands: int, operators: str, worked_steps: bool) -> int:
    """Tokens of the longest solution at the corners of the operand range."""
    corners = (0, 10 ** (digits - 1), 10**digits - 1)
    longest = 0
    for row in itertools.product(corners, repeat=operands):
        for symbols in itertools.product(operators, repeat=operands - 1):
            steps = worked.solution(row, "".join(symbols))
            written = steps if worked_steps else steps[-1:]
            longest = max(longest, len(";".join(written)) + 1)
    return longest


def _operator_codes(operators: str) -> list[int]:
    if not operators or len(set(operators)) < len(operators) or set(operators) - set(OPERATORS):
        raise InputError(f"operators={operators!r}: give one or more of + - *, each once")
    return [OPERATORS.index(operator) for operator in operators]


def _check_size(digits: int, operands: int, operators: str) -> None:
    if digits < 1 or operands < 2:
        raise InputError(
            f"arithmetic needs digits >= 1 and operands >= 2, got {digits=}, {operands=}"
        )
    longest = digits * operands if "*" in operators else digits + operands - 1
    if longest > lines.MAX_DIGITS:
        raise InputError(
            f"arithmetic with {digits=}, {operands=}, {operators=} reaches {longest}-digit "
            f"numbers; the checker reads {lines.MAX_DIGITS}"
        )
