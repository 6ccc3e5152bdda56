"""Lanes that work off a queue of episodes, in one jitted loop with a KV cache.

A lane holds one episode at a time. In every turn of the loop each lane writes one position of its
episode's row, a token that it reads or one that the policy draws, and a lane whose episode is over
takes the next one from the queue. What waits in the queue has been read once (its prompt, or the
prefix that it branches from); a lane starts by copying that part of the cache. So the cache follows
the number of lanes, and slot t of a lane's cache always belongs to position t of a row.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.episode import Episode, Position, advance, as_rollout, is_over
from rlcredit.kernels.token_log_prob import log_prob_and_entropy, logits
from rlcredit.keys import chance_key, choice_key
from rlcredit.types import Array, Policy, Price, PyTree, Rollout, Sampling, Task

# Lanes that can be given a new episode in one turn of the loop: one in so many.
_ADMITTED = 8

# Once the queue is empty and so few lanes are busy, the others are dropped from the loop: a second
# loop to compile, for a tail in which most lanes of the first one would idle.
_NARROWER = 4
_WORTH_NARROWING = 32


class Rows(NamedTuple):
    """What E episodes have written; packed, since a lane's write is a scatter each."""

    integer: Array  # [E, T, 3] int32: token, step, turn
    number: Array  # [E, T, 2 + F] float32: reward, log_prob, feedback
    legal: Array | None  # [E, T, V] bool


class Queue(NamedTuple):
    """E episodes that wait, the first `count` of `order` to be worked off."""

    episode: Episode  # leaves [E, ...], where each starts
    rows: Rows  # with what was written before that
    key: Array  # [E]
    problem: Array  # [E] int32 into the problems
    source: Array  # [E] int32 into what was read
    order: Array  # [E] int32
    count: Array  # int32
    # [E, horizon] int32 by the number of tokens chosen before: the token to take where it may be
    # chosen, -1 for one that the policy draws; None: it draws them all
    kept: Array | None = None


class Read(NamedTuple):
    """R rows that were read in one forward pass, S tokens of each."""

    hidden: Array  # [R, S, H]
    cache: PyTree  # leaves [R, heads, S, ...]


class Lanes(NamedTuple):
    """L lanes at work."""

    work: Array  # [L] int32 which episode of the queue; E for none
    episode: Episode  # leaves [L, ...]
    hidden: Array  # [L, H] the state that predicts the next token
    cache: PyTree  # leaves [L, heads, T, ...]
    taken: Array  # int32 episodes taken from the queue
    steps: Array  # int32 lane-steps: one a lane and turn of the loop
    idle: Array  # int32 lane-steps that wrote nothing
    rows: Rows
    end: Array  # [E, 2] int32: the length of each episode, and 1 where it terminated


def work_off(
    policy: Policy,
    params: PyTree,
    task: Task,
    problems: PyTree,
    queue: Queue,
    read: Read,
    *,
    lanes: int | None,
    sampling: Sampling,
) -> Lanes:
    """Run until the queue is empty and every episode over.

    Args:
      problems: leaves [N, ...]; lanes: at most so many episodes at a time, None for all.
    Returns: the lanes at the end, with the rows.
    """
    size, length = queue.rows.integer.shape[:2]
    lanes = min(lanes or size, size)
    first = jax.tree.map(lambda leaf: leaf[:lanes], queue.episode)
    idle = Lanes(
        work=jnp.full(lanes, size, jnp.int32),
        episode=first._replace(terminated=jnp.ones(lanes, bool)),
        hidden=jnp.zeros((lanes, read.hidden.shape[-1]), read.hidden.dtype),
        cache=policy.init_cache(lanes, length),
        taken=jnp.int32(0),
        steps=jnp.int32(0),
        idle=jnp.int32(0),
        rows=queue.rows,
        end=_end(queue.episode),
    )
    few = lanes // _NARROWER if _WORTH_NARROWING <= lanes < size else 0

    def turn(now: Lanes, admitted: int) -> Lanes:
        now = _admit(queue, read, now, admitted) if admitted else now
        own = jax.tree.map(lambda leaf: leaf[queue.problem[_within(now.work, size)]], problems)
        keys = queue.key[_within(now.work, size)]
        kept = None if queue.kept is None else _kept(queue.kept, now)
        now, token = _write(policy, params, task, own, keys, now, sampling, kept)
        slot = now.episode.position - 1
        hidden, cache = policy.extend(params, now.cache, token[:, None], slot)
        return now._replace(hidden=hidden[:, 0], cache=cache)

    def go_on(now: Lanes) -> Array:
        return (now.taken < queue.count) | (_busy(now) > few)

    admitted = -(-lanes // _ADMITTED) if lanes < size else 0
    now = _admit(queue, read, idle, lanes)
    now = jax.lax.while_loop(go_on, functools.partial(turn, admitted=admitted), now)
    if few:
        last = functools.partial(turn, admitted=0)
        now = jax.lax.while_loop(lambda now: _busy(now) > 0, last, _narrow(now, few))
    return now


def _busy(now: Lanes) -> Array:
    return jnp.sum(~jax.vmap(is_over)(now.episode), dtype=jnp.int32)


def _narrow(now: Lanes, few: int) -> Lanes:
    """The lanes that are still busy, at most `few`, and some idle ones if there are fewer."""
    kept = jnp.argsort(jax.vmap(is_over)(now.episode), stable=True)[:few]
    mine = (now.work, now.episode, now.hidden, now.cache)
    work, episode, hidden, cache = jax.tree.map(lambda leaf: leaf[kept], mine)
    return now._replace(work=work, episode=episode, hidden=hidden, cache=cache)


def _admit(queue: Queue, read: Read, now: Lanes, most: int) -> Lanes:
    """Up to `most` idle lanes take the next episodes."""
    lanes, size = now.work.shape[0], queue.order.shape[0]
    free = jnp.nonzero(jax.vmap(is_over)(now.episode), size=most, fill_value=lanes)[0]
    number = now.taken + jnp.arange(most)
    given = (free < lanes) & (number < queue.count)
    lane = jnp.where(given, free, lanes)  # writes to lane L are dropped
    work = queue.order[_within(number, size)]
    source, position = queue.source[work], queue.episode.position[work]
    prefix = read.hidden.shape[1]

    def put(mine: Array, new: Array) -> Array:
        return mine.at[lane].set(new)

    return now._replace(
        work=put(now.work, work),
        episode=jax.tree.map(lambda a, b: put(a, b[work]), now.episode, queue.episode),
        hidden=put(now.hidden, read.hidden[source, position - 1]),
        cache=jax.tree.map(
            lambda a, b: a.at[lane, :, :prefix].set(b[source]), now.cache, read.cache
        ),
        taken=now.taken + jnp.sum(given),
    )


def _kept(kept: Array, now: Lanes) -> Array:
    """[L] what `Queue.kept` holds for the token that each lane chooses next."""
    work = _within(now.work, kept.shape[0])
    chosen = jnp.sum(now.rows.integer[work, :, 1] >= 0, axis=-1)
    return kept[work, _within(chosen, kept.shape[1])]


def _write(policy, params, task, problems, keys, now, sampling, kept) -> tuple[Lanes, Array]:
    """Every lane writes one position; also the token that it wrote."""
    choice, log_prob, legal = _choose(policy, params, task, problems, keys, now, sampling, kept)
    at = now.episode.position
    chance = jax.vmap(chance_key)(keys, at)
    move = jax.vmap(lambda *lane: advance(task, *lane))
    episode, written = move(problems, now.episode, choice, chance)
    idle = jax.vmap(is_over)(now.episode)
    work = jnp.where(idle, now.rows.integer.shape[0], now.work)  # writes to row E are dropped
    rows = jax.tree.map(
        lambda row, new: row.at[work, at].set(new), now.rows, _pack(written, log_prob, legal)
    )
    now = now._replace(
        episode=episode,
        steps=now.steps + idle.shape[0],
        idle=now.idle + jnp.sum(idle, dtype=jnp.int32),
        rows=rows,
        end=now.end.at[work].set(_end(episode)),
    )
    return now, written.token


def _choose(policy, params, task, problems, keys, now, sampling, kept):
    """(token, log_prob, legal) that the policy draws for every lane, or that it is to take."""
    state = now.episode.state
    legal = jax.vmap(task.legal)(problems, state) if sampling.legal else None
    z = logits(now.hidden, policy.head(params), sampling.temperature, legal)
    if sampling.greedy:
        token = jnp.argmax(z, axis=-1)
    else:
        draws = jax.vmap(choice_key)(keys, now.episode.position)
        token = jax.vmap(jax.random.categorical)(draws, z)
    token = token.astype(jnp.int32)
    if kept is not None:
        lane, wanted = jnp.arange(kept.shape[0]), jnp.maximum(kept, 0)
        allowed = True if legal is None else legal[lane, wanted]
        token = jnp.where((kept >= 0) & allowed, wanted, token)
    log_prob, _ = log_prob_and_entropy(z, token)
    return token, log_prob, legal


def prompt_rows(task: Task, prompts: Array, legal: bool) -> Rows:
    """Rows that hold a prompt and nothing else; prompts: [E, prompt_capacity]."""
    shape = (prompts.shape[0], task.prompt_capacity + task.horizon)
    tokens = jnp.pad(prompts, ((0, 0), (0, task.horizon)))
    unwritten = jnp.full(shape, -1, jnp.int32)
    return Rows(
        integer=jnp.stack([tokens, unwritten, unwritten], axis=-1),
        number=jnp.zeros((*shape, 2 + len(task.feedback)), jnp.float32),
        legal=jnp.zeros((*shape, len(task.vocabulary)), bool) if legal else None,
    )


def prefix_rows(rollout: Rollout, source: Array, at: Array) -> Rows:
    """Rows [E, T] with the first `at` [E] positions of row `source` [E] of N * K rows."""
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[source],
        rollout._replace(problem=None, key=None),
    )
    before = jnp.arange(flat.tokens.shape[1])[None] < at[:, None]
    feedback = flat.feedback
    if feedback is not None:
        feedback = jnp.where(before[..., None], feedback, 0)
    position = Position(
        token=jnp.where(before, flat.tokens, 0),
        mask=flat.mask & before,
        reward=jnp.where(before, flat.reward, 0),
        step=jnp.where(before, flat.step, -1),
        turn=jnp.where(before, flat.turn, -1),
        feedback=feedback,
    )
    return _pack(position, flat.log_prob, flat.legal)


def finished(lanes: Lanes, problems: PyTree, keys: Array) -> Rollout:
    """The rows [N * K] of lanes that are done as a Rollout of roots; keys: [N, K]."""
    rows, end = jax.tree.map(
        lambda leaf: leaf.reshape(*keys.shape, *leaf.shape[1:]), (lanes.rows, lanes.end)
    )
    token, step, turn = jnp.moveaxis(rows.integer, -1, 0)
    feedback = rows.number[..., 2:] if rows.number.shape[-1] > 2 else None
    return as_rollout(
        Position(token, step >= 0, rows.number[..., 0], step, turn, feedback),
        log_prob=rows.number[..., 1],
        length=end[..., 0],
        terminated=end[..., 1] == 1,
        legal=rows.legal,
        problems=problems,
        keys=keys,
    )


def spent(lanes: Lanes, chosen: Array, read: Array) -> Price:
    """What the episodes cost; chosen: [N, K, T] bool, read: int32 lengths of what was read."""
    sampled = jnp.sum(chosen, dtype=jnp.int32)
    return Price(
        tokens_sampled=sampled,
        tokens_scored=jnp.sum(read, dtype=jnp.int32),
        environment_steps=sampled,
        lane_steps=lanes.steps,
        idle_lane_steps=lanes.idle,
    )


def _pack(position: Position, log_prob: Array, legal: Array | None) -> Rows:
    """Positions [...] as rows are stored; what was not chosen is empty."""
    mask = position.mask
    number = jnp.stack([position.reward, jnp.where(mask, log_prob, 0)], axis=-1)
    if position.feedback is not None:
        number = jnp.concatenate([number, position.feedback], axis=-1)
    return Rows(
        integer=jnp.stack([position.token, position.step, position.turn], axis=-1),
        number=number,
        legal=None if legal is None else legal & mask[..., None],
    )


def _end(episode: Episode) -> Array:
    return jnp.stack([episode.position, episode.terminated.astype(jnp.int32)], axis=-1)


def _within(index: Array, size: int) -> Array:
    return jnp.minimum(index, size - 1)
