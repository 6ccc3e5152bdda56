"""The objective itself and its gradient, by autodiff through a sum over all episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlcredit.exact.tree import Tree
from rlcredit.exact.values import log_probs, probabilities
from rlcredit.types import Array, Policy, PyTree, Sampling


def objective(policy: Policy, params: PyTree, tree: Tree, sampling: Sampling) -> Array:
    """J(params) = mean over problems of the sum over episodes of probability * return; float32.

    Differentiable. nan if a tree is not whole.
    """
    probability = probabilities(tree, log_probs(policy, params, tree, sampling))
    expected = jnp.sum(probability * jnp.sum(tree.rollout.reward, axis=-1), axis=-1)
    return jnp.mean(jnp.where(tree.count <= tree.chance.shape[1], expected, jnp.nan))


def weighted_score(
    policy: Policy, params: PyTree, tree: Tree, weight: Array, sampling: Sampling
) -> PyTree:
    """The gradient of sum over rows and tokens of weight * log_prob, divided by N.

    With weight = probability * credit it is the expected policy gradient of a credit.

    Args: weight: [N, M, T].
    """

    def total(params: PyTree) -> Array:
        scored = log_probs(policy, params, tree, sampling)
        return jnp.sum(weight * scored) / weight.shape[0]

    return jax.grad(total)(params)
