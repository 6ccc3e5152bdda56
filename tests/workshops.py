"""Code repair for tests: its rules once more in plain Python, and problems and players to share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from stubs import quick_jit

from rlcredit import episode
from rlcredit.tasks import repair_view as view
from rlcredit.tasks.program import OPERATIONS
from rlcredit.tasks.repair import Rules, repair
from rlcredit.tasks.repair_problems import Problem

POOL = 2**12
WORDS = view.VOCABULARY
RULES = Rules(files=3, lines=4, tests=4, weak=0.0, actions=5)
SMALL = Rules(files=1, lines=2, tests=10, weak=1.0, actions=3)
LARGE = Rules(files=6, lines=6, tests=3, weak=0.5, actions=7)


def interpret(lines, register):
    """The rules in plain Python: a digit, or the name of an exception."""
    for operation, operand in lines:
        match OPERATIONS[operation]:
            case "add":
                register = (register + operand) % 10
            case "mul":
                register = (register * operand) % 10
            case "high" if register >= operand:
                return "high"
            case "low" if register <= operand:
                return "low"
    return register


class Workshop:
    """One episode, played in words.

    Args: tried: [10] bool, the inputs that are tried even where a value is expected.
    """

    def __init__(self, rules, problem, tried):
        self.rules, self.tried = rules, tried
        self.intended = [[tuple(line) for line in file] for file in problem.code.tolist()]
        self.file, self.line = int(problem.file), int(problem.line)
        self.fault = tuple(problem.fault.tolist())
        self.code = self.patched(self.file, self.line, self.fault)
        self.typed, self.actions = [], 0

    def patched(self, file, line, instruction, base=None):
        files = [list(lines) for lines in base or self.intended]
        files[file][line] = instruction
        return files

    def legal(self):
        slots = [
            ["inspect", "write", "test", "submit"],
            ["A", "B", "C", "D", "E", "F"][: self.rules.files],
            [f"#{1 + i}" for i in range(self.rules.lines)],
            [f"{name}{digit}" for name in OPERATIONS for digit in range(10)],
        ]
        return slots[len(self.typed)]

    def results(self):
        """Of each test None, or what the first check that fails expects."""
        results = [None] * self.rules.tests
        for x in reversed(range(10)):
            expected = interpret(self.intended[self.file], x)
            right = interpret(self.code[self.file], x) == expected
            if not right and (self.tried[x] or isinstance(expected, str)):
                results[x % self.rules.tests] = expected
        return results

    def hidden(self):
        pairs = zip(self.intended, self.code, strict=True)
        return all(interpret(a, x) == interpret(b, x) for a, b in pairs for x in range(10))

    def step(self, word):
        """(reward, terminated, truncated, ended, output words, feedback)"""
        accepted = word in self.legal()
        self.typed.append(word)
        full = {"inspect": 2, "write": 4, "test": 1, "submit": 1}.get(self.typed[0])
        if accepted and len(self.typed) < full:
            return 0, False, False, False, [], [0] * (self.rules.tests + 2)
        action, self.typed = self.typed if accepted else ["error"], []
        self.actions += 1
        results = self.results()
        passed = [float(r is None) for r in results]
        output, feedback, reward = [], [0] * (self.rules.tests + 2), 0
        match action:
            case ["error"]:
                output = ["error"]
            case ["inspect", file]:
                for number, (operation, operand) in enumerate(self.code["ABCDEF".index(file)]):
                    output += [f"#{1 + number}", f"{OPERATIONS[operation]}{operand}"]
            case ["write", file, line, word]:
                handed = self.patched(self.file, self.line, self.fault)
                new = (OPERATIONS.index(word[:-1]), int(word[-1]))
                self.code = self.patched("ABCDEF".index(file), int(line[1]) - 1, new, handed)
            case ["test"]:
                for result in results:
                    output += ["pass"] if result is None else ["fail"]
                    output += [f"!{result}"] if isinstance(result, str) else []
                feedback = [np.mean(passed), *passed, 0]
            case ["submit"]:
                reward = float(all(passed))
                feedback = [np.mean(passed), *passed, float(self.hidden())]
        over = action == ["submit"]
        late = self.actions >= self.rules.actions and not over
        return reward, over, late, True, output, feedback


def make(rules):
    return repair(**rules._asdict())


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@functools.cache
def drawn(rules=RULES, count=POOL):
    return quick_jit(jax.vmap(make(rules).draw))(keys(count))


def first(count, rules=RULES):
    return jax.tree.map(lambda leaf: leaf[:count], drawn(rules))


def codes(words):
    return [WORDS.index(word) for word in words.split()]


def lines_of(words):
    pairs = [(OPERATIONS.index(word[:-1]), int(word[-1])) for word in words.split()]
    return jnp.asarray(pairs, jnp.int32)


def example():
    """File B should be add3 mul7 high4, and its second line is mul9."""
    files = ["add1 mul3 low2", "add3 mul7 high4", "mul3 add1 high9"]
    place = (jnp.int32(1), jnp.int32(1))
    return Problem(jnp.stack([lines_of(f) for f in files]), *place, lines_of("mul9")[0])


def any_legal(key, legal):
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))


def any_token(key, legal):
    return jax.random.randint(key, (), 0, legal.size)


@functools.cache
def player(rules, choose):
    """(problems, plan) -> episodes of `choose(task, plan, problem, state, number, key)`."""
    task = make(rules)

    def play(problems, plan):
        chooser = functools.partial(choose, task, plan)
        rollout = episode.play(task, problems, keys(len(problems.line)), chooser)
        return jax.tree.map(lambda leaf: leaf[:, 0], rollout._replace(problem=(), key=()))

    return quick_jit(play)
