"""What every credit rule is held to: one function a property, from a subject to a verdict.

To add one: a function and an entry in `PROPERTIES`, and a rule that fails it in
`tests/test_testing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import credit, sharding
from rlcredit.testing import rollouts
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.subject import Subject, example
from rlcredit.testing.uphill import unbiased, uphill
from rlcredit.testing.verdict import PASSED, Verdict, arrays, nowhere, same, worst

TOLERANCE = 1e-5  # where float32 sums may be taken in another order
DEVICES = 4
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
# Collectives are placed before these passes.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# What a docstring has to say.
CLAIMS_ZERO = re.compile(r"exactly 0[^.;]*equal", re.IGNORECASE)
CLAIMS_BATCH = re.compile(r"over all N \* K")


def shape_and_type(subject: Subject) -> Verdict:
    """[N, K, T] float32, alone or with a critic target; `credit.assign` refuses all else."""
    subject.assign(*example(subject))
    return PASSED


def zero_off_the_mask(subject: Subject) -> Verdict:
    """Exactly 0 where the mask is False."""
    rollout, evidence = example(subject)
    return _only_where(rollout.mask, subject.assign(rollout, evidence), "where the mask is False")


def masked_content(subject: Subject) -> Verdict:
    """What lies under False changes nothing, bit for bit: nan, inf and huge numbers."""
    rollout, evidence = example(subject)
    want = subject.assign(rollout, evidence)

    def with_garbage(garbage: float) -> Verdict:
        spoiled = rollouts.with_garbage(rollout, evidence, garbage)
        return same(subject.assign(*spoiled), want, f"with {garbage} under the mask")

    return worst(map(with_garbage, (np.nan, np.inf, -np.inf, 1e30)))


def padding(subject: Subject) -> Verdict:
    """Longer rows change nothing, bit for bit."""
    rollout, evidence = example(subject)
    longer = rollouts.move(rollout, evidence, rollouts.padding(rollout, 4))
    got = jax.tree.map(lambda leaf: leaf[..., :-4], subject.assign(*longer))
    return same(got, subject.assign(rollout, evidence), "with 4 more padding tokens")


def observations(subject: Subject) -> Verdict:
    """Observation tokens put between the chosen ones change no chosen token's credit."""

    def with_more(seed: int) -> Verdict:
        rollout, evidence = example(subject, seed)
        source = rollouts.observations(np.random.default_rng(seed), rollout, 4)
        longer, moved = rollouts.move(rollout, evidence, source)

        def back(leaf: jax.Array) -> np.ndarray:
            credited = np.zeros(rollout.mask.shape, np.float32)
            credited[rollout.mask] = np.asarray(leaf)[longer.mask]
            return credited

        got = jax.tree.map(back, subject.assign(longer, moved))
        want = jax.tree.map(
            lambda leaf: np.where(rollout.mask, leaf, 0), subject.assign(rollout, evidence)
        )
        return same(got, want, "with observation tokens put in")

    return worst(map(with_more, range(3)))


def problem_order(subject: Subject) -> Verdict:
    """Problems in another order have their credit in that order."""
    rollout, evidence = example(subject)
    order = np.array([2, 0, 3, 1])
    got = subject.assign(*rollouts.permute_problems(rollout, evidence, order))
    want = jax.tree.map(lambda leaf: leaf[order], subject.assign(rollout, evidence))
    return same(got, want, "with the problems in another order", tolerance=TOLERANCE)


def sample_order(subject: Subject) -> Verdict:
    """Samples of a problem in another order have their credit in that order."""
    rollout, evidence = example(subject)
    order = np.array([[1, 2, 0], [2, 1, 0], [0, 2, 1], [1, 0, 2]])
    got = subject.assign(*rollouts.permute_samples(rollout, evidence, order))
    problems = np.arange(4)[:, None]
    want = jax.tree.map(lambda leaf: leaf[problems, order], subject.assign(rollout, evidence))
    return same(got, want, "with the samples in another order", tolerance=TOLERANCE)


def equal_rewards(subject: Subject) -> Verdict:
    """Exactly 0 where all returns are equal, if the docstring says so: `exactly 0 ... equal`.

    Batches of one problem, groups of 2 to 16 samples, returns of 0.05 to 0.95: a subtracted float32
    mean leaves a residue in some of them.
    """
    if not CLAIMS_ZERO.search(subject.documentation):
        return Verdict("not claimed", "the docstring does not say `exactly 0 ... equal`")
    size, value = (a.ravel() for a in np.mgrid[2:17, 1:20])
    rng = np.random.default_rng(0)
    mask = (np.arange(16) < size[:, None])[..., None] & (np.arange(3) == 2)
    rollout = rollouts.random_rollout(rng, size.size, 16, 3)._replace(
        mask=mask,
        reward=np.where(mask, np.float32(value / 20)[:, None, None], 0),
        step=np.where(mask, 0, -1).astype(np.int32),
        turn=np.where(mask, 0, -1).astype(np.int32),
    )
    evidence = evidence_for(rng, rollout, subject.rule.evidence, subject.makers)
    batches = jax.tree.map(lambda leaf: leaf[:, None], (rollout, evidence))
    advantage = np.asarray(jax.vmap(subject.assign)(*batches).advantage)[:, 0]
    for group in np.flatnonzero(advantage.any(axis=(1, 2)))[:1]:  # the first one
        seen = advantage[group][mask[group]][0]
        when = f"{size[group]} samples with a return of {value[group] / 20}"
        return Verdict("failed", f"{when} get {seen}, not 0")
    return PASSED


def communication(subject: Subject) -> Verdict:
    """Compiles to no collective with the problems spread over 4 devices, and gives the same.

    A rule with a statistic of the whole batch has to communicate, and says so in its docstring:
    `over all N * K`.
    """
    if jax.device_count() < DEVICES:
        return Verdict("not checked", f"needs {DEVICES} devices, there is {jax.device_count()}")
    spread = jax.NamedSharding(sharding.make_mesh(jax.devices()[:DEVICES]), jax.P(sharding.AXIS))
    arguments = example(subject)
    placed = jax.device_put(arguments, spread)
    compiled = jax.jit(subject.assign, out_shardings=spread).lower(*placed).compile(QUICK)
    found = ", ".join(word for word in COLLECTIVES if word in compiled.as_text())
    claimed = bool(CLAIMS_BATCH.search(subject.documentation))
    if claimed and not found:
        return Verdict("failed", "says `over all N * K`, and nothing is communicated")
    if found and not claimed:
        return Verdict("failed", f"needs communication: {found}; say `over all N * K` if it must")
    verdict = same(
        compiled(*placed), subject.assign(*arguments), "on 4 devices", tolerance=TOLERANCE
    )
    return verdict._replace(detail=verdict.detail or (found and f"needs communication: {found}"))


def jit(subject: Subject) -> Verdict:
    """Jitted as not jitted, and one trace for a second call with other numbers."""
    traces = []

    def traced(*arguments: object) -> credit.Credit:
        traces.append(arguments)
        return credit.assign(subject.rule, *arguments)

    jitted = jax.jit(traced)
    for seed in range(2):
        jitted.trace(*example(subject, seed))
    if len(traces) > 1:
        return Verdict("failed", f"traced {len(traces)} times for 2 calls of one shape")
    arguments = jax.tree.map(jnp.asarray, example(subject))
    want = credit.assign(subject.rule, *arguments)
    return same(subject.assign(*arguments), want, "jitted", tolerance=TOLERANCE)


def repeatable(subject: Subject) -> Verdict:
    """A second call with the same arguments gives the same: nothing else is read or remembered."""
    arguments = jax.tree.map(jnp.asarray, example(subject))
    want = credit.assign(subject.rule, *arguments)
    return same(credit.assign(subject.rule, *arguments), want, "called a second time")


def finite(subject: Subject) -> Verdict:
    """Finite with one sample a problem and for rewards of 1e8 and -1e8; 0 without chosen tokens.

    Larger rewards have squares whose sums leave float32.
    """
    return worst(_extremes(subject))


def gradient(subject: Subject) -> Verdict:
    """No gradient flows through `credit.assign` to rewards, log-probabilities or evidence.

    It stops what a rule lets through, so a rule fails by refusing to be differentiated.
    """
    rollout, evidence = example(subject)
    whole = {name: e for name, e in evidence.items() if np.issubdtype(e.dtype, np.integer)}
    inputs = {"reward": rollout.reward, "log_prob": rollout.log_prob}
    inputs |= {name: e for name, e in evidence.items() if name not in whole}

    def total(inputs: dict[str, jax.Array]) -> jax.Array:
        changed = rollout._replace(reward=inputs["reward"], log_prob=inputs["log_prob"])
        measured = {name: inputs.get(name, whole.get(name)) for name in evidence}
        return sum(map(jnp.sum, jax.tree.leaves(subject.assign(changed, measured))))

    for name, slope in jax.jit(jax.grad(total))(inputs).items():
        if np.any(slope):
            return Verdict("failed", f"a gradient flows to {name}")
    return PASSED


PROPERTIES: dict[str, Callable[[Subject], Verdict]] = {
    "shape and type": shape_and_type,
    "zero off the mask": zero_off_the_mask,
    "masked content": masked_content,
    "padding": padding,
    "observations": observations,
    "problem order": problem_order,
    "sample order": sample_order,
    "equal rewards": equal_rewards,
    "communication": communication,
    "jit": jit,
    "repeatable": repeatable,
    "finite": finite,
    "gradient": gradient,
    "uphill": uphill,
    "unbiased": unbiased,
}


def _extremes(subject: Subject) -> Iterator[Verdict]:
    rollout, evidence = example(subject)
    empty = rollout._replace(mask=np.zeros_like(rollout.mask))
    spoiled = rollouts.with_garbage(empty, evidence, np.nan)
    yield _only_where(empty.mask, subject.assign(*spoiled), "without any chosen token")
    yield _all_finite(subject.assign(*example(subject, samples=1)), "with one sample a problem")
    huge = np.where(rollout.reward > 0, np.float32(1e8), np.float32(-1e8))
    rewarded = rollout._replace(reward=np.where(rollout.mask, huge, 0))
    yield _all_finite(subject.assign(rewarded, evidence), "for rewards of 1e8 and -1e8")


def _only_where(mask: np.ndarray, got: credit.Credit, when: str) -> Verdict:
    return worst(nowhere((a != 0) & ~mask, a, label, when) for label, a in arrays(got))


def _all_finite(got: credit.Credit, when: str) -> Verdict:
    return worst(nowhere(~np.isfinite(a), a, label, when) for label, a in arrays(got))
