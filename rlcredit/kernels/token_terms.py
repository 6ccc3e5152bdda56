"""The loss of single tokens and its derivatives, in a form that a kernel can hold."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.types import Array

# (log_prob, entropy, **per_token) -> loss, all of one token and so without axes.
TokenLoss = Callable[..., Array]
# (log_prob, entropy, per_token) -> (loss, g_log_prob, g_entropy), all of one shape.
Terms = Callable[[Array, Array, dict[str, Array]], tuple[Array, Array, Array]]


def token_terms(
    token_loss: TokenLoss, log_prob: Array, entropy: Array, per_token: dict[str, Array]
) -> tuple[Array, Array, Array]:
    """(loss, g_log_prob, g_entropy) of every token: `token_loss` and its two derivatives.

    Args: log_prob, entropy, and the arrays of per_token: [...].
    Returns: three times [...].
    """

    def one(log_prob: Array, entropy: Array, per_token: dict[str, Array]) -> Array:
        return token_loss(log_prob, entropy, **per_token)

    each = one
    for _ in log_prob.shape:
        each = jax.vmap(each)
    loss, pull_back = jax.vjp(lambda lp, h: each(lp, h, per_token), log_prob, entropy)
    return loss, *pull_back(jnp.ones_like(loss))


def row_factors(
    g_log_prob: Array, g_entropy: Array, target: Array, total: Array, mean: Array, top: Array
) -> tuple[Array, Array, Array, Array]:
    """(live, hit, constant, slope), a number a token, with which

    dz = 1[token] * hit - weights * (constant + slope * relative) where live, else 0,

    relative = z - max z, weights = exp(relative), total and mean their sum and mean `relative`.
    """
    live = ((g_log_prob != 0) | (g_entropy != 0)) & (top > FORBIDDEN)
    hit = jnp.where(target > FORBIDDEN / 2, g_log_prob, 0)
    constant = (g_log_prob - g_entropy * mean) / total
    return live, hit, constant, g_entropy / total


def for_kernel(terms: Terms, *arguments) -> tuple[Array, Array, Array]:
    """terms(*arguments) by primitives that Pallas knows on TPUs and GPUs."""
    flat, tree = jax.tree.flatten(arguments)
    closed = jax.make_jaxpr(lambda *leaves: terms(*jax.tree.unflatten(tree, leaves)))(*flat)
    return tuple(_evaluate(closed, flat))


def _expm1(x: Array) -> Array:
    return jnp.tanh(0.5 * x) * (jnp.exp(x) + 1)


# What it does not know, of all that losses and their derivatives are made of.
_INSTEAD = {"expm1": _expm1, "add_any": lax.add}


def _evaluate(closed: ClosedJaxpr, arguments: list[Array]) -> list[Array]:
    known = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known |= zip(closed.jaxpr.invars, arguments, strict=True)

    def value(atom):
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in closed.jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in _INSTEAD:
            results = [_INSTEAD[name](*inputs)]
        elif name in ("jit", "pjit"):
            results = _evaluate(equation.params["jaxpr"], inputs)
        else:
            # A block's registers lie on no mesh, whatever the program around them does.
            nowhere = {"sharding": None} if "sharding" in equation.params else {}
            results = equation.primitive.bind(*inputs, **equation.params | nowhere)
            results = results if equation.primitive.multiple_results else [results]
        known |= zip(equation.outvars, results, strict=True)
    return [value(atom) for atom in closed.jaxpr.outvars]
