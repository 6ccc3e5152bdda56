"""The 80/20 rule: GRPO for the tokens of highest entropy alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.advantages.grpo import grpo
from rlcredit.types import Array, Rollout


def top_entropy(
    rollout: Rollout, *, entropy: Array, share: float = 0.2, eps: float = 1e-6
) -> Array:
    """A[t] = grpo where H[t] is among the highest `share` of the chosen tokens, over all N * K
    episodes, else 0; tokens of equal entropy at the border all stay.

    A reducer still counts the tokens that were left out. Wang et al., 2025, arXiv 2506.01939.

    Args:
      entropy: [N, K, T] evidence.
    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    mask = rollout.mask
    entropy = jnp.where(mask, entropy, -jnp.inf)
    kept = jnp.ceil(share * jnp.sum(mask)).astype(jnp.int32)
    least = _largest(entropy, jnp.maximum(kept, 1))
    return jnp.where(mask & (entropy >= least), grpo(rollout, eps=eps), 0)


def _largest(x: Array, number: Array) -> Array:
    """The `number`-th largest entry, found bit by bit: a sort of all takes far longer."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    # As integers in the order of the numbers: those of negative ones run the other way.
    order = jnp.where(bits < 0, bits ^ jnp.int32(2**31 - 1), bits)

    def take(place: Array, low: Array) -> Array:
        middle = low + (jnp.int32(1) << (31 - place))  # wraps around for the sign, as it should
        return jnp.where(jnp.sum(order >= middle) >= number, middle, low)

    found = jax.lax.fori_loop(0, 32, take, jnp.int32(-(2**31)))
    found = jnp.where(found < 0, found ^ jnp.int32(2**31 - 1), found)
    return jax.lax.bitcast_convert_type(found, jnp.float32)
