"""The loss of a policy from its logits, value and gradient in one pass over them.

A token loss is a function of log_prob and entropy of that token alone, so with z = logits /
temperature its gradient is known as soon as its value is:

    dz = g_log_prob * (1[token] - p) - g_entropy * p * (z - E[z]),  p = softmax(z),

where g_log_prob and g_entropy are its two derivatives. The pass that computes the loss therefore
leaves d_logits behind, and the way back only scales it: nothing else of the size of the logits is
kept until then. Meant for small vocabularies, where the logits are there as a
whole; for large ones see `chunked`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlcredit.kernels.platform import on_hopper, platform
from rlcredit.kernels.token_log_prob import backward, forward
from rlcredit.kernels.token_terms import Terms, TokenLoss, token_terms
from rlcredit.types import Array, InputError


def policy_loss(
    token_loss: TokenLoss,
    logits: Array,
    tokens: Array,
    per_token: dict[str, Array],
    *,
    temperature: float = 1.0,
) -> tuple[Array, Array, Array]:
    """loss = sum over tokens of token_loss(log_prob, entropy, **per_token), with

    log_prob = z[token] - lse,  entropy = lse - E[z],  z = logits / temperature,  lse = log sum e^z.

    `token_loss` sees one token at a time, as numbers without axes: any loss of
    `rlcredit.losses` that needs no other token, sums of them, an entropy bonus, a KL penalty. The
    gradient goes to `logits` alone and from `loss` alone; log_prob and entropy are for metrics. A
    token whose loss has no gradient leaves none, nan among its logits included. A logit of -inf or
    `FORBIDDEN` has probability 0 and no gradient.

    Args:
      logits: [..., V] any float dtype; tokens: [...] int32 in [0, V).
      per_token: arrays [...], handed to `token_loss` by name, in float32.
    Returns: (loss [], log_prob [...], entropy [...]), float32.
    Raises: InputError if shapes differ, or if `token_loss` is not a function of single tokens.
    """
    _check(token_loss, logits, tokens, per_token)
    form = _form(logits)
    rows = {name: array.astype(jnp.float32).reshape(-1) for name, array in per_token.items()}
    compute = functools.partial(form, functools.partial(token_terms, token_loss), temperature)
    rows_of_logits = logits.reshape(-1, logits.shape[-1])
    loss, log_prob, entropy = _with_gradient(compute, rows_of_logits, tokens.reshape(-1), rows)
    return loss, log_prob.reshape(tokens.shape), entropy.reshape(tokens.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(compute: Callable, logits: Array, tokens: Array, per_token: dict):
    loss, log_prob, entropy, _ = compute(logits, tokens, per_token, gradient=False)
    return jnp.sum(loss), log_prob, entropy


def _forward(compute: Callable, logits: Array, tokens: Array, per_token: dict):
    loss, log_prob, entropy, d_logits = compute(logits, tokens, per_token, gradient=True)
    return (jnp.sum(loss), log_prob, entropy), d_logits


def _backward(compute: Callable, d_logits: Array, cotangents: tuple):
    del compute
    scaled = cotangents[0] * d_logits.astype(jnp.float32)
    return scaled.astype(d_logits.dtype), None, None


_with_gradient.defvjp(_forward, _backward)


def policy_loss_xla(
    terms: Terms,
    temperature: float,
    logits: Array,
    tokens: Array,
    per_token: dict[str, Array],
    *,
    gradient: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """(loss, log_prob, entropy, d_logits) of logits [N, V], in plain JAX; d_logits [N, V] of the
    summed loss in the dtype of the logits, or None without `gradient`.
    """
    z = logits.astype(jnp.float32) / temperature
    (log_prob, entropy), residuals = forward(z, tokens)
    loss, g_log_prob, g_entropy = terms(log_prob, entropy, per_token)
    if not gradient:
        return loss, log_prob, entropy, None
    dz, _ = backward(residuals, (g_log_prob, g_entropy))
    live = (g_log_prob != 0) | (g_entropy != 0)
    d_logits = jnp.where(live[:, None], dz / temperature, 0).astype(logits.dtype)
    return loss, log_prob, entropy, d_logits


def _form(logits: Array) -> Callable:
    """What computes the loss on this platform; imported here, for Pallas takes a while."""
    if platform() == "tpu":
        from rlcredit.kernels.policy_loss_tpu import policy_loss_tpu

        return policy_loss_tpu
    if on_hopper():
        from rlcredit.kernels import policy_loss_gpu

        if policy_loss_gpu.supported(logits):
            return policy_loss_gpu.policy_loss_gpu
    return policy_loss_xla


def _check(token_loss: TokenLoss, logits: Array, tokens: Array, per_token: dict) -> None:
    for name, array in {"tokens": tokens, **per_token}.items():
        if array.shape != logits.shape[:-1]:
            raise InputError(f"{name} has shape {array.shape}, logits have {logits.shape}")
    number = jax.ShapeDtypeStruct((), jnp.float32)
    try:
        result = jax.eval_shape(token_loss, number, number, **dict.fromkeys(per_token, number))
    except ValueError as error:
        raise InputError(f"the token loss cannot be computed from one token: {error}") from error
    if getattr(result, "shape", None) != ():
        raise InputError(f"the token loss of one token is not a number but {result}")
