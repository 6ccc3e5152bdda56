"""A rule's credit for one episode, given or averaged over the episodes that it is sampled with.

The expected gradient of a rule is a sum over single episodes, exactly, of their probability and
their mean credit; the mean is over their *company*, the other episodes of the batch. Company is
gone through in full where there is little of it, otherwise drawn; a rule that looks at one episode
alone needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import credit
from rlcredit.evidence import EVIDENCE, Probing
from rlcredit.exact.tree import present
from rlcredit.losses.reducers import Reducer
from rlcredit.oracle import batch
from rlcredit.oracle.batch import Batch, Growth, rollout_of
from rlcredit.oracle.ground import Ground, sum_by_edge
from rlcredit.oracle.redraw import REDRAWN, Source
from rlcredit.types import Array, Rollout, owned

MOST_COMPANIES = 2**12
_TRIED = 16  # batches that show what a rule compares
# Evidence that says how the rows of a batch stand to each other; it needs no network.
OF_BATCH = ("node", "edge", "node_value")


class Method(NamedTuple):
    """What is judged."""

    rule: credit.Bound
    reduce: Reducer | None  # how the loss weighs tokens; None: all by 1, as the true gradient
    growth: Growth  # of trees; without stages the episodes are drawn apart
    probing: Probing


class Scene(NamedTuple):
    """Where it is judged; arrays only."""

    ground: Ground  # without context, scores and gradient
    evidence: Mapping[str, Array]  # about every row: leaves [N, M, ...], or [N] of a problem
    ref_probability: Array  # [N, M] of the rows under the reference
    scale: Array  # float32 that makes the mean weight of a token 1


class Company(NamedTuple):
    """J ways to fill a batch of N problems and K samples."""

    batch: Batch  # leaves [J, ...]
    weight: Array  # [J, N] float32; sums to 1 over J


def drawn(ground: Ground, samples: int, count: int, key: Array, growth: Growth) -> Company:
    """Batches as sampling gives them."""
    batches = batch.drawn(ground.tree, ground.truth, samples, count, key, growth)
    return Company(batches, jnp.full(batches.row.shape[:2], 1 / count))


def every(ground: Ground, samples: int) -> Company | None:
    """Every company of `samples` - 1 episodes of the same problem; None where these are too many.

    The same for all problems at a time, each with the weight that it has in each.
    """
    rows = ground.truth.probability.shape[1]
    if rows ** (samples - 1) > MOST_COMPANIES:
        return None
    others = np.indices((rows,) * (samples - 1)).reshape(samples - 1, rows ** (samples - 1)).T
    weight = jnp.prod(ground.truth.probability[:, others], axis=-1).T
    row = np.pad(others, ((0, 0), (1, 0)))  # the first sample is varied
    last = np.asarray(ground.tree.count)[None, :, None] - 1  # beyond it there is no episode
    row = np.minimum(row[:, None], last)
    return Company(batch.apart(jnp.asarray(row, jnp.int32), jax.random.key(0)), weight)


def sampled(method: Method, scene: Scene, batches: Batch) -> tuple[Array, Array, Array]:
    """(credit, credit times the weight of the loss, both [J, N, K, T], weight [J, N, E]) of J
    batches.

    The gradient of a batch is the sum of its weights times the scores of the edges, a mean over
    problems (`ground.gradients`).
    """

    def one(own: Batch) -> tuple[Array, Array, Array]:
        raw, weighted = _assigned(method, scene, own)
        edge = batch.taken(scene.ground.edge, own.row)
        of_edges = sum_by_edge(edge, weighted, scene.ground.visit.shape[1])
        return raw, weighted, of_edges / own.row.shape[1]

    return jax.lax.map(one, batches)


def expected_weights(method: Method, scene: Scene, batches: Batch, *, across: bool) -> Array:
    """[J, N, E] the same weights in expectation over one sample, in each company; of rows drawn
    apart.

    Args: across: the rule compares problems, so only one of them may be varied at a time.
    """
    ground = scene.ground
    problems, rows = ground.truth.probability.shape

    def first(own: Batch, row: Array) -> Array:
        return _assigned(method, scene, own._replace(row=row))[1][:, 0]

    def as_each(own: Batch) -> Array:
        """[M, N, T] of the first sample, as each row, of all problems at once."""
        last = ground.tree.count - 1  # an empty row would be one episode less for the others
        of_row = jax.vmap(lambda m: first(own, own.row.at[:, 0].set(jnp.minimum(m, last))))
        return of_row(jnp.arange(rows, dtype=jnp.int32))

    def as_each_alone(own: Batch) -> Array:
        def of_problem(n: Array) -> Array:
            of_row = jax.vmap(lambda m: first(own, own.row.at[n, 0].set(m))[n])
            return of_row(jnp.arange(rows))

        return jnp.swapaxes(jax.lax.map(of_problem, jnp.arange(problems)), 0, 1)

    def one(own: Batch) -> Array:
        weighted = jnp.swapaxes(as_each_alone(own) if across else as_each(own), 0, 1)
        likely = ground.truth.probability[..., None] * weighted
        likely = jnp.where(present(ground.tree)[..., None], likely, 0)
        return sum_by_edge(ground.edge, likely, ground.visit.shape[1])

    return jax.lax.map(one, batches)


def mean_scale(method: Method, ground: Ground, batches: Batch) -> Array:
    """float32 by which the weights of J batches are 1 in the mean over their tokens.

    The true gradient weighs every token by 1; so scaled, what is left is where weights differ: by a
    reducer, and in a tree by learning from a token that rows share once.
    """
    if method.reduce is None and not method.growth.branching:
        return jnp.float32(1)
    rollouts = jax.lax.map(lambda own: rollout_of(ground.tree, ground.truth, own), batches)
    weights = jax.vmap(lambda rollout: _weights(method, rollout))(rollouts)
    return jnp.sum(rollouts.mask) / jnp.sum(weights)


def compares(
    credit_of: Callable[[Ground, Batch], Array], ground: Ground, samples: int, key: Array
) -> tuple[bool, bool]:
    """(samples, problems): does credit change with the other samples, and with other problems?

    Seen on drawn batches with random rewards, not declared.

    Args: credit_of: (ground, batches) -> [J, N, K, T], times the weight of the loss: a reducer may
      compare too.
    """
    batch_key, other_key, reward_key = jax.random.split(key, 3)
    own, other = (drawn(ground, samples, _TRIED, k, Growth()).batch for k in (batch_key, other_key))
    rollout = ground.tree.rollout
    reward = jnp.where(rollout.mask, jax.random.normal(reward_key, rollout.reward.shape), 0)
    noisy = ground._replace(tree=ground.tree._replace(rollout=rollout._replace(reward=reward)))
    base = credit_of(noisy, own)[:, 0, 0]

    def differs(row: Array) -> bool:
        return bool(jnp.any(credit_of(noisy, own._replace(row=row))[:, 0, 0] != base))

    of_samples = differs(own.row.at[:, 0, 1:].set(other.row[:, 0, 1:]))
    return of_samples, differs(other.row.at[:, 0].set(own.row[:, 0]))


def is_redrawn(names: tuple[str, ...]) -> bool:
    """Whether there is evidence among these that sampling gives anew with every batch."""
    return any(name in REDRAWN for name in names)


def _assigned(method: Method, scene: Scene, own: Batch) -> tuple[Array, Array]:
    """(credit, credit times the weight of the loss), both [N, K, T], of one batch."""
    rollout = rollout_of(scene.ground.tree, scene.ground.truth, own)
    raw = credit.assign(method.rule, rollout, _evidence(method, scene, own, rollout)).advantage
    if method.reduce is None and not method.growth.branching:
        return raw, raw
    return raw, raw * scene.scale * _weights(method, rollout)


def _weights(method: Method, rollout: Rollout) -> Array:
    """[N, K, T] of the loss: a token that rows share is learned from once."""
    mask = owned(rollout)
    return mask.astype(jnp.float32) if method.reduce is None else method.reduce(mask)


def _evidence(method: Method, scene: Scene, own: Batch, rollout: Rollout) -> dict[str, Array]:
    """What the rule asks for about one batch."""
    evidence = batch.evidence_of(scene.evidence, own.row)
    truth = scene.ground.truth
    source = Source(scene.ground.tree, truth.probability, scene.ref_probability, truth.total)
    for name in method.rule.evidence:
        if name in OF_BATCH:
            evidence[name] = EVIDENCE[name](None, rollout, None)[0]
        elif name in REDRAWN:
            evidence[name] = REDRAWN[name](source, rollout, evidence["unit"], own, method.probing)
    return evidence
