"""What a provider of evidence may look at, and the one pass over a rollout that most need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from rlcredit.score import Scores, score
from rlcredit.types import Layout, Policy, Price, PyTree, Rollout, Sampling, Task


@dataclass(frozen=True)
class Probing:
    """How evidence is measured, where there is a choice."""

    unit: str = "step"  # what credit is given to as one, of `rlcredit.units`
    most_units: int = 16  # of an episode; the last one takes all that follows
    continuations: int = 4  # new episodes from each prefix that is continued
    scorer: str = "checker"  # what scores steps and prefixes, of `rlcredit.evidence.scorers`
    noise: float = 0.0  # standard deviation of what is added to each score
    players: int = 4  # units of an episode that form coalitions; the last one takes the rest
    orders: int = 16  # in which they join, where there are too many players for all coalitions


class Context(NamedTuple):
    """The policy and what it acts in, as they were when the rollout was sampled."""

    policy: Policy
    params: PyTree
    ref_params: PyTree
    task: Task
    sampling: Sampling
    layout: Layout = Layout()
    probing: Probing = Probing()


def score_rollout(context: Context, params: PyTree, rollout: Rollout) -> tuple[Scores, Price]:
    """Scores of a rollout's tokens, per-token ones 0 off the mask, and the price of the pass.

    Providers that ask for the same pass inside one jitted step share it: the compiler merges equal
    computations. Each is still charged in full.
    """
    scores = score(
        context.policy, params, rollout.tokens, sampling=context.sampling, legal=rollout.legal
    )
    scores = scores._replace(
        log_prob=jnp.where(rollout.mask, scores.log_prob, 0),
        entropy=jnp.where(rollout.mask, scores.entropy, 0),
    )
    return scores, Price(tokens_scored=jnp.sum(rollout.length))
