"""CAPO: the return of the episode, less at steps that are known to be wrong."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def capo(
    rollout: Rollout,
    *,
    step_score: Array,
    whole: float = 2.0,
    process: float = 1.0,
    eps: float = 1e-6,
) -> Array:
    """A[t] = (r[t] - mean r) / (std r + eps) over the tokens of all samples of the problem,
    r[t] = whole * R - process * (step_score[t] < 0).

    A step is wrong where its score is below 0. With whole > process a wrong step of a success is
    still worth more than a right one of a failure (returns of 0 and 1). Every token counts once, so
    long episodes weigh more in mean and deviation. The source lets a language model find the wrong
    steps, by the vote of several critiques. Xie et al., 2025, arXiv 2508.02298; the formula is that
    of a third party's account, the weights' defaults are ours.

    Args:
      step_score: [N, K, T] evidence in [-1, 1], equal over a step.
    Returns: [N, K, T] float32; 0 where r is the same at all tokens of the problem.
    """
    total, _ = episode_return(rollout)
    reward = whole * spread(total, rollout) - process * (step_score < 0)
    both = (1, 2)
    deviation = masked.std(reward, rollout.mask, axis=both, keepdims=True)
    return masked.center(reward, rollout.mask, axis=both) / (deviation + eps)
