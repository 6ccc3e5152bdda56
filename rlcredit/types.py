"""The records that every layer shares, and the conventions of time and mask.

Axes: N problems, K samples of each, T tokens, B = N * K episodes, V vocabulary, H width.

Rows. A row of a rollout starts with its prompt at t = 0 and is never padded on the left; what lies
at t >= length is padding. Observations stand in the row where the policy read them. Nothing is ever
decoded and encoded again: what was sampled is trained on.

Mask. `mask[n, k, t]` is True where the policy chose the token, its end token included. Prompt,
observation and padding are False. What lies under False reaches no advantage, loss, metric or
gradient: select with `jnp.where`, reduce with `rlcredit.masked`, never multiply (0 * inf is nan).

Time. `value[t]` is the value before token t is chosen, that is of the prefix `tokens[:t]`; value
rows hold T + 1 entries, so `value[length]` is the value of what a truncated episode was left with.
`reward[t]` is what choosing token t earned; a reward that arrives later, with an observation,
belongs to the last chosen token before it. Discount and lambda count chosen tokens, never the
others.

Ends. Terminated: the task is over, no bootstrap. Truncated (the length cap included): bootstrap
with `value[length]` where there is a critic, and the reward stands as earned. Both: terminated. An
observation that comes with the end of a terminated episode is not written: nobody reads it.

Trees. Rows of a problem may share a prefix: row k is a copy of row `parent[k]` before position
`branch_at[k]` and its own from there on. A root is its own parent and branches at 0. The mask is
True on the shared tokens of every row, they were chosen; learning and prices count them once
(`owned`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

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
    feedback: Array | None  # [N, K, T, F] float32 beside the reward; None where the task has none
    parent: Array  # [N, K] int32 row of the same problem whose prefix this one continues
    branch_at: Array  # [N, K] int32 where this row leaves its parent; 0 for a root
    problem: PyTree  # leaves [N, ...]
    key: Array  # [N, K] episode keys: with them any prefix can be replayed


def owned(rollout: Rollout) -> Array:
    """[N, K, T] bool: the chosen tokens that are a row's own, not copied from its parent."""
    position = jnp.arange(rollout.mask.shape[-1])[None, None]
    return rollout.mask & (position >= rollout.branch_at[..., None])


class Sampling(NamedTuple):
    """How tokens are drawn; the same for sampling and for every later scoring of the tokens."""

    temperature: float = 1.0
    legal: bool = False  # restrict the policy to the task's legal tokens
    greedy: bool = False  # take the likeliest token; log-probs stay those of the distribution


class Layout(NamedTuple):
    """Where and how many at a time episodes are worked off; changes no result."""

    lanes: int | None = None  # episodes in progress on each device; None: all of them
    mesh: Mesh | None = None  # devices to spread the problems over; None: leave it to the compiler


class Policy(NamedTuple):
    """A network as pure functions of its parameters (plain nested dicts).

    A position of `hidden` has read its own token and predicts the next one. Where `forward` is
    given `segment`, it sees only earlier slots of the same number.
    """

    init: Callable[[Array], PyTree]  # key -> params
    # (params, tokens [B, T], segment [B, T] int32 or None) -> (hidden [B, T, H], value [B, T] or
    # None); only packed rows need a segment, a policy without it can be trained unpacked
    forward: Callable
    head: Callable[[PyTree], Array]  # params -> [H, V]
    init_cache: Callable  # (batch, slots) -> cache, leaves [batch, heads, slots, ...]
    extend: Callable  # (params, cache or None, tokens [B, S], slot [B]) -> (hidden, cache)
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
    observation: Array | None = None  # [observation_capacity] int32, then 0s; None: never any
    feedback: Array | None = None  # [F] float32, one number a channel of `Task.feedback`


class Task(NamedTuple):
    """A token environment as pure functions of one problem; batch them with `jax.vmap`.

    A state is the fold of `step` over the chosen tokens, so any prefix is restored by a replay.
    `step` gets a key that depends on episode and position (`keys.chance_key`). `held_out`,
    `demonstrate` and `text` run on the host. A task has an `expert`, or a teacher on the host that
    writes whole solutions, `demonstrate`.
    """

    name: str
    vocabulary: tuple[str, ...]  # token 0 is padding
    prompt_capacity: int
    horizon: int  # most tokens after the prompt, observations included; see `rollout.sample`
    draw: Callable  # key -> a training problem
    prompt: Callable  # problem -> (tokens [prompt_capacity] int32, length int32)
    start: Callable  # problem -> state
    step: Callable  # (problem, state, token, key) -> Transition
    legal: Callable  # (problem, state) -> [V] bool
    fingerprint: Callable  # (problem, state) -> uint32; equal for histories in the same state
    held_out: Callable  # (count, seed) -> problems, leaves [count, ...]; never drawn by `draw`
    text: Callable  # tokens -> str
    observation_capacity: int = 0  # most tokens of one observation
    feedback: tuple[str, ...] = ()  # names of the channels recorded beside the reward
    expert: Callable | None = None  # (problem, state) -> the best token, int32
    demonstrate: Callable | None = None  # (problems, rng, wrong, skipped) -> lists of tokens
    potential: Callable | None = None  # (problem, state) -> float32, higher is nearer to success
    # (problem, state, state after) -> float32 in [-1, 1]: is what was done in between right?
    checker: Callable | None = None
    answer: Callable | None = None  # problem -> (tokens [A], length): how an episode ought to end
    # (problem, state, token) -> (chances [C], Transition with leaves [C, ...]): all that `step` may
    # draw; None: `step` does not look at its key
    outcomes: Callable | None = None


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
    tokens_scored: Array | int = 0  # by a forward pass, prompts that were read included
    environment_steps: Array | int = 0
    lane_steps: Array | int = 0  # turns of the decoding loop, times its lanes
    idle_lane_steps: Array | int = 0  # those that wrote no token

    def __add__(self, other: Price) -> Price:
        return Price(*(mine + others for mine, others in zip(self, other, strict=True)))
