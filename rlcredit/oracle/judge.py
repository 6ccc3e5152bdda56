"""The report card of a credit rule: does it find the tokens, is its gradient right?

ground = prepare(context, problems)
judge = make_judge(credit.bind("grpo", ADVANTAGES, "advantage"), samples=8)
card = judge(ground, key)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import credit
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.exact.values import exact
from rlcredit.losses.reducers import Reducer
from rlcredit.oracle import company
from rlcredit.oracle.batch import Batch, Growth
from rlcredit.oracle.company import OF_BATCH, Company, Method, Scene
from rlcredit.oracle.estimate import Estimate, direction, exactly, mean_of
from rlcredit.oracle.ground import Ground, gradients, prepare
from rlcredit.oracle.identification import identification, judged, shift_invariant_rmse
from rlcredit.oracle.redraw import REDRAWN
from rlcredit.types import Array, InputError, Price, PyTree, Rollout, Task

Critic = Literal["exact", "trained", "constant"]

APART = Growth()
TREES = 1024  # batches of trees that an expected gradient is the mean of
PER_BATCH = {*OF_BATCH, *REDRAWN}

# Evidence that replays episodes, which the rows of a tree cannot be where a task takes chances.
_REPLAYED = ("fingerprint", "exact_hindsight")


class Card(NamedTuple):
    """What is reported about a rule on one ground."""

    figures: dict[str, Estimate]
    company: str  # "none", "every" or "drawn": how the expected gradient was found
    asks_for_value: bool
    noise: np.ndarray  # [J] squared distance of each drawn update's gradient to the mean one


def report(
    rule: credit.Bound,
    context: Context,
    problems: PyTree,
    key: Array,
    *,
    samples: int,
    draws: int = 64,
    critic: Critic = "exact",
    reduce: Reducer | None = None,
    growth: Growth = APART,
    providers: credit.Providers = EVIDENCE,
) -> Card:
    """The card of one rule under the policy, parameters, task and sampling of the context.

    Args: problems: leaves [N, ...]; the others as `make_judge`, which says what the figures are.
    Raises: InputError as `prepare` and `make_judge`.
    """
    judge = make_judge(
        rule,
        context,
        samples=samples,
        draws=draws,
        critic=critic,
        reduce=reduce,
        growth=growth,
        providers=providers,
    )
    return judge(prepare(context, problems), key)


def make_judge(
    rule: credit.Bound,
    context: Context,
    *,
    samples: int,
    draws: int = 64,
    critic: Critic = "exact",
    reduce: Reducer | None = None,
    growth: Growth = APART,
    providers: credit.Providers = EVIDENCE,
) -> Callable[[Ground, Array], Card]:
    """`judge(ground, key) -> Card`, for any parameters of the context's policy.

    It compiles once for grounds of the same sizes.

    Figures of the gradient g of one update of N problems and K samples, with g* the exact gradient
    of the objective:

    - bias: |E g - g*| / |g*|; cosine: of E g and g*;
    - variance: E |g - E g|^2;
    - signal: (E g . g* / |g*|)^2 / variance, the signal-to-noise ratio of one update;
    - shift_rmse: see `identification.shift_invariant_rmse`;

    those of `identification`, and `spearman_shuffled`, the rank correlation that is left when each
    episode's rewards come in another order: a rule that looks at when they came has to lose it.

    Args:
      samples: K; draws: batches that are drawn, and companies where not all can be gone through.
      critic: what evidence `value` is: the exact one, that of the network, or the mean return. With
        any but the exact one a rule that bootstraps where an episode is cut is biased.
      reduce: how the loss weighs the tokens; None weighs all alike, as the true gradient does.
      growth: the trees that sampling grows; by default episodes are sampled apart.
    Raises: InputError for a critic of another name, and for evidence that cannot be had of a tree.
    """
    if critic not in get_args(Critic):
        raise InputError(f"{critic=} is none of {', '.join(get_args(Critic))}")
    _refuse_replays(rule, context.task)
    method = Method(rule, reduce, growth, context.probing)
    redrawn = company.is_redrawn(rule.evidence)
    measured = make_measured(rule.evidence, context, critic, providers)
    reference = make_reference(rule, context)
    sampled = jax.jit(functools.partial(company.sampled, method))
    expected = jax.jit(
        functools.partial(company.expected_weights, method), static_argnames="across"
    )

    def judge(ground: Ground, key: Array) -> Card:
        draw_key, company_key, evidence_key, other_key, shuffle_key = jax.random.split(key, 5)
        batches = company.drawn(ground, samples, draws, draw_key, growth).batch
        evidence = measured(ground, evidence_key)
        light = ground._replace(context=None, scores=None, gradient=None)
        scene = Scene(
            light,
            evidence,
            reference(ground),
            company.mean_scale(method, ground, batches),
        )

        def credit_of(ground: Ground, batches: Batch) -> tuple[Array, Array]:
            return sampled(scene._replace(ground=ground), batches)[:2]

        raw, _, weight = sampled(scene, batches)
        if growth.branching:
            kind, chosen = "trees", company.drawn(ground, samples, TREES, company_key, growth)
            mean = sampled(scene, chosen.batch)[2]
        else:
            compared = company.compares(lambda *at: credit_of(*at)[1], light, samples, other_key)
            kind, chosen = _company(redrawn, ground, compared, samples, draws, company_key)
            mean = expected(scene, chosen.batch, across=compared[1])
        found = identification(judged(ground, batches, raw))
        shuffled = identification(
            judged(ground, batches, credit_of(_shuffled(light, shuffle_key), batches)[0])
        )
        figures, noise = _gradient(ground, chosen, mean, weight)
        figures |= {name: mean_of(figure) for name, figure in found.items()}
        figures["spearman_shuffled"] = mean_of(shuffled["spearman"])
        return Card(figures, kind, "value" in rule.evidence, noise)

    return judge


def make_reference(rule: credit.Bound, context: Context) -> Callable[[Ground], Array]:
    """[N, M] the probability of the rows under the reference, where a rule asks about it."""
    if "prover_value" not in rule.evidence:
        return lambda ground: ground.truth.probability
    scored = jax.jit(lambda params, tree: exact(context.policy, params, tree, context.sampling))
    return lambda ground: scored(ground.context.ref_params, ground.tree).probability


def make_measured(
    names: tuple[str, ...], context: Context, critic: Critic, providers: credit.Providers
) -> Callable[[Ground, Array], dict[str, Array]]:
    """Evidence about every row of a ground's trees; what is exact is there already.

    What depends on the batch, or is drawn anew with it, is left to `company`.
    """

    @functools.partial(jax.jit, static_argnames="names")
    def measure(params, ref_params, rollout: Rollout, key: Array, names: tuple[str, ...]):
        here = context._replace(params=params, ref_params=ref_params)
        return credit.measure(names, here, rollout, key, providers)[0]

    def measured(ground: Ground, key: Array) -> dict[str, Array]:
        truth = ground.truth
        known = {"exact_value": truth.value, "exact_advantage": truth.advantage}
        if critic != "trained":
            mean = jnp.mean(jnp.sum(truth.probability * truth.total, axis=1))
            constant = jnp.full_like(truth.value, mean)
            known["value"] = truth.value if critic == "exact" else constant
        rollout = ground.tree.rollout._replace(log_prob=truth.log_prob)
        params = (ground.context.params, ground.context.ref_params)
        asked = ("unit", *names) if company.is_redrawn(names) else names
        others = tuple(dict.fromkeys(n for n in asked if n not in known and n not in PER_BATCH))
        collected = measure(*params, rollout, key, names=others)
        return collected | {name: known[name] for name in names if name in known}

    return measured


def _refuse_replays(rule: credit.Bound, task: Task) -> None:
    for name in rule.evidence:
        if name in _REPLAYED and task.outcomes is not None:
            raise InputError(
                f"advantage {rule.name!r} asks for {name}, which replays episodes; the rows of a "
                f"tree of {task.name!r}, which takes chances, cannot be replayed"
            )


def with_critic(critic: Critic, providers: credit.Providers) -> credit.Providers:
    """Providers whose `value` costs what that critic costs; a constant costs nothing."""

    def constant(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
        del context, key
        return jnp.zeros((*rollout.mask.shape[:2], rollout.mask.shape[2] + 1)), Price()

    critics = {
        "exact": providers["exact_value"],
        "trained": providers["value"],
        "constant": constant,
    }
    return {**providers, "value": critics[critic]}


def _company(
    redrawn: bool,
    ground: Ground,
    compared: tuple[bool, bool],
    samples: int,
    draws: int,
    key: Array,
) -> tuple[str, Company]:
    """Company to average over; where evidence is drawn anew there are always draws to average."""
    across_samples, across_problems = compared
    if not across_samples and not across_problems:
        return "none", company.drawn(ground, samples, draws if redrawn else 1, key, APART)
    if not redrawn and (not across_problems or ground.visit.shape[0] == 1):
        all_of_them = company.every(ground, samples)
        if all_of_them is not None:
            return "every", all_of_them
    return "drawn", company.drawn(ground, samples, draws, key, APART)


def _gradient(
    ground: Ground, chosen: Company, mean: Array, weight: Array
) -> tuple[dict[str, Estimate], np.ndarray]:
    """Figures of the gradient, and each drawn update's squared distance to the mean gradient.

    Args:
      mean: [J, N, E] expected weights in each company; weight: [J', N, E] those of drawn updates.
    """
    truth = np.asarray(ground.gradient, float)
    whole = jnp.einsum("jn,jne->ne", chosen.weight, mean)
    centre = np.asarray(gradients(ground, whole), float)
    if np.ptp(np.asarray(chosen.weight)) == 0:  # drawn: each is one of many, of equal weight
        bias, cosine = direction(np.asarray(gradients(ground, mean), float), truth)
    else:
        bias, cosine = direction(centre[None], truth)
    updates = np.asarray(gradients(ground, weight), float)
    noise = np.sum((updates - centre) ** 2, axis=1)
    variance = mean_of(noise)
    along = float(centre @ truth / np.linalg.norm(truth))
    signal = Estimate(
        *(along**2 / max(v, 1e-30) for v in (variance.value, variance.high, variance.low))
    )
    figures = {"bias": bias, "cosine": cosine, "variance": variance, "signal": signal}
    figures["shift_rmse"] = exactly(shift_invariant_rmse(ground, whole))
    return figures, noise


@jax.jit
def _shuffled(ground: Ground, key: Array) -> Ground:
    """The same with each row's rewards in another order among its chosen tokens."""
    rollout = ground.tree.rollout
    mask, reward = rollout.mask, rollout.reward
    drawn = jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0)
    # The chosen positions in a random order, against the same positions in theirs.
    source = jnp.argsort(drawn, axis=-1)
    target = jnp.argsort(~mask, axis=-1, stable=True)
    moved = jnp.take_along_axis(reward, source, axis=-1)
    shuffled = jnp.put_along_axis(jnp.zeros_like(reward), target, moved, axis=-1, inplace=False)
    reward = jnp.where(mask, shuffled, 0)
    return ground._replace(tree=ground.tree._replace(rollout=rollout._replace(reward=reward)))
