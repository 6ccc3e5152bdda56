"""The policy loss from logits as a Pallas kernel for TPUs.

Tokens lie along the lanes and the vocabulary along the sublanes: a vocabulary of 16 fills whole
registers, its sums are sums of registers, and what there is one of per token is dense too. A block
holds the whole vocabulary of some tokens, so no token meets another and what lies beyond the last
one is never mixed in.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rlcredit.kernels.chunked import FORBIDDEN
from rlcredit.kernels.token_terms import Terms, for_kernel, row_factors
from rlcredit.types import Array

# Numbers in a block, 1 MB in float32: in and out, each twice, and what is computed in between stay
# well below the 16 MB of a v5e.
_MOST_NUMBERS, _MOST_TOKENS, _LANES = 2**18, 2048, 128


def policy_loss_tpu(
    terms: Terms,
    temperature: float,
    logits: Array,
    tokens: Array,
    per_token: dict[str, Array],
    *,
    gradient: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """As `policy_loss.policy_loss_xla`; d_logits takes the place of the logits where blocks
    divide the tokens.
    """
    count, vocabulary = logits.shape
    size = tokens_of_block(count, vocabulary)
    whole = pl.BlockSpec((vocabulary, size), lambda i: (0, i))
    row = pl.BlockSpec((1, size), lambda i: (0, i))
    numbers = jax.ShapeDtypeStruct((1, count), jnp.float32)
    shapes, specs = [numbers] * 3, [row] * 3
    if gradient:
        shapes.append(jax.ShapeDtypeStruct((vocabulary, count), logits.dtype))
        specs.append(whole)
    names = tuple(per_token)
    # JAX's interpreter cannot give an output that is wider than its array the array's own place.
    in_place = gradient and count % size == 0
    outputs = pl.pallas_call(
        functools.partial(_kernel, terms, temperature, names, gradient),
        out_shape=shapes,
        grid=(pl.cdiv(count, size),),
        in_specs=[whole, row, *[row] * len(names)],
        out_specs=specs,
        input_output_aliases={0: 3} if in_place else {},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name="policy_loss",
    )(logits.T, tokens[None], *(per_token[name][None] for name in names))
    loss, log_prob, entropy = (array[0] for array in outputs[:3])
    return loss, log_prob, entropy, outputs[3].T if gradient else None


def tokens_of_block(count: int, vocabulary: int) -> int:
    """Tokens of a block: whole lanes, at most what fits, and no more than there are."""
    fits = min(_MOST_NUMBERS // vocabulary, _MOST_TOKENS, count + _LANES - 1)
    return max(fits // _LANES, 1) * _LANES


def _kernel(
    terms: Terms, temperature: float, names: tuple[str, ...], gradient: bool, *refs
) -> None:
    logits, tokens, *arrays = (ref[...] for ref in refs[: 2 + len(names)])
    loss_ref, log_prob_ref, entropy_ref, *d_logits_ref = refs[2 + len(names) :]
    z = jnp.maximum(logits.astype(jnp.float32) * (1 / temperature), FORBIDDEN)
    top = jnp.max(z, axis=0, keepdims=True)
    relative = z - top
    weights = jnp.exp(relative)
    total = jnp.sum(weights, axis=0, keepdims=True)
    mean = jnp.sum(weights * relative, axis=0, keepdims=True) / total
    chosen = lax.broadcasted_iota(jnp.int32, z.shape, 0) == tokens
    target = jnp.sum(jnp.where(chosen, relative, 0), axis=0, keepdims=True)
    log_total = jnp.log(total)
    log_prob, entropy = jnp.minimum(target - log_total, 0), log_total - mean
    log_prob_ref[...], entropy_ref[...] = log_prob, entropy
    rows = for_kernel(terms, log_prob, entropy, dict(zip(names, arrays, strict=True)))
    loss_ref[...] = rows[0]
    if gradient:
        live, hit, constant, slope = row_factors(*rows[1:], target, total, mean, top)
        dz = jnp.where(chosen, hit, 0) - weights * (constant + slope * relative)
        (ref,) = d_logits_ref
        ref[...] = jnp.where(live, dz * (1 / temperature), 0).astype(ref.dtype)
