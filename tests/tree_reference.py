"""Every episode of a problem by plain recursion over the task, and what each prefix is worth.

Slow and apart from `rlcredit.exact`: it follows the conventions of `types`, one choice at a time,
and averages over episodes in float64.
"""

from __future__ import annotations

import functools
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from stubs import network, parameters, quick_jit

from rlcredit.evidence import Context
from rlcredit.oracle import ground
from rlcredit.rollout import draw_problems
from rlcredit.tasks import TASKS
from rlcredit.types import Sampling

LEGAL = Sampling(legal=True)
SLIPPERY = {"size": 3, "limit": 2, "slip": 0.2, "reward": "warmer"}
CASES = {
    "recovery": TASKS["bifurcation"](preset="recovery", delay=0),
    "chance": TASKS["bifurcation"](gaps=(0.5, 0.3), filler=0, chance=True),
    "maze": TASKS["maze"](size=3, limit=3, reward="warmer"),
    "slip": TASKS["maze"](**SLIPPERY, aliased=True),
}


class Leaf(NamedTuple):
    """One episode; T entries a list, `history` T + 1."""

    tokens: list
    mask: list
    reward: list
    chance: list
    answer: list
    step: list
    turn: list
    legal: list
    history: list  # the (token, answer) pairs chosen before each position
    length: int
    terminated: bool


@functools.cache
def problems_of(task, count=2):
    return quick_jit(lambda key: draw_problems(task, key, count)[0])(jax.random.key(0))


def one_of(problems, number):
    return jax.tree.map(lambda leaf: leaf[number], problems)


def leaves(task, problem, legal=True):
    """All episodes in the order of their tokens, then of the task's answers."""
    prompt, length = (np.asarray(part) for part in task.prompt(problem))
    size, vocabulary = task.prompt_capacity + task.horizon, len(task.vocabulary)
    last_start = int(length) + task.horizon - 1 - task.observation_capacity
    ask = _asker(task)
    found = []

    def walk(state, columns, history, step, turn):
        allowed, chances, after = ask(problem, state)
        options = np.flatnonzero(allowed) if legal else range(vocabulary)
        for token in options:
            for answer, chance in _answers(chances[token], after, token):
                to = jax.tree.map(lambda leaf, at=(token, answer): leaf[at], after)
                now = (token, True, to.reward, chance, answer, step, turn, allowed, history)
                written = [*columns, now]
                past = (*history, (int(token), answer))
                heard = [] if to.observation is None or to.terminated else to.observation
                written += [
                    (word, False, 0, 1, 0, -1, -1, 0 * allowed, past) for word in heard if word
                ]
                if to.terminated or to.truncated or len(written) > last_start:
                    found.append(_leaf(written, size, past, bool(to.terminated), allowed))
                else:
                    walk(to.state, written, past, step + to.step_ended, turn + to.turn_ended)

    start = jax.tree.map(np.asarray, task.start(problem))
    blank = np.zeros(vocabulary, bool)
    prompt_columns = [(word, False, 0, 1, 0, -1, -1, blank, ()) for word in prompt[:length]]
    walk(start, prompt_columns, (), 0, 0)
    return found


@functools.cache
def _asker(task):
    """(problem, state) -> (legal [V], chances [V, C], transitions [V, C, ...])."""

    def certain(problem, state, token):
        once = task.step(problem, state, token, jax.random.key(0))
        return jnp.ones(1), jax.tree.map(lambda leaf: leaf[None], once)

    outcomes = task.outcomes or certain

    def ask(problem, state):
        tokens = jnp.arange(len(task.vocabulary))
        every = jax.vmap(lambda token: outcomes(problem, state, token))(tokens)
        return task.legal(problem, state), *every

    jitted = quick_jit(ask)
    return lambda *arguments: jax.tree.map(np.asarray, jitted(*arguments))


def _answers(chances, after, token):
    """[(number, chance)] of the answers that differ, the chance of equal ones at the first."""
    different = {}
    for number, chance in enumerate(chances):
        content = b"".join(leaf[token, number].tobytes() for leaf in jax.tree.leaves(after))
        first, together = different.get(content, (number, 0.0))
        different[content] = (first, together + float(chance))
    return [(number, chance) for number, chance in different.values() if chance > 0]


def _leaf(columns, size, history, terminated, allowed):
    missing = size - len(columns)
    filled = columns + [(0, False, 0, 1, 0, -1, -1, 0 * allowed, history)] * missing
    *parts, histories = (list(part) for part in zip(*filled, strict=True))
    return Leaf(*parts, [*histories, history], len(columns), terminated)


class Worth(NamedTuple):
    """float64, of every leaf."""

    probability: np.ndarray  # [L]
    value: np.ndarray  # [L, T + 1]
    advantage: np.ndarray  # [L, T]
    visit: np.ndarray  # [L, T + 1] how likely an episode has that history


def worth(episodes, log_prob):
    """Expectations over all leaves that share a history.

    Args: log_prob: [L, T] of the chosen tokens.
    """
    mask, reward, chance = (
        np.asarray([getattr(leaf, name) for leaf in episodes], float)
        for name in ("mask", "reward", "chance")
    )
    step_chance = np.where(mask > 0, np.exp(np.asarray(log_prob, float)) * chance, 1)
    probability = step_chance.prod(axis=1)
    to_go = np.cumsum(reward[:, ::-1], axis=1)[:, ::-1]
    to_go = np.pad(to_go, ((0, 0), (0, 1)))

    def expected(column, names):
        groups = {}
        for number, name in enumerate(names):
            groups.setdefault(name, []).append(number)
        mean, reached = np.zeros((2, len(names)))
        for numbers in groups.values():
            reached[numbers] = probability[numbers].sum()
            mean[numbers] = probability[numbers] @ column[numbers] / reached[numbers[0]]
        return mean, reached

    value, visit = np.zeros((2, *to_go.shape))
    q = np.zeros(mask.shape)
    for t in range(to_go.shape[1]):
        value[:, t], visit[:, t] = expected(to_go[:, t], [leaf.history[t] for leaf in episodes])
    for t in range(mask.shape[1]):
        names = [(leaf.history[t], leaf.tokens[t]) for leaf in episodes]
        q[:, t] = expected(to_go[:, t], names)[0]
    return Worth(probability, value, np.where(mask > 0, q - value[:, :-1], 0), visit)


@functools.cache
def policy_of(name, critic="none"):
    return network(vocabulary=len(CASES[name].vocabulary), seed=3, value_head=critic)


@functools.cache
def prepare_of(name, critic):
    """`ground.make_prepare` for two problems of a case, compiled without optimisation."""
    policy, params = policy_of(name, critic)
    context = Context(policy, params, params, CASES[name], LEGAL)
    with mock.patch.object(jax, "jit", quick_jit):
        return ground.make_prepare(context, problems_of(CASES[name]))


@functools.cache
def ground_of(name, critic="none"):
    policy, params = policy_of(name, critic)
    return prepare_of(name, critic)(params, parameters(policy, seed=4))


def first_problem(whole):
    """The ground of the first problem alone."""
    arrays = whole._replace(context=None, scores=None, gradient=None)
    one = jax.tree.map(lambda leaf: leaf[:1], arrays)
    scores = whole.scores[:1]
    gradient = jnp.einsum("ne,nep->p", one.visit * one.advantage, scores)
    return one._replace(context=whole.context, scores=scores, gradient=gradient)
