"""Reads one line of arithmetic a character at a time: is it well formed, and what is its value?

A line is an expression over non-negative integers with + - *, an optional leading minus, and one
level of brackets. Numbers have no leading zero and at most eight digits. The reader is a pure fold,
so that an environment can run it inside a jitted loop.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from rlcredit.types import Array

PAD, PLUS, MINUS, TIMES, OPEN, CLOSE, EQUALS, DELIMITER, END = 0, 11, 12, 13, 14, 15, 16, 17, 18
CHARACTERS = ("_", *"0123456789", "+", "-", "*", "(", ")", "=", ";", "$")
CODES = {character: code for code, character in enumerate(CHARACTERS)}
MAX_DIGITS = 8
MAX_MAGNITUDE = 10**9

# What the last character was.
_START, _DIGIT, _OPERATOR, _OPENED, _CLOSED = range(5)


class Line(NamedTuple):
    """What has been read of a line; index 0 of the pairs is outside the brackets, 1 inside."""

    valid: Array  # bool; no rule broken so far
    literal: Array  # bool; nothing but an optional minus and digits
    negative: Array  # bool; begins with a minus
    last: Array  # int32 kind of the last character
    depth: Array  # int32 open brackets
    digits: Array  # int32 digits of the current number
    factor: Array  # int32 the current number, or the value of the brackets just closed
    product: Array  # [2] int32 signed product of the current term's earlier factors
    total: Array  # [2] int32 sum of the earlier terms
    code: Array  # uint32 hash of the characters


def empty_line() -> Line:
    """A line of which nothing was read."""
    zero, one = jnp.int32(0), jnp.int32(1)
    return Line(
        valid=jnp.bool_(True),
        literal=jnp.bool_(True),
        negative=jnp.bool_(False),
        last=jnp.int32(_START),
        depth=zero,
        digits=zero,
        factor=zero,
        product=jnp.stack([one, one]),
        total=jnp.stack([zero, zero]),
        code=jnp.uint32(2166136261),
    )


def written(value: Array) -> tuple[Array, Array]:
    """(tokens [MAX_DIGITS + 2], length) of a number as a line is to say it, and the end token."""
    powers = 10 ** jnp.arange(MAX_DIGITS - 1, -1, -1)
    size = jnp.abs(value)
    tokens = jnp.concatenate([jnp.array([MINUS]), 1 + size // powers % 10, jnp.array([END])])
    shown = jnp.concatenate([value[None] < 0, (size >= powers) | (powers == 1), jnp.array([True])])
    place = jnp.where(shown, jnp.cumsum(shown) - 1, tokens.size)
    row = jnp.zeros(tokens.size, jnp.int32).at[place].set(tokens.astype(jnp.int32), mode="drop")
    return row, jnp.sum(shown, dtype=jnp.int32)


def read(line: Line, token: Array) -> Line:
    """The line after one more character; a forbidden one makes it invalid for good."""
    is_digit = (token >= 1) & (token <= 10)
    is_operator = (token >= PLUS) & (token <= TIMES)
    digit = _read_digit(line, token - 1)
    opened = _read_open(line)
    closed = _read_close(line)
    operator = _read_operator(line, token)
    choices = [(is_digit, digit), (is_operator, operator), (token == OPEN, opened)]
    following = closed
    for condition, choice in choices:
        following = _select(condition, choice, following)
    return following._replace(
        valid=line.valid & following.valid & allowed(line)[token],
        code=(line.code ^ token.astype(jnp.uint32)) * jnp.uint32(16777619),
    )


def allowed(line: Line) -> Array:
    """[V] bool: the characters that keep the line well formed; no delimiter and no end.

    A line of which a part leaves the range of `MAX_MAGNITUDE` becomes invalid all the same.
    """
    after_number = (line.last == _DIGIT) | (line.last == _CLOSED)
    fresh = (line.last == _START) | (line.last == _OPENED)
    zero_alone = (line.last == _DIGIT) & (line.digits == 1) & (line.factor == 0)
    room = (line.last != _DIGIT) | ((line.digits < MAX_DIGITS) & ~zero_alone)
    digit = (line.last != _CLOSED) & room
    opening = (line.depth == 0) & ~after_number
    closing = (line.depth == 1) & (line.last == _DIGIT)
    by_character = {
        **dict.fromkeys("0123456789", digit),
        "+": after_number,
        "-": after_number | fresh,
        "*": after_number,
        "(": opening,
        ")": closing,
    }
    never = jnp.bool_(False)
    return line.valid & jnp.stack([by_character.get(c, never) for c in CHARACTERS])


def complete(line: Line) -> Array:
    """bool: the line may end here, and its value is in range."""
    ended = (line.last == _DIGIT) | (line.last == _CLOSED)
    last_term, fits = _times(line.product[0], line.factor)
    fits &= _fits(line.total[0] + last_term)
    return line.valid & (line.depth == 0) & ended & fits


def value(line: Line) -> Array:
    """int32 value of a complete line; meaningless for any other."""
    return line.total[0] + line.product[0] * line.factor


def is_canonical_number(line: Line) -> Array:
    """bool: the line is one integer written the one right way (no +, no leading zero, no -0)."""
    return complete(line) & line.literal & ~(line.negative & (line.factor == 0))


def _read_digit(line: Line, digit: Array) -> Line:
    fresh = line.last != _DIGIT
    return line._replace(
        last=jnp.int32(_DIGIT),
        digits=jnp.where(fresh, 1, line.digits + 1),
        factor=jnp.where(fresh, digit, line.factor * 10 + digit),
    )


def _read_operator(line: Line, token: Array) -> Line:
    leading = (line.last == _START) | (line.last == _OPENED)
    at_start = line.last == _START
    sign = jnp.where(token == MINUS, -1, 1)
    product, fits_product = _times(line.product[line.depth], line.factor)
    total = line.total[line.depth] + product
    times = token == TIMES
    new_product = jnp.where(times & ~leading, product, sign)
    new_total = jnp.where(times | leading, line.total[line.depth], total)
    return line._replace(
        valid=line.valid & (leading | fits_product) & _fits(new_total),
        literal=line.literal & at_start,
        negative=line.negative | at_start,
        last=jnp.int32(_OPERATOR),
        product=line.product.at[line.depth].set(new_product),
        total=line.total.at[line.depth].set(new_total),
    )


def _read_open(line: Line) -> Line:
    return line._replace(
        literal=jnp.bool_(False),
        last=jnp.int32(_OPENED),
        depth=jnp.int32(1),
        product=line.product.at[1].set(1),
        total=line.total.at[1].set(0),
    )


def _read_close(line: Line) -> Line:
    product, fits = _times(line.product[1], line.factor)
    inside = line.total[1] + product
    return line._replace(
        valid=line.valid & fits & _fits(inside),
        literal=jnp.bool_(False),
        last=jnp.int32(_CLOSED),
        depth=jnp.int32(0),
        factor=inside,
    )


def _times(left: Array, right: Array) -> tuple[Array, Array]:
    """The product, and whether it is small enough; int32 would wrap around in silence."""
    fits = jnp.abs(left.astype(jnp.float32) * right.astype(jnp.float32)) <= MAX_MAGNITUDE
    return jnp.where(fits, left * right, 0), fits


def _fits(number: Array) -> Array:
    return jnp.abs(number) <= MAX_MAGNITUDE


def _select(condition: Array, chosen: Line, other: Line) -> Line:
    return Line(*(jnp.where(condition, a, b) for a, b in zip(chosen, other, strict=True)))
