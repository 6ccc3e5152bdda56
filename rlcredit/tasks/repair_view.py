"""What the code-repair environment reads and writes: its tokens, actions, prompts and outputs.

An instruction is one token and is preceded by its line, in issues, files and actions alike. A small
network then finds the odd line: to compare two tokens is much easier than to compare two pairs.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from rlcredit.tasks.program import DIGITS, EXCEPTIONS, OPERATIONS
from rlcredit.types import Array

MAX_FILES = MAX_LINES = 6

# The kinds of tokens. Token n of an action, counted from 1, is of kind n: an action is a verb and
# as much of `file line instruction` as the verb takes.
OUTPUT, VERB, FILE, LINE, INSTRUCTION = range(5)
ACTION_LENGTHS = {"inspect": FILE, "write": INSTRUCTION, "test": VERB, "submit": VERB}
LONGEST_ACTION = max(ACTION_LENGTHS.values())

_TOKENS = (
    *((name, OUTPUT) for name in ("_", "issue", "pass", "fail", "error")),
    *((f"!{name}", OUTPUT) for name in EXCEPTIONS),
    *((name, VERB) for name in ACTION_LENGTHS),
    *((name, FILE) for name in "ABCDEF"[:MAX_FILES]),
    *((f"#{number}", LINE) for number in range(1, MAX_LINES + 1)),
    *((f"{name}{digit}", INSTRUCTION) for name in OPERATIONS for digit in range(DIGITS)),
)
VOCABULARY = tuple(name for name, _ in _TOKENS)
KINDS = np.asarray([kind for _, kind in _TOKENS], np.int32)
LENGTHS = np.asarray([ACTION_LENGTHS.get(name, 0) for name in VOCABULARY], np.int32)

ISSUE, PASS, FAIL, ERROR = map(VOCABULARY.index, ("issue", "pass", "fail", "error"))
INSPECT, WRITE, TEST, SUBMIT = map(VOCABULARY.index, ACTION_LENGTHS)
FIRST_FILE, FIRST_LINE = map(VOCABULARY.index, ("A", "#1"))
_FIRST_EXCEPTION = VOCABULARY.index(f"!{EXCEPTIONS[0]}")
_FIRST_INSTRUCTION = VOCABULARY.index(f"{OPERATIONS[0]}0")


def usable(files: int, lines: int) -> Array:
    """[V] bool: the tokens that occur in actions on a repository of this size."""
    known = KINDS != OUTPUT
    known[FIRST_FILE + files : FIRST_FILE + MAX_FILES] = False
    known[FIRST_LINE + lines : FIRST_LINE + MAX_LINES] = False
    return jnp.asarray(known)


def instruction_token(instruction: Array) -> Array:
    """[...] int32 token of an operation and operand [..., 2]."""
    return _FIRST_INSTRUCTION + DIGITS * instruction[..., 0] + instruction[..., 1]


def instruction(token: Array) -> Array:
    """[2] int32: the operation and operand of a token; meaningless for other kinds."""
    return jnp.stack(jnp.divmod(token - _FIRST_INSTRUCTION, DIGITS))


def file_tokens(lines: Array) -> Array:
    """[2 L] tokens of a file [L, 2]: the number and the instruction of each line."""
    numbers = FIRST_LINE + jnp.arange(lines.shape[0])
    return jnp.column_stack([numbers, instruction_token(lines)]).ravel()


def issue_tokens(file: Array, lines: Array) -> Array:
    """[2 + 2 L] tokens of an issue: the file with the fault, and the lines it should have."""
    return jnp.concatenate([jnp.stack([ISSUE, FIRST_FILE + file]), file_tokens(lines)])


def report_tokens(passed: Array, expected: Array) -> Array:
    """[2 tests] tokens, left-aligned: of each test `pass`, or `fail` and the exception it expected.

    Args: passed: [tests] bool; expected: [tests] int32 exception, 0 for none.
    """
    exception = jnp.where(expected > 0, _FIRST_EXCEPTION - 1 + expected, 0)
    tokens = jnp.column_stack([jnp.where(passed, PASS, FAIL), exception]).ravel()
    position = jnp.where(tokens > 0, jnp.cumsum(tokens > 0) - 1, tokens.size)
    return jnp.zeros_like(tokens).at[position].set(tokens, mode="drop")


def text(tokens: Iterable[int]) -> str:
    """A row in a line: `issue B #1 add3 #2 low4 | inspect B -> #1 add3 #2 low6 | write B ...`."""
    words: list[str] = []
    lacking, answered = 0, True  # tokens that the action under way lacks; its output has begun
    for token in (int(token) for token in tokens if int(token)):
        if lacking <= 0 and KINDS[token] == VERB:
            words.append("|")
            lacking, answered = LENGTHS[token], False
        elif not answered and (lacking <= 0 or token == ERROR):
            words.append("->")
            lacking, answered = 0, True
        words.append(VOCABULARY[token])
        lacking -= 1
    return " ".join(words)
