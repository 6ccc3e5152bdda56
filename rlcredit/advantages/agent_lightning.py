"""Agent Lightning: every turn is a sample by itself, with the return of its episode."""

from __future__ import annotations

from rlcredit import masked, units
from rlcredit.advantages import weighted
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.types import Array, Rollout


def agent_lightning(rollout: Rollout, *, eps: float = 1e-6) -> Array:
    """A[t] = (R - mean R) / (std R + eps) over the turns of all samples of the problem, each with
    the return R of its episode.

    The default credit of the framework: calls of the model are taken apart and given to GRPO as if
    they were episodes. All turns of an episode have the same credit; an episode enters mean and
    deviation once for each of its turns, so long ones weigh more. With one turn an episode, or
    equally many in all, it is `grpo`. Standard deviations are the population's, where the code has
    torch.std. Luo et al., 2025, arXiv 2508.03680.

    Returns: [N, K, T] float32; exactly 0 for a group of equal returns or of one sample.
    """
    total, present = episode_return(rollout)
    turns = masked.count(units.opens(units.turn(rollout)), axis=-1)
    return spread(weighted.score(total, turns, present, eps=eps), rollout)
