"""A chain of decisions in filler whose true credit is known: `417A?>.A,B.` chooses A, then B.

After the prompt come, `decisions` times, `filler` filler tokens and one decision, then `delay` more
filler tokens; the last token ends the episode, whose length is thus fixed. At a decision the legal
tokens are the branches, one of which is good; anywhere else they are two fillers, which change
nothing. An illegal token counts as a wrong branch at a decision and as a filler elsewhere.

The good branch of each decision is drawn for each problem. The prompt is a serial number, the good
branch of each decision (`?` instead, with chance `alias`), and `>`. The success chance is

    success = base + sum of gap[i] over the decisions i that were not lost

where decision i is lost by a wrong branch; in a recoverable chain only if decision i + 1 is wrong
too, or i is the last. The last token earns `success`; with `chance`, it earns 1 with this chance.

`bifurcation_credit` has values, advantages and shares of the variance in closed form. The presets
(`bifurcation_chain.PRESETS`) are worked examples; q is the chance that the policy takes the good
branch of the decision in question.

- insight: the third of four decisions has 8 branches and the whole effect. Under the uniform policy
  the value is 0.2, flat, until it jumps to 0.9 or falls to 0.1; in general it is 0.1 + 0.8 q first.
- two_approaches: a single choice. Approach A is the wrong branch and succeeds in 2 % of cases, B is
  the good one and succeeds in 98 %. The policy in mind takes B in 2 % of cases, q = 0.02: its value
  is 0.0392, B is worth +0.9408 and A -0.0192. The task fixes the chances of success alone.
- recovery: the good branch succeeds; after a wrong one a second decision is left, whose good branch
  succeeds and the others fail. After a good first one the second changes nothing. Under the uniform
  policy the value is 0.75; then 1, or 0.5 and after it 1 or 0.
- delayed_effect: the first decision sets the success chance, 0.8 or 0.2; three more change nothing.

Held-out problems have serial numbers that are multiples of `HOLD_OUT_EVERY`, training problems have
the others. Nothing else depends on the serial number.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit.tasks.bifurcation_chain import (
    SERIAL_DIGITS,
    Chain,
    numbers,
    prompt_size,
    repairable,
    response_size,
    settle,
)
from rlcredit.types import Array, InputError, Task, Transition

CHARACTERS = ("_", *"0123456789", "?", ">", ".", ",", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGIT, UNKNOWN, PROMPT_END, FILLER, BRANCH = (CHARACTERS.index(c) for c in "0?>.A")
FILLERS = (FILLER, FILLER + 1)
SERIALS = 10**SERIAL_DIGITS
HOLD_OUT_EVERY = 5


class Problem(NamedTuple):
    """Which branches are good, and which of them the prompt tells."""

    serial: Array  # int32 in [0, SERIALS)
    good: Array  # [decisions] int32 in [0, branches)
    hinted: Array  # [decisions] bool


class State(NamedTuple):
    """What the choices so far amount to."""

    position: Array  # int32 tokens chosen
    secured: Array  # float32 success chance that no later choice can take away
    pending: Array  # float32 gap of the decision before, which a good next one would still secure


def bifurcation(
    *,
    preset: str = "",
    gaps: str | tuple[float, ...] = "0.4,0.4",
    base: float = 0.1,
    branches: int = 2,
    recoverable: bool = False,
    filler: int = 1,
    delay: int = 1,
    alias: float = 0.0,
    chance: bool = False,
) -> Task:
    """The task of one chain.

    Args:
      preset: of `PRESETS`, or "" for none; it fixes gaps, base, branches and recoverable, where
        their defaults give way and another value is refused.
      gaps: success chance that hangs on each decision, one number a decision, as `0.4,0.4` too.
      base: success chance when all is lost.
      branches: tokens to choose from at a decision; recoverable: a good decision repairs a wrong
        one just before it.
      filler: tokens before each decision; delay: tokens after the last.
      alias: chance that the prompt does not tell a good branch; chance: the reward is 0 or 1.
    Raises: InputError naming a setting that cannot be used.
    """
    chances = numbers(gaps) if isinstance(gaps, str) else tuple(gaps)
    given = Chain(chances, base, branches, recoverable, filler, delay, alias, chance)
    chain = settle(given, preset)
    return Task(
        name="bifurcation",
        vocabulary=CHARACTERS[: BRANCH + chain.branches],
        prompt_capacity=prompt_size(chain),
        horizon=response_size(chain),
        draw=lambda key: _draw(chain, key),
        prompt=_prompt,
        start=lambda problem: State(jnp.int32(0), jnp.float32(chain.base), jnp.float32(0)),
        step=lambda *args: _step(chain, *args),
        legal=lambda problem, state: _legal(chain, state),
        fingerprint=_fingerprint,
        held_out=lambda count, seed: _held_out(chain, count, seed),
        text=text,
        expert=lambda problem, state: _expert(chain, problem, state),
        potential=lambda problem, state: _potential(chain, state),
        outcomes=(lambda *args: _outcomes(chain, *args)) if chain.chance else None,
    )


def text(tokens: Array) -> str:
    """The characters of a row without its padding."""
    return "".join(CHARACTERS[int(token)] for token in tokens if int(token))


def _draw(chain: Chain, key: Array) -> Problem:
    serial_key, good_key, alias_key = jax.random.split(key, 3)
    rank = jax.random.randint(serial_key, (), 0, SERIALS - SERIALS // HOLD_OUT_EVERY)
    block, offset = jnp.divmod(rank, HOLD_OUT_EVERY - 1)
    shape = (len(chain.gaps),)
    return Problem(
        serial=block * HOLD_OUT_EVERY + 1 + offset,
        good=jax.random.randint(good_key, shape, 0, chain.branches),
        hinted=~jax.random.bernoulli(alias_key, chain.alias, shape),
    )


def _held_out(chain: Chain, count: int, seed: int) -> Problem:
    """`count` held-out problems, no two with the same serial number and good branches."""
    decisions = len(chain.gaps)
    paths = chain.branches**decisions
    total = SERIALS // HOLD_OUT_EVERY * paths
    if not 0 < count <= total:
        raise InputError(f"{count} held-out problems asked for, this bifurcation has 1 to {total}")
    rng = random.Random(seed)
    indices = np.asarray(rng.sample(range(total), count))
    serial, path = np.divmod(indices, paths)
    good = path[:, None] // chain.branches ** np.arange(decisions)[None] % chain.branches
    hinted = [[rng.random() >= chain.alias for _ in range(decisions)] for _ in range(count)]
    return Problem(
        jnp.asarray(serial * HOLD_OUT_EVERY, jnp.int32),
        jnp.asarray(good, jnp.int32),
        jnp.asarray(hinted),
    )


def _prompt(problem: Problem) -> tuple[Array, Array]:
    digits = problem.serial // 10 ** jnp.arange(SERIAL_DIGITS - 1, -1, -1) % 10
    hints = jnp.where(problem.hinted, BRANCH + problem.good, UNKNOWN)
    tokens = jnp.concatenate([DIGIT + digits, hints, jnp.asarray([PROMPT_END])])
    return tokens.astype(jnp.int32), jnp.int32(tokens.size)


def _step(chain: Chain, problem: Problem, state: State, token: Array, key: Array) -> Transition:
    expected = _expected(chain, problem, state, token)
    if not chain.chance:
        return expected
    return expected._replace(reward=jax.random.bernoulli(key, expected.reward).astype(jnp.float32))


def _outcomes(chain: Chain, problem: Problem, state: State, token: Array):
    """(chances, transitions): the draw at the end lost and won; before it only the first."""
    expected = _expected(chain, problem, state, token)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), expected)
    won = jnp.arange(2, dtype=jnp.float32)
    chances = jnp.stack([1 - expected.reward, expected.reward])
    return chances, two._replace(reward=won)


def _expected(chain: Chain, problem: Problem, state: State, token: Array) -> Transition:
    """What a token does; the reward is the chance of success where it is still to be drawn."""
    decision, deciding = _decision(chain, state)
    good = deciding & (token == BRANCH + problem.good[decision])
    gap = jnp.asarray(chain.gaps, jnp.float32)[decision]
    left = jnp.asarray(repairable(chain), jnp.float32)[decision]
    after = State(
        position=state.position + 1,
        secured=state.secured + jnp.where(good, gap + state.pending, 0),
        pending=jnp.where(deciding, jnp.where(good, 0, left), state.pending),
    )
    success = jnp.minimum(after.secured, 1)  # the sum may be rounded up
    ended = after.position == response_size(chain)
    return Transition(
        state=after,
        reward=jnp.where(ended, success, 0).astype(jnp.float32),
        terminated=ended,
        truncated=jnp.bool_(False),
        step_ended=deciding | ended,
        turn_ended=ended,
    )


def _decision(chain: Chain, state: State) -> tuple[Array, Array]:
    """int32 the decision that comes next, bool whether it is here; after the last, that and not."""
    decision, place = jnp.divmod(state.position, chain.filler + 1)
    deciding = (place == chain.filler) & (decision < len(chain.gaps))
    return jnp.minimum(decision, len(chain.gaps) - 1), deciding


def _legal(chain: Chain, state: State) -> Array:
    token = jnp.arange(BRANCH + chain.branches)
    filler = (token >= FILLERS[0]) & (token <= FILLERS[-1])
    return jnp.where(_decision(chain, state)[1], token >= BRANCH, filler)


def _expert(chain: Chain, problem: Problem, state: State) -> Array:
    """The good branch at a decision, the first filler elsewhere."""
    decision, deciding = _decision(chain, state)
    return jnp.where(deciding, BRANCH + problem.good[decision], FILLER).astype(jnp.int32)


def _potential(chain: Chain, state: State) -> Array:
    """The success chance if all later decisions are good."""
    remaining = np.append(np.cumsum(chain.gaps[::-1])[::-1], 0)  # [decisions + 1]
    passed = jnp.minimum(state.position // (chain.filler + 1), len(chain.gaps))
    return state.secured + state.pending + jnp.asarray(remaining, jnp.float32)[passed]


def _fingerprint(problem: Problem, state: State) -> Array:
    """Problem, position, and in millionths what is secured and pending; all that is ahead of it."""
    chances = jnp.round(1e6 * jnp.stack([state.secured, state.pending])).astype(jnp.int32)
    parts = [problem.serial, *(2 * problem.good + problem.hinted), state.position, *chances]
    mixed = jnp.uint32(2166136261)
    for part in parts:
        mixed = (mixed ^ part.astype(jnp.uint32)) * jnp.uint32(16777619)
        mixed = mixed ^ (mixed >> 15)
    return mixed
