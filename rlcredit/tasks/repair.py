"""Code repair: an issue, a repository with one faulty line, and a patch that tests judge.

    issue B #1 add3 #2 mul7 #3 high4 | inspect B -> #1 add3 #2 mul9 #3 high4 | write B #2 mul7
    | test -> pass pass pass pass | submit

A repository is a few programs of a few lines (see `program`). One line of one file is wrong; the
issue names the file and says how its lines should read, not which of them does not. The actions are
`inspect FILE`, `write FILE LINE INSTRUCTION`, `test` and `submit`; each is a step and a turn.
A token that does not continue an action aborts it: that counts as an action, changes nothing else
and is answered by `error`. After `actions` actions the episode is truncated.

A patch is one line: `write` applies to the repository as it was handed out, so a later one takes
the earlier one back. Who has not looked has to guess the line; trying one after the other, with a
test between them, takes 2 * lines actions. The default is less.

Test i runs the faulty file on each input x with x % tests == i and compares the outcome with that
of the intended program. It stops at the first difference and reports which exception was expected
there, if one was. The reward, paid on `submit`, is 1 only if every test passes.

`weak` is the chance that an input for which a value is expected is not tried. At 0 all are, and
only a patch that repairs the file passes. At 1 the tests expect nothing but exceptions, and a line
that always raises passes. Whatever `weak` is, the problems are the same, their fault fails a test,
and a weaker suite tries a part of what a stronger one does.

The feedback is recorded at `test` and `submit` and is 0 elsewhere: `tests_passed` (the share),
`test_1`, ... (1 if it passes) and, at `submit` only, `hidden_passed`: 1 if a hidden suite passes
that runs all files on all inputs. No reward, output, legal token or potential depends on that one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from rlcredit.tasks import program
from rlcredit.tasks import repair_problems as problems
from rlcredit.tasks import repair_view as view
from rlcredit.tasks.repair_problems import Problem
from rlcredit.types import Array, InputError, Task, Transition


class Rules(NamedTuple):
    """The dials; see `repair`."""

    files: int
    lines: int
    tests: int
    weak: float
    actions: int


class State(NamedTuple):
    """The repository as it is, and what was done to it."""

    code: Array  # [files, lines, 2] int32
    typed: Array  # [LONGEST_ACTION - 1] int32 tokens of the action under way, then 0s
    actions: Array  # int32 number of actions that have ended
    inspected: Array  # bool; the faulty file was looked at
    tested: Array  # bool; the tests have run since the last write


class Verdict(NamedTuple):
    """What the tests say of a repository."""

    passed: Array  # [tests] bool
    expected: Array  # [tests] int32 exception that a failing test expected; 0 for none
    repaired: Array  # bool; what the hidden suite says


def repair(
    *, files: int = 3, lines: int = 4, tests: int = 4, weak: float = 0.0, actions: int = 5
) -> Task:
    """The task for a repository of `files` files of `lines` lines.

    Args:
      files: 1 to 6; lines: of each file, 2 to 6; tests: 1 to 10, the visible ones.
      weak: chance in [0, 1] that an input for which a value is expected is not tried.
      actions: 3 or more; an episode is truncated after so many.
    Raises: InputError for a value out of its range.
    """
    rules = Rules(files, lines, tests, weak, actions)
    _check(rules)
    longest = max(2 + 2 * lines, 1 + 2 * tests, view.LONGEST_ACTION + 1)  # with its output

    def prompt(problem: Problem) -> tuple[Array, Array]:
        tokens = view.issue_tokens(problem.file, problem.code[problem.file])
        return tokens, jnp.int32(tokens.size)

    return Task(
        name="repair",
        vocabulary=view.VOCABULARY,
        prompt_capacity=2 + 2 * lines,
        # The last action needs room for its tokens and for the longest output there is.
        horizon=(actions - 1) * longest + view.LONGEST_ACTION + _capacity(rules),
        draw=lambda key: problems.draw_problem(key, files=files, lines=lines),
        prompt=prompt,
        start=_start,
        step=lambda problem, state, token, key: _step(rules, problem, state, token),
        legal=lambda problem, state: _legal(rules, state),
        fingerprint=_fingerprint,
        held_out=lambda count, seed: problems.held_out_problems(
            count, seed, files=files, lines=lines
        ),
        text=view.text,
        observation_capacity=_capacity(rules),
        feedback=("tests_passed", *(f"test_{1 + i}" for i in range(tests)), "hidden_passed"),
        expert=lambda problem, state: _expert(rules, problem, state),
        potential=lambda problem, state: _potential(rules, problem, state),
    )


def judge(rules: Rules, problem: Problem, code: Array) -> Verdict:
    """The verdict of the visible tests and of the hidden suite on a patched repository.

    Args: code: [files, lines, 2] what was handed out but for one line.
    """
    intended = program.behaviour(problem.code[problem.file])
    wrong = program.differs(program.behaviour(code[problem.file]), intended)
    tried = (intended.exception > 0) | (problems.noise(problem) >= rules.weak)
    test_of_input = jnp.arange(program.DIGITS) % rules.tests
    mine = test_of_input[None] == jnp.arange(rules.tests)[:, None]
    failing = mine & (wrong & tried)[None]  # [tests, DIGITS]
    passed = ~jnp.any(failing, axis=1)
    expected = jnp.where(passed, 0, intended.exception[jnp.argmax(failing, axis=1)])
    # Where one line repairs this file, the other files are as they were: right.
    return Verdict(passed, expected, ~jnp.any(wrong))


def _start(problem: Problem) -> State:
    return State(
        code=problems.handed_out(problem),
        typed=jnp.zeros(view.LONGEST_ACTION - 1, jnp.int32),
        actions=jnp.int32(0),
        inspected=jnp.bool_(False),
        tested=jnp.bool_(False),
    )


def _step(rules: Rules, problem: Problem, state: State, token: Array) -> Transition:
    count = jnp.sum(state.typed > 0)
    accepted = _legal(rules, state)[token]
    verb = jnp.where(count == 0, token, state.typed[0])
    done = accepted & (count + 1 == jnp.asarray(view.LENGTHS)[verb])
    inspects, writes, tests, submits = (
        done & (verb == code) for code in (view.INSPECT, view.WRITE, view.TEST, view.SUBMIT)
    )
    ended = done | ~accepted
    actions = state.actions + ended
    typed = state.typed.at[count].set(token, mode="drop")
    file = token - view.FIRST_FILE  # of an inspection
    verdict = judge(rules, problem, state.code)
    outputs = _outputs(rules, state.code[file], verdict)
    return Transition(
        state=State(
            code=jnp.where(writes, _patched(problem, state.typed, token), state.code),
            typed=jnp.where(ended, 0, typed),
            actions=actions,
            inspected=state.inspected | (inspects & (file == problem.file)),
            tested=(state.tested | tests) & ~writes,
        ),
        reward=(submits & jnp.all(verdict.passed)).astype(jnp.float32),
        terminated=submits,
        truncated=ended & ~submits & (actions >= rules.actions),
        step_ended=ended,
        turn_ended=ended,
        observation=jnp.select([inspects, tests, ~accepted], outputs, 0),
        feedback=_feedback(verdict, tests, submits),
    )


def _patched(problem: Problem, typed: Array, token: Array) -> Array:
    """The repository after `write FILE LINE INSTRUCTION`; meaningless for other tokens."""
    _, file, line = typed
    place = (file - view.FIRST_FILE, line - view.FIRST_LINE)
    return problems.handed_out(problem).at[place].set(view.instruction(token))


def _outputs(rules: Rules, lines: Array, verdict: Verdict) -> list[Array]:
    """[observation_capacity] tokens each: a file, the report of the tests, an error."""
    report = view.report_tokens(verdict.passed, verdict.expected)
    outputs = (view.file_tokens(lines), report, jnp.asarray([view.ERROR]))
    return [jnp.pad(tokens, (0, _capacity(rules) - tokens.size)) for tokens in outputs]


def _feedback(verdict: Verdict, tests: Array, submits: Array) -> Array:
    """[F] the channels of `Task.feedback`."""
    share = jnp.mean(verdict.passed, keepdims=True, dtype=jnp.float32)
    hidden = (verdict.repaired & submits)[None]
    return jnp.where(tests | submits, jnp.concatenate([share, verdict.passed, hidden]), 0)


def _legal(rules: Rules, state: State) -> Array:
    """[V] bool: the tokens that begin or continue an action; any other one aborts it."""
    following = 1 + jnp.sum(state.typed > 0)
    return view.usable(rules.files, rules.lines) & (jnp.asarray(view.KINDS) == following)


def _fingerprint(problem: Problem, state: State) -> Array:
    """Of the problem and all of the state but `actions`.

    With the number of actions, histories of different lengths would never be alike.
    """
    return problems.mixed(problems.flat((problem, state._replace(actions=()))))


def _expert(rules: Rules, problem: Problem, state: State) -> Array:
    """Inspect the file, write the intended line, test, submit.

    It completes an action that is under way, keeps any patch that repairs the file, and leaves out
    what there are too few actions for: first the test, then the look, last the write. At whatever
    line a write has got to, it writes what the issue says of this line.
    """
    left = rules.actions - state.actions
    repaired = judge(rules, problem, state.code).repaired
    typed = jnp.sum(state.typed > 0)
    verb = jnp.select(
        [
            typed > 0,
            ~repaired & ~state.inspected & (left > 2),
            ~repaired & (left > 1),
            repaired & ~state.tested & (left > 1),
        ],
        [state.typed[0], view.INSPECT, view.WRITE, view.TEST],
        view.SUBMIT,
    )
    line = jnp.where(typed == view.LINE, state.typed[-1] - view.FIRST_LINE, problem.line)
    intended = view.instruction_token(problem.code[problem.file, line])
    file, line = view.FIRST_FILE + problem.file, view.FIRST_LINE + line
    return jnp.stack([verb, file, line, intended])[typed]


def _potential(rules: Rules, problem: Problem, state: State) -> Array:
    """0.75 * the share of visible tests that pass now + 0.25 * (the faulty file was looked at)."""
    passed = judge(rules, problem, state.code).passed
    return 0.75 * jnp.mean(passed, dtype=jnp.float32) + 0.25 * state.inspected


def _capacity(rules: Rules) -> int:
    """Tokens of the longest output: a file, or a report in which each test names an exception."""
    return 2 * max(rules.lines, rules.tests)


def _check(rules: Rules) -> None:
    ranges = Rules(
        files=(1, view.MAX_FILES),
        lines=(2, view.MAX_LINES),
        tests=(1, program.DIGITS),
        weak=(0, 1),
        actions=(3, math.inf),
    )
    for name, value, (low, high) in zip(Rules._fields, rules, ranges, strict=True):
        if not low <= value <= high:
            raise InputError(f"repair needs {low} <= {name} <= {high}, got {name}={value}")
