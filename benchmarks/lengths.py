"""A task whose problem says how long its episode is: random prompts, any tokens, rewards for some.

So the work of sampling and training is known beforehand, and the same for whoever does it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.policy import Architecture, transformer
from rlcredit.types import Array, Policy, PyTree, Task, Transition

VOCABULARY, PROMPT = 64, 16
# Layers and width; with heads of 32, SwiGLU of four times the width and 64 tokens that is 1.07 and
# 0.14 million parameters, as in a LLaMA of these sizes.
SIZES = {"1.07 M": (4, 128), "0.14 M": (2, 64), "tiny": (1, 32)}


class Problem(NamedTuple):
    """One prompt."""

    prompt: Array  # [PROMPT] int32
    length: Array  # int32 of the episode


def network(size: str) -> Policy:
    """The policy of one of the sizes."""
    layers, width = SIZES[size]
    heads = width // 32
    sizes = {"width": width, "layers": layers, "heads": heads, "kv_heads": heads}
    return transformer(Architecture(VOCABULARY, **sizes, hidden_factor=4.0))


def matrix_parameters(params: PyTree) -> int:
    """Those that every token is multiplied with: not the embedding, of which it takes a row."""
    matrices = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
    return matrices - params["policy"]["embedding"].size


def fixed(length: int) -> Task:
    """Every episode has `length` tokens."""
    return _task(length, lambda key: jnp.int32(length))


def geometric(mean: int, most: int) -> Task:
    """Lengths of a geometric distribution, those above `most` cut to it."""

    def draw_length(key: Array) -> Array:
        drawn = jax.random.geometric(key, 1 / mean, dtype=jnp.int32)
        return jnp.minimum(drawn, most)

    return _task(most, draw_length)


def _task(horizon: int, draw_length) -> Task:
    def draw(key: Array) -> Problem:
        prompt_key, length_key = jax.random.split(key)
        prompt = jax.random.randint(prompt_key, PROMPT, 1, VOCABULARY, jnp.int32)
        return Problem(prompt, draw_length(length_key))

    def step(problem: Problem, written: Array, token: Array, key: Array) -> Transition:
        del key
        return Transition(
            state=written + 1,
            reward=earned(token) / problem.length,
            terminated=written + 1 == problem.length,
            truncated=jnp.bool_(False),
            step_ended=jnp.bool_(False),
            turn_ended=jnp.bool_(False),
        )

    def held_out(count: int, seed: int) -> Problem:
        return jax.vmap(draw)(jax.random.split(jax.random.key(seed), count))

    return Task(
        name="lengths",
        vocabulary=tuple(f"t{token}" for token in range(VOCABULARY)),
        prompt_capacity=PROMPT,
        horizon=horizon,
        draw=draw,
        prompt=lambda problem: (problem.prompt, jnp.int32(PROMPT)),
        start=lambda problem: jnp.int32(0),
        step=step,
        legal=lambda problem, written: jnp.ones(VOCABULARY, bool),
        fingerprint=lambda problem, written: written.astype(jnp.uint32),
        held_out=held_out,
        text=lambda tokens: " ".join(f"t{token}" for token in tokens),
    )


def earned(token: Array) -> Array:
    """1 for a token of even number, 0 for the others."""
    return (token % 2 == 0).astype(jnp.float32)
