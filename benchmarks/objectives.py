"""The loss that is measured, its inputs, and what its value and gradient are in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from contest import Way, compiled, distance

from rlcredit.kernels import token_log_prob
from rlcredit.types import Array

TEMPERATURE, CLIP, KL, ENTROPY = 0.7, 0.2, 0.04, 0.01
TOKENS_A_ROW = 32  # of one episode, whose tokens share their advantage
AT_ONCE = 2**26  # logits that are held in float64


class Shape(NamedTuple):
    """N tokens; without hidden states the loss starts at the logits."""

    tokens: int
    hidden: int | None
    vocabulary: int
    dtype: str = "float32"
    peers: bool = False


class Case(NamedTuple):
    """Inputs of one shape."""

    hidden: Array  # [N, H]; logits [N, V] where there are none
    head: Array | None  # [H, V]
    tokens: Array  # [N] int32
    old_log_prob: Array  # [N] float32, like the others
    ref_log_prob: Array
    advantage: Array


def objective(math: Any, log_prob, entropy, old_log_prob, ref_log_prob, advantage):
    """The mean loss, in the functions of `jnp` or `torch`; entropy may be None."""
    ratio = math.exp(log_prob - old_log_prob)
    clipped = math.clip(ratio, 1 - CLIP, 1 + CLIP)
    behind = ref_log_prob - log_prob
    loss = KL * (math.exp(behind) - behind - 1)
    loss = loss - math.minimum(ratio * advantage, clipped * advantage)
    return math.mean(loss if entropy is None else loss - ENTROPY * entropy)


def naive(hidden: Array, head: Array, tokens: Array) -> tuple[Array, Array]:
    """(log_prob, entropy) as they are usually written, through all logits."""
    wide = jnp.promote_types(jnp.float32, hidden.dtype)
    return from_logits(jnp.matmul(hidden, head, preferred_element_type=wide), tokens)


def from_logits(logits: Array, tokens: Array) -> tuple[Array, Array]:
    """The same from logits [N, V] before the temperature."""
    log_p = jax.nn.log_softmax(logits / TEMPERATURE)
    log_prob = jnp.take_along_axis(log_p, tokens[:, None], axis=1)[:, 0]
    return log_prob, -jnp.sum(jnp.exp(log_p) * log_p, axis=1)


def own(hidden: Array, head: Array, tokens: Array) -> tuple[Array, Array]:
    """The same by this project's kernel."""
    return token_log_prob(hidden, head, tokens, temperature=TEMPERATURE)


def with_gradient(scores: Callable) -> Callable:
    """Case -> (d_hidden, d_head) of the objective; scores(hidden, head, tokens) as `naive`."""

    def loss(hidden, head, case: Case) -> Array:
        return objective(jnp, *scores(hidden, head, case.tokens), *case[3:])

    return lambda case: jax.grad(loss, argnums=(0, 1))(case.hidden, case.head, case)


def without_gradient(scores: Callable) -> Callable:
    """Case -> what `scores` gives."""
    return lambda case: scores(case.hidden, case.head, case.tokens)


def way_of(name: str, function: Callable, case: Case, truth: tuple, *packages: str) -> Way:
    """A way in JAX."""
    program, temporary = compiled(function, case)
    check = functools.partial(distance, truth=truth)
    return Way(name, program, ("jax", "jaxlib", *packages), temporary, check)


def make(shape: Shape) -> Case:
    """Hidden states whose logits have a deviation of one, and policies near one another."""
    rng = np.random.default_rng(0)
    width = shape.hidden or shape.vocabulary
    hidden = jnp.asarray(rng.standard_normal((shape.tokens, width)), shape.dtype)
    head = None
    if shape.hidden is not None:
        head = rng.standard_normal((width, shape.vocabulary), np.float32) * width**-0.5
        head = jnp.asarray(head, shape.dtype)
    tokens = jnp.asarray(rng.integers(0, shape.vocabulary, shape.tokens), jnp.int32)
    scores = from_logits(hidden, tokens) if head is None else own(hidden, head, tokens)
    others = (scores[0] + rng.normal(0, 0.2, shape.tokens).astype(np.float32) for _ in range(2))
    of_rows = rng.standard_normal(shape.tokens // TOKENS_A_ROW).astype(np.float32)
    return Case(hidden, head, tokens, *others, jnp.repeat(of_rows, TOKENS_A_ROW))


def truth_of(case: Case, mode: str, full: bool) -> tuple:
    """What `mode` gives in float64, with entropy or without it, some rows at a time."""

    def scores(hidden, head, tokens):
        log_prob, entropy = naive(hidden, head, tokens)
        return log_prob, entropy if full else None

    in_pieces = in_double((without_gradient if mode == "forward" else with_gradient)(scores))
    vocabulary = case.head.shape[1]
    rows = min(case.tokens.size, 2 ** int(np.log2(AT_ONCE / vocabulary)))
    pieces = []
    for start in range(0, case.tokens.size, rows):
        own = case._replace(
            **{f: getattr(case, f)[start : start + rows] for f in Case._fields if f != "head"}
        )
        pieces.append(in_pieces(own))
    if mode == "forward":
        return tuple(np.concatenate(a) for a in zip(*pieces, strict=True) if a[0] is not None)
    share = rows / case.tokens.size  # each piece is a mean over its own rows
    d_hidden, d_head = zip(*pieces, strict=True)
    return share * np.concatenate(d_hidden), share * sum(d_head)


def in_double(function: Callable) -> Callable:
    """The function of one argument with its floats in float64, and numpy arrays as results."""
    jitted = jax.jit(function)

    def computed(argument: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, jitted(jax.tree.map(_widened, argument)))

    return computed


def _widened(leaf: Array) -> Array:
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
