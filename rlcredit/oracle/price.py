"""What a rule costs: tokens, steps of the environment, seconds."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import jax

from rlcredit import credit, types
from rlcredit.branching import grow
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.oracle.batch import Growth
from rlcredit.oracle.judge import APART, Critic, with_critic
from rlcredit.rollout import sample
from rlcredit.types import Array, PyTree, Rollout

_TIMES = 5


Price = Callable[[credit.Bound, Critic, PyTree, PyTree], dict[str, float]]


def make_pricer(
    context: Context,
    problems: PyTree,
    key: Array,
    *,
    samples: int,
    growth: Growth = APART,
    providers: credit.Providers = EVIDENCE,
) -> Price:
    """`price(rule, critic, params, ref_params) -> figures` of one update of N problems.

    - tokens_sampled, tokens_scored, environment_steps: of the episodes and of the evidence;
    - charged: tokens sampled and tokens scored, what budgets are counted in. The learner's own
      passes are the same for all rules and are not charged;
    - seconds: median of five times, of evidence and rule alone, without compilation.

    Args:
      context: its parameters are replaced by those that are given.
      problems: leaves [N, ...]; samples: episodes of each, before they branch.
      growth: the trees that sampling grows, if any.
    """
    count = jax.tree.leaves(problems)[0].shape[0]
    sample_key, measure_key = jax.random.split(key)

    @jax.jit
    def collect(params: PyTree):
        keys = jax.random.split(sample_key, count)
        what = (context.policy, params, context.task, problems, keys)
        how = {"sampling": context.sampling, "layout": context.layout}
        if growth.branching:
            return grow(*what, branching=(samples, *growth.branching), cut=growth.cut, **how)
        return sample(*what, samples=samples, **how)

    @functools.partial(jax.jit, static_argnames=("names", "critic"))
    def measure(params: PyTree, ref_params: PyTree, rollout: Rollout, names, critic: Critic):
        here = context._replace(params=params, ref_params=ref_params)
        return credit.measure(names, here, rollout, measure_key, with_critic(critic, providers))

    def price(rule: credit.Bound, critic: Critic, params: PyTree, ref_params: PyTree):
        rollout, spent = collect(params)
        assign = jax.jit(functools.partial(credit.assign, rule))

        def once() -> types.Price:
            evidence, price = measure(params, ref_params, rollout, rule.evidence, critic)
            return jax.block_until_ready((assign(rollout, evidence), price))[1]

        total = spent + once()
        return {
            "tokens_sampled": float(total.tokens_sampled),
            "tokens_scored": float(total.tokens_scored),
            "environment_steps": float(total.environment_steps),
            "charged": float(total.tokens_sampled + total.tokens_scored),
            "seconds": _median_seconds(once),
        }

    return price


def _median_seconds(run: Callable) -> float:
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
