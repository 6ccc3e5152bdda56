"""A rule's credit for one episode, given or averaged over the episodes that it is sampled with.

The expected gradient of a rule is a sum over single episodes, exactly, of their probability and
their mean credit; the mean is over their *company*, the other episodes of the batch. Company is
gone through in full where there is little of it, otherwise drawn; a rule that looks at one episode
alone needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import credit
from rlcredit.exact.tree import present
from rlcredit.losses.reducers import Reducer
from rlcredit.oracle.ground import Ground, sum_by_edge
from rlcredit.types import Array, Rollout

MOST_COMPANIES = 2**12
_TRIED = 16  # batches that show what a rule compares


class Method(NamedTuple):
    """What is judged."""

    rule: credit.Bound
    reduce: Reducer | None  # how the loss weighs tokens; None: all by 1, as the true gradient


class Scene(NamedTuple):
    """Where it is judged; arrays only."""

    ground: Ground  # without context, scores and gradient
    evidence: Mapping[str, Array]  # about every row: leaves [N, M, ...], or [N] of a problem
    scale: Array  # float32 that makes the mean weight of a token 1


class Company(NamedTuple):
    """J ways to fill a batch of N problems and K samples."""

    row: Array  # [J, N, K] int32 rows of the trees
    weight: Array  # [J, N] float32; sums to 1 over J


def drawn(ground: Ground, samples: int, count: int, key: Array) -> Company:
    """Batches as sampling gives them."""
    problems = ground.truth.probability.shape[0]
    row = _draw(ground.truth.probability, key, (count, problems, samples))
    return Company(row, jnp.full((count, problems), 1 / count))


@functools.partial(jax.jit, static_argnames="shape")
def _draw(probability: Array, key: Array, shape: tuple[int, int, int]) -> Array:
    """[J, N, K] rows, each as likely as it is, by the inverse of the distribution function."""
    below = jnp.cumsum(probability, axis=1)
    level = jax.random.uniform(key, shape) * below[None, :, -1:]
    find = jax.vmap(lambda edges, level: jnp.searchsorted(edges, level, side="right"), (0, 1), 1)
    return jnp.minimum(find(below, level), probability.shape[1] - 1).astype(jnp.int32)


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
    return Company(jnp.asarray(row, jnp.int32), weight)


def sampled(method: Method, scene: Scene, row: Array) -> tuple[Array, Array, Array]:
    """(credit, credit times the weight of the loss, both [J, N, K, T], weight [J, N, E]) of batches
    [J, N, K] of rows.

    The gradient of a batch is the sum of its weights times the scores of the edges, a mean over
    problems (`ground.gradients`).
    """

    def one(row: Array) -> tuple[Array, Array, Array]:
        raw, weighted = _assigned(method, scene, row)
        edge = _taken(scene.ground.edge, row)
        of_edges = sum_by_edge(edge, weighted, scene.ground.visit.shape[1])
        return raw, weighted, of_edges / row.shape[1]

    return jax.lax.map(one, row)


def expected_weights(method: Method, scene: Scene, row: Array, *, across: bool) -> Array:
    """[J, N, E] the same weights in expectation over one sample, in each company [J, N, K].

    Args: across: the rule compares problems, so only one of them may be varied at a time.
    """
    ground = scene.ground
    problems, rows = ground.truth.probability.shape

    def first(row: Array) -> Array:
        return _assigned(method, scene, row)[1][:, 0]

    def as_each(row: Array) -> Array:
        """[M, N, T] of the first sample, as each row, of all problems at once."""
        last = ground.tree.count - 1  # an empty row would be one episode less for the others
        of_row = jax.vmap(lambda m: first(row.at[:, 0].set(jnp.minimum(m, last))))
        return of_row(jnp.arange(rows, dtype=jnp.int32))

    def as_each_alone(row: Array) -> Array:
        def of_problem(n: Array) -> Array:
            return jax.vmap(lambda m: first(row.at[n, 0].set(m))[n])(jnp.arange(rows))

        return jnp.swapaxes(jax.lax.map(of_problem, jnp.arange(problems)), 0, 1)

    def one(row: Array) -> Array:
        weighted = jnp.swapaxes(as_each_alone(row) if across else as_each(row), 0, 1)
        likely = ground.truth.probability[..., None] * weighted
        likely = jnp.where(present(ground.tree)[..., None], likely, 0)
        return sum_by_edge(ground.edge, likely, ground.visit.shape[1])

    return jax.lax.map(one, row)


def mean_scale(reduce: Reducer | None, ground: Ground, row: Array) -> Array:
    """float32 by which a reducer's weights are 1 in the mean over the tokens of batches [J, N, K].

    The true gradient weighs every token by 1; so scaled, what is left is where weights differ.
    """
    if reduce is None:
        return jnp.float32(1)
    masks = jax.vmap(lambda row: _taken(ground.tree.rollout.mask, row))(row)
    return jnp.sum(masks) / jnp.sum(jax.vmap(reduce)(masks))


def compares(
    credit_of: Callable[[Ground, Array], Array], ground: Ground, samples: int, key: Array
) -> tuple[bool, bool]:
    """(samples, problems): does credit change with the other samples, and with other problems?

    Seen on drawn batches with random rewards, not declared.

    Args: credit_of: (ground, row [J, N, K]) -> [J, N, K, T], times the weight of the loss: a
      reducer may compare too.
    """
    batch_key, other_key, reward_key = jax.random.split(key, 3)
    batch, other = (drawn(ground, samples, _TRIED, k).row for k in (batch_key, other_key))
    rollout = ground.tree.rollout
    reward = jnp.where(rollout.mask, jax.random.normal(reward_key, rollout.reward.shape), 0)
    noisy = ground._replace(tree=ground.tree._replace(rollout=rollout._replace(reward=reward)))
    base = credit_of(noisy, batch)[:, 0, 0]

    def differs(row: Array) -> bool:
        return bool(jnp.any(credit_of(noisy, row)[:, 0, 0] != base))

    of_samples = differs(batch.at[:, 0, 1:].set(other[:, 0, 1:]))
    return of_samples, differs(other.at[:, 0].set(batch[:, 0]))


def batch_of(rollout: Rollout, evidence: Mapping[str, Array], row: Array):
    """(rollout, evidence) of the rows [N, K] out of [N, M]."""
    parent = jnp.broadcast_to(jnp.arange(row.shape[1], dtype=jnp.int32)[None], row.shape)
    taken = jax.tree.map(lambda leaf: _taken(leaf, row), rollout._replace(problem=None))
    of_rows = {
        name: _taken(array, row) if array.ndim > 1 else array for name, array in evidence.items()
    }
    return taken._replace(problem=rollout.problem, parent=parent), of_rows


def _assigned(method: Method, scene: Scene, row: Array) -> tuple[Array, Array]:
    """(credit, credit times the weight of the loss), both [N, K, T], of a batch [N, K] of rows."""
    truth, tree = scene.ground.truth, scene.ground.tree
    sampled_as = tree.rollout._replace(log_prob=truth.log_prob)
    raw = credit.assign(method.rule, *batch_of(sampled_as, scene.evidence, row)).advantage
    if method.reduce is None:
        return raw, raw
    return raw, raw * scene.scale * method.reduce(_taken(tree.rollout.mask, row))


def _taken(leaf: Array, row: Array) -> Array:
    return jax.vmap(lambda values, at: values[at])(leaf, row)
