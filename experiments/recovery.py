"""What a mistake that was repaired is credited with: a published table, reproduced.

The first of two decisions is good, and the episode succeeds, or it is BAD; after BAD the second one
repairs it (RECOVER, success) or does not. A uniform policy plays; each batch is one group. The true
advantage of BAD is -0.25, it halves the chances, and that of RECOVER +0.50.

    python experiments/recovery.py                          # 30 batches of 2000 episodes
    python experiments/recovery.py --json recovery.json     # the numbers, to a file

The first two columns are means over the episodes that took BAD, then RECOVER, all of them
successful. Whoever looks at these alone asks for something else than the advantage: the episodes
that BAD ruined are left out, so that BAD looks good to every rule that knows the return only. The
third column is the mean over all BAD actions, ruined episodes included: there leave-one-out
(`rloo`) gives the true -0.25, and its expected gradient is right for all that +0.25 in the first.

The published numbers are of AgentCreditBench 0.5.0 (github.com/hectopascal/agent-credit-bench), on
a chain that ends after a good first decision. Ours has two decisions whatever was chosen; after a
good first one the second changes nothing. Returns, and all that follows from the returns of the
group, are the same in both, and so are the steps that start in the state after BAD, which is not
the state after a good decision. What counts steps or turns is not. Where every episode has two
steps, the statistics of `gigpo` over steps are those over episodes, which were published; in a
large group they give +1.15 and +1.58, in a chain that ends they would give +1.28 and +1.71. Our
episodes are one turn, so that `turn_loo` is `rloo`; with the decisions as turns it is so still, but
would be +0.25 and +0.50 in a chain that ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from rlcredit import credit, masked, run
from rlcredit.advantages import ADVANTAGES
from rlcredit.episode import as_rollout, play_one
from rlcredit.evidence import Context
from rlcredit.tasks import TASKS
from rlcredit.tasks.bifurcation import BRANCH
from rlcredit.tasks.bifurcation_chain import PRESETS as CHAINS
from rlcredit.tasks.bifurcation_chain import decision_columns
from rlcredit.tasks.bifurcation_credit import true_advantage
from rlcredit.types import Array, InputError, PyTree, Rollout, Sampling

CHAIN = CHAINS["recovery"]._replace(filler=0, delay=0)
TASK = TASKS["bifurcation"](preset="recovery", filler=0, delay=0)
UNIFORM = (1 / CHAIN.branches,) * len(CHAIN.gaps)
EXACT = "exact advantage"
COLUMNS = ("BAD, successful", "RECOVER, successful", "all BAD")
PUBLISHED = {  # BAD and RECOVER, successful; None: no such row
    EXACT: (-0.25, 0.50),
    "reinforce": (1.0, 1.0),
    "rloo": (0.25, 0.25),
    "turn_loo": None,
    "grpo": (0.58, 0.58),
    "gigpo": (1.15, 1.57),
}


@dataclass(frozen=True)
class Config:
    """Settings; the defaults are those of the published table."""

    preset: Literal["published"] = "published"
    seeds: int = 30  # batches
    episodes: int = 2000  # of each
    json: Path | None = None  # where to write the numbers too


PRESETS = {"published": Config()}


def main(config: Config) -> None:
    if config.seeds < 2 or config.episodes < 2:
        raise InputError(f"seeds={config.seeds}, episodes={config.episodes}: both must be above 1")
    keys = jax.vmap(jax.random.key)(jnp.arange(config.seeds))
    batches = jax.jit(lambda keys: jax.lax.map(lambda key: batch(key, config.episodes), keys))
    credits, recovered = map(np.asarray, batches(keys))
    if not recovered.all():
        raise InputError(f"episodes={config.episodes}: a batch had none with BAD, then RECOVER")
    results = {name: summary(credits[:, rule]) for rule, name in enumerate(PUBLISHED)}
    print_results(results)
    if config.json:
        run.write_json(config.json, results)


def batch(key: Array, episodes: int) -> tuple[Array, Array]:
    """([rules, 3] mean credits, as `COLUMNS`, and how many recovered) of one group of episodes."""
    problem_key, play_key = jax.random.split(key)
    problem = TASK.draw(problem_key)
    rollout = play_group(problem, jax.random.split(play_key, episodes))
    good = chose_good(rollout)
    bad = ~good[:, 0]
    recovered = bad & good[:, 1]
    means = []
    for name in PUBLISHED:
        first, second = assigned(name, rollout)[0][:, decision_columns(CHAIN)].T
        chosen = ((first, recovered), (second, recovered), (first, bad))
        means.append([masked.mean(*pair) for pair in chosen])
    return jnp.asarray(means), jnp.sum(recovered)


def play_group(problem: PyTree, keys: Array) -> Rollout:
    """[1, K] episodes of one problem under the uniform policy; keys: [K]."""

    def uniform(problem: PyTree, state: PyTree, number: Array, key: Array) -> Array:
        return jax.random.categorical(key, jnp.where(TASK.legal(problem, state), 0, -jnp.inf))

    played = jax.vmap(lambda key: play_one(TASK, problem, key, uniform))(keys)
    episodes, rows = jax.tree.map(lambda leaf: leaf[None], played)
    return as_rollout(
        rows,
        log_prob=jnp.where(rows.mask, -jnp.log(CHAIN.branches), 0),
        length=episodes.position,
        terminated=episodes.terminated,
        legal=None,
        problems=jax.tree.map(lambda leaf: leaf[None], problem),
        keys=keys[None],
    )


def chose_good(rollout: Rollout) -> Array:
    """[K, decisions] bool."""
    return rollout.tokens[0][:, decision_columns(CHAIN)] == BRANCH + rollout.problem.good


def assigned(name: str, rollout: Rollout) -> Array:
    """[1, K, T] the credit of every token by one rule."""
    if name == EXACT:
        problem = jax.tree.map(lambda leaf: leaf[0], rollout.problem)
        one = jax.vmap(lambda *row: true_advantage(CHAIN, problem, *row, UNIFORM))
        return one(rollout.tokens[0], rollout.mask[0])[None]
    rule = credit.bind(name, ADVANTAGES, "advantage")
    context = Context(None, None, None, TASK, Sampling())  # no rule here asks about a network
    evidence, _ = credit.measure(rule.evidence, context, rollout, jax.random.key(0))
    return credit.assign(rule, rollout, evidence).advantage


def summary(values: np.ndarray) -> dict[str, dict[str, float]]:
    """Mean and standard error over the batches of each column; values: [seeds, 3]."""
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5
    pairs = zip(values.mean(axis=0).tolist(), error.tolist(), strict=True)
    return {
        column: {"mean": mean, "standard_error": error}
        for column, (mean, error) in zip(COLUMNS, pairs, strict=True)
    }


def print_results(results: dict[str, dict[str, dict[str, float]]]) -> None:
    table = Table()
    for heading in ("", *COLUMNS, "published BAD, RECOVER"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, own in results.items():
        cells = [f"{own[c]['mean']:+.3f} ± {own[c]['standard_error']:.3f}" for c in COLUMNS]
        published = PUBLISHED[name]
        table.add_row(name, *cells, "{:+.2f} {:+.2f}".format(*published) if published else "")
    # Wider than a pipe's 80 columns, so that a log keeps whole numbers.
    Console(width=None if Console().is_terminal else 120).print(table)


if __name__ == "__main__":
    run.command_line(main, PRESETS)
