"""Tasks whose course a test dictates, and networks to run them with."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.policy import Architecture, transformer
from rlcredit.types import Array, Policy, PyTree, Task, Transition

VOCABULARY = ("_", *"abcdef", ".", ";", "$")
ANY, SOME = "?", "!"  # in a script: every token is legal; the tokens of SOME_TOKENS are
SOME_TOKENS = "_ac$"
CAPACITY, HORIZON = 4, 6

# Compiles in a third of the time; outermost only. Where rounding is the question, use `jax.jit`.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


class Script(NamedTuple):
    """A problem: what may be chosen, and what each choice earns."""

    legal: Array  # [horizon, V] bool
    reward: Array  # [horizon] float32
    prompt_length: Array
    end: Array  # the token that terminates, -1 for none
    limit: Array  # the task itself truncates after so many tokens


def tape(horizon: int = HORIZON, name: str = "tape") -> Task:
    """A task that follows the problem's script; where it is not ended it is not over."""

    def step(problem: Script, count: Array, token: Array, key: Array) -> Transition:
        del key
        ended = token == problem.end
        return Transition(
            state=count + 1,
            reward=problem.reward[count],
            terminated=ended,
            truncated=count + 1 == problem.limit,
            step_ended=ended | (token == VOCABULARY.index(";")),
            turn_ended=ended | (token == VOCABULARY.index(".")),
        )

    return Task(
        name=name,
        vocabulary=VOCABULARY,
        prompt_capacity=CAPACITY,
        horizon=horizon,
        draw=lambda key: jax.tree.map(lambda leaf: leaf[0], scripts(ANY)),
        prompt=_prompt,
        start=lambda problem: jnp.int32(0),
        step=step,
        legal=lambda problem, count: problem.legal[count],
        fingerprint=lambda problem, count: count.astype(jnp.uint32),
        held_out=lambda count, seed: scripts(*[ANY] * count),
        demonstrate=lambda problems, rng, wrong, skipped: [[1, 9]] * len(problems.end),
        text=lambda tokens: "".join(VOCABULARY[int(token)] for token in tokens),
    )


def scripts(
    *texts: str, reward=1.0, prompt_length=2, end: str | None = "$", limit=-1, horizon=HORIZON
) -> Script:
    """One problem a text; beyond its text a script allows every token."""
    count = len(texts)
    legal = np.ones((count, horizon, len(VOCABULARY)), bool)
    for row, text in zip(legal, texts, strict=True):
        for position, character in enumerate(text):
            if character != ANY:
                allowed = SOME_TOKENS if character == SOME else character
                row[position] = [token in allowed for token in VOCABULARY]
    token = -1 if end is None else VOCABULARY.index(end)

    def per_problem(number) -> Array:
        return jnp.asarray(np.broadcast_to(np.asarray(number, np.int32), count))

    rewards = np.broadcast_to(np.asarray(reward, np.float32), (count, horizon))
    return Script(
        jnp.asarray(legal),
        jnp.asarray(rewards),
        *map(per_problem, (prompt_length, token, limit)),
    )


def _prompt(problem: Script) -> tuple[Array, Array]:
    position = jnp.arange(CAPACITY)
    row = jnp.where(position < problem.prompt_length, 1 + position % 3, 0)
    return row.astype(jnp.int32), problem.prompt_length


class Talk(NamedTuple):
    """A problem of `talk`."""

    prompt_length: Array
    limit: Array  # the task truncates after so many choices


LONGEST_ANSWER = 3


def talk(horizon: int = 20) -> Task:
    """A task that answers every choice by chance: 0 to 3 tokens, and a reward that says how many.

    It answers the last choice too; only where it truncates is the answer read.
    """

    def step(problem: Talk, state: Array, token: Array, key: Array) -> Transition:
        drawn = jax.random.randint(key, (), 0, LONGEST_ANSWER + 1)
        place = jnp.arange(LONGEST_ANSWER)
        answer = jnp.where(place < drawn, 1 + (state[1] + place + drawn) % 6, 0)
        count = state[0] + 1
        return Transition(
            state=jnp.stack([count, (state[1] + token + drawn) % 97]),
            reward=drawn + token / 16,
            terminated=token == VOCABULARY.index("$"),
            truncated=count == problem.limit,
            step_ended=token == VOCABULARY.index(";"),
            turn_ended=drawn > 0,
            observation=answer.astype(jnp.int32),
            feedback=jnp.stack([drawn, token]).astype(jnp.float32),
        )

    return tape()._replace(
        name="talk",
        horizon=horizon,
        draw=lambda key: jax.tree.map(lambda leaf: leaf[0], talks(1)),
        prompt=_prompt,
        start=lambda problem: jnp.zeros(2, jnp.int32),
        step=step,
        legal=lambda problem, state: jnp.arange(len(VOCABULARY)) > state[1] % 2,
        fingerprint=lambda problem, state: state[1].astype(jnp.uint32),
        observation_capacity=LONGEST_ANSWER,
        feedback=("drawn", "token"),
    )


def talks(count: int, limits=(-1, 3, 5)) -> Talk:
    """Problems with prompts of 1 to 4 tokens and these limits in turn."""
    number = jnp.arange(count)
    return Talk(1 + number % CAPACITY, jnp.asarray(limits)[number % len(limits)])


def network(vocabulary: int = len(VOCABULARY), seed: int = 0, **changes) -> tuple[Policy, PyTree]:
    """A tiny transformer and parameters for it."""
    sizes = {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden_factor": 2.0}
    policy = transformer(Architecture(vocabulary, **(sizes | changes)))
    return policy, parameters(policy, seed)


def parameters(policy: Policy, seed: int) -> PyTree:
    """Random parameters, none of them 0, from numpy: nothing to compile."""
    rng = np.random.default_rng(seed)

    def fill(leaf: jax.ShapeDtypeStruct) -> Array:
        noise = rng.normal(size=leaf.shape)
        is_matrix = len(leaf.shape) == 2
        filled = noise * leaf.shape[0] ** -0.5 if is_matrix else 1 + 0.1 * noise
        return jnp.asarray(filled, jnp.float32)

    return jax.tree.map(fill, jax.eval_shape(policy.init, jax.random.key(0)))


def encode(text: str) -> list[int]:
    return [VOCABULARY.index(character) for character in text]


def assert_trees_close(left: PyTree, right: PyTree, atol: float) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


def distance(left: PyTree, right: PyTree) -> float:
    """Euclidean, over all leaves."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return float(np.sqrt(sum(np.sum((np.asarray(a) - np.asarray(b)) ** 2) for a, b in pairs)))


def same_bits(left: PyTree, right: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
