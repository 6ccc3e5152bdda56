"""MT-GRPO: what the turns before the last one earned is credit of these turns alone."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked, units
from rlcredit.advantages.outcome import spread
from rlcredit.types import Array, Rollout


def mt_grpo(rollout: Rollout, *, turn_coef: float = 1.0, eps: float = 1e-6) -> Array:
    """A[t] = A_out + turn_coef * A_turn before the last turn, A_out in it

    A_out  = (O - mean_group O) / (std_group O + eps), O what the episode earned in its last turn
    A_turn = the same of what it earned before its last turn

    An episode of one turn has earned nothing before and is compared as such. The two parts are in
    their own deviations: a small reward for a turn counts as much as the outcome. With one turn in
    all episodes it is `grpo`. The source has two turns, a call of a tool and the answer; that
    all turns but the last are one part is our reading for more of them. Zeng et al., 2025, arXiv
    2505.11821.

    Returns: [N, K, T] float32; exactly 0 where all samples earned equal amounts in either part.
    """
    turn, mask = units.turn(rollout), rollout.mask
    last = turn == jnp.max(turn, axis=-1, keepdims=True)
    present = jnp.any(mask, axis=-1)

    def score(part: Array) -> Array:
        earned = masked.sum(rollout.reward, mask & part, axis=-1)
        deviation = masked.std(earned, present, axis=1, keepdims=True)
        return spread(masked.center(earned, present, axis=1) / (deviation + eps), rollout)

    return score(last) + jnp.where(last, 0, turn_coef * score(~last))
