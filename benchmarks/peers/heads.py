"""The fused head as tokamax, optax, TRL and Liger offer it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from contest import Way, absent, distance
from objectives import (
    CLIP,
    KL,
    TEMPERATURE,
    TOKENS_A_ROW,
    Case,
    objective,
    way_of,
    with_gradient,
    without_gradient,
)

from peers.threads import torch_ways


def heads(case: Case, mode: str, truth: dict[bool, tuple]) -> list[Way]:
    """Every peer; truth: what is right with the entropy, and without it."""
    prepare = without_gradient if mode == "forward" else with_gradient
    ways = []
    for package, scores in (("tokamax", _tokamax), ("optax", _optax)):
        gone = absent(package, (package,))
        ways.append(gone or way_of(package, prepare(scores()), case, truth[False], package))
    ways += _trl(case, mode, truth[True])
    if mode == "forward+backward":
        ways += _liger(case, truth[False])
    return ways


def _tokamax() -> Callable:
    import tokamax

    def scores(hidden, head, tokens):
        loss = tokamax.linear_softmax_cross_entropy_loss(
            (hidden / TEMPERATURE).astype(hidden.dtype),
            tokens,
            head,
            reduction="none",
            implementation="chunked_xla",
        )
        return -loss.astype(jnp.float32), None

    return scores


def _optax() -> Callable:
    import optax

    def scores(hidden, head, tokens):
        logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32) / TEMPERATURE
        return -optax.softmax_cross_entropy_with_integer_labels(logits, tokens), None

    return scores


def _trl(case: Case, mode: str, truth: tuple) -> list[Way]:
    packages = ("torch", "trl")
    if gone := absent("trl", packages):
        return [gone]
    import torch
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    hidden, head, tokens, *others = _as_torch(case)

    def scores():
        logits = hidden @ head / TEMPERATURE
        return selective_log_softmax(logits, tokens), entropy_from_logits(logits)

    def forward():
        with torch.no_grad():
            return scores()

    def backward():
        loss = objective(torch, *scores(), *others)
        return torch.autograd.grad(loss, (hidden, head))

    program = forward if mode == "forward" else backward
    check = functools.partial(_distance, truth=truth)
    return torch_ways("trl", program, ("trl", "transformers"), check)


def _liger(case: Case, truth: tuple) -> list[Way]:
    """Its weight is [V, H]; `bnpo` is the mean over all tokens."""
    if gone := absent("liger", ("torch", "liger-kernel")):
        return [gone]
    import torch
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    hidden, head, *others = _as_torch(case)
    rows = [a.reshape(-1, TOKENS_A_ROW) for a in others]
    tokens, old_log_prob, ref_log_prob, advantage = rows
    states = hidden.detach().reshape(len(tokens), TOKENS_A_ROW, -1).requires_grad_()
    weight = head.detach().T.contiguous().requires_grad_()
    loss_of = LigerFusedLinearGRPOLoss(
        beta=KL,
        compiled=False,
        epsilon_low=CLIP,
        epsilon_high=CLIP,
        loss_type="bnpo",
        temperature=TEMPERATURE,
    )

    def backward():
        loss, _ = loss_of(
            states,
            weight,
            tokens,
            torch.ones_like(tokens),
            advantage[:, 0],
            ref_per_token_logps=ref_log_prob,
            old_per_token_logps=old_log_prob,
        )
        d_states, d_weight = torch.autograd.grad(loss, (states, weight))
        return d_states.reshape(hidden.shape), d_weight.T

    return torch_ways(
        "liger", backward, ("liger-kernel",), functools.partial(_distance, truth=truth)
    )


def _as_torch(case: Case) -> list:
    import torch

    wide = jax.tree.map(lambda leaf: np.array(leaf, _plain(leaf)), case)
    hidden, head, tokens, *others = (torch.from_numpy(a) for a in wide)
    if case.hidden.dtype == jnp.bfloat16:
        hidden, head = hidden.bfloat16(), head.bfloat16()
    return [hidden.requires_grad_(), head.requires_grad_(), tokens.long(), *others]


def _plain(leaf: jax.Array) -> np.dtype:
    return np.dtype(np.float32) if leaf.dtype == jnp.bfloat16 else leaf.dtype


def _distance(results: tuple, truth: tuple) -> float:
    return distance([a.detach().float().numpy() for a in results], truth)
