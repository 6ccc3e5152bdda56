"""The return of the greedy answer to each problem."""

from __future__ import annotations

from rlcredit import masked
from rlcredit.evidence.context import Context
from rlcredit.rollout import sample
from rlcredit.types import Array, Price, Rollout


def greedy_return(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N] float32: the undiscounted return of one greedy episode of each problem."""
    del key  # greedy choices need none; the task's chances come from keys of the problems
    greedy, price = sample(
        context.policy,
        context.params,
        context.task,
        rollout.problem,
        rollout.key[:, 0],
        samples=1,
        sampling=context.sampling._replace(greedy=True),
        layout=context.layout,
    )
    total = masked.sum(greedy.reward, greedy.mask, axis=(1, 2))
    return total, price
