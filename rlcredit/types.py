"""The records that every layer shares, and the conventions of time and mask.

Axes: N problems, K samples of each, T tokens, B = N * K episodes, V vocabulary, H width.

Rows. A row of a rollout starts with its prompt at t = 0 and is never padded on the left; what lies
at t >= length is padding. Nothing is ever decoded and encoded again: what was sampled is trained
on.

Mask. `mask[n, k, t]` is True where the policy chose the token, its end token included. Prompt,
observation and padding are False. What lies under False reaches no advantage, loss, metric or
gradient: select with `jnp.where`, reduce with `rlcredit.masked`, never multiply (0 * inf is nan).

Time. `value[t]` is the value before token t is chosen, that is of the prefix `tokens[:t]`; value
rows hold T + 1 entries, so `value[length]` is the value of what a truncated episode was left with.
`reward[t]` is what choosing token t earned; a reward that arrives later, with an observation,
belongs to the last chosen token before it. Discount and lambda count chosen tokens, never the
others.

Ends. Terminated: the task is over, no bootstrap. Truncated (the length cap included): bootstrap
with `value[length]` where there is a critic, and the reward stands as earned. Both: terminated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Array = jax.Array
PyTree = Any


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that names it."""


class Rollout(NamedTuple):
    """Episodes as they were sampled: N problems, K samples of each, T tokens a row."""

    tokens: Array  # [N, K, T] int32; 0 at t >= length
    mask: Array  # [N, K, T] bool; True where the policy chose the token
    reward: Array  # [N, K, T] float32; 0 off the mask
    log_prob: Array  # [N, K, T] float32 under the sampling policy; 0 off the mask
    step: Array  # [N, K, T] int32 number of the reasoning step; -1 off the mask
    turn: Array  # [N, K, T] int32 number of the turn; -1 off the mask
    length: Array  # [N, K] int32; prompt and everything after it
    terminated: Array  # [N, K] bool
    truncated: Array  # [N, K] bool
    legal: Array | None  # [N, K, T, V] bool, or None where every token was allowed
    problem: PyTree  # leaves [N, ...]
    key: Array  # [N, K] episode keys: with them any prefix can be replayed


class Sampling(NamedTuple):
    """How tokens are drawn; the same for sampling and for every later scoring of the tokens."""

    temperature: float = 1.0
    legal: bool = False  # restrict the policy to the task's legal tokens
    greedy: bool = False  # take the likeliest token; log-probs stay those of the distribution


class Policy(NamedTuple):
    """A network as pure functions of its parameters (plain nested dicts).

    A position of `hidden` has read its own token and predicts the next one.
    """

    init: Callable[[Array], PyTree]  # key -> params
    forward: Callable  # (params, tokens [B, T]) -> (hidden [B, T, H], value [B, T] or None)
    head: Callable[[PyTree], Array]  # params -> [H, V]
    init_cache: Callable  # (batch, slots) -> cache
    extend: Callable  # (params, cache, tokens [B, S], slot, start [B]) -> (hidden, cache)
    vocabulary: int
    has_value: bool


class Transition(NamedTuple):
    """What one chosen token did to an episode."""

    state: PyTree
    reward: Array  # float32
    terminated: Array  # bool
    truncated: Array  # bool
    step_ended: Array  # bool; this token is the last of its reasoning step
    turn_ended: Array  # bool; this token is the last of its turn


class Task(NamedTuple):
    """A token environment as pure functions of one problem; batch them with `jax.vmap`.

    A state is the fold of `step` over the chosen tokens, so any prefix is restored by a replay.
    `held_out`, `demonstrate` and `text` run on the host.
    """

    name: str
    vocabulary: tuple[str, ...]  # token 0 is padding
    prompt_capacity: int
    horizon: int  # most tokens after the prompt; longer episodes are truncated
    draw: Callable  # key -> a training problem
    prompt: Callable  # problem -> (tokens [prompt_capacity] int32, length int32)
    start: Callable  # problem -> state
    step: Callable  # (problem, state, token, key) -> Transition
    legal: Callable  # (problem, state) -> [V] bool
    fingerprint: Callable  # (problem, state) -> uint32; equal for histories in the same state
    held_out: Callable  # (count, seed) -> problems, leaves [count, ...]; never drawn by `draw`
    demonstrate: Callable  # (problems, rng, wrong, skipped) -> list of token lists
    text: Callable  # tokens -> str


class TrainState(NamedTuple):
    """Everything that a training step reads."""

    params: PyTree
    ref_params: PyTree  # the policy this stage started from; its own arrays, never aliases
    opt_state: PyTree
    key: Array
    step: Array  # int32


class Price(NamedTuple):
    """What measuring something cost."""

    tokens_sampled: Array | int = 0
    tokens_scored: Array | int = 0  # by a forward pass
    environment_steps: Array | int = 0

    def __add__(self, other: Price) -> Price:
        return Price(*(mine + others for mine, others in zip(self, other, strict=True)))
