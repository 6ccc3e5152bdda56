"""Does a rule's update point uphill, and exactly so where it says it is unbiased?

Tried on one problem that is small enough to go through every episode and every company: a chain of
four decisions, the first of which sets the chance of success, under a small network.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rlcredit import credit, oracle
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.oracle.batch import Growth
from rlcredit.oracle.company import Method, Scene, every, expected_weights
from rlcredit.oracle.estimate import Estimate, direction
from rlcredit.oracle.ground import gradients
from rlcredit.oracle.judge import make_measured, make_reference
from rlcredit.policy import Architecture, transformer
from rlcredit.tasks import TASKS
from rlcredit.testing.subject import Subject
from rlcredit.testing.verdict import Verdict
from rlcredit.types import PyTree, Sampling

SAMPLES = 3
UPHILL = 0.1  # least cosine with the exact gradient
UNBIASED = 1e-4  # most relative bias, of float32 sums


def uphill(subject: Subject) -> Verdict:
    """The expected update has a positive cosine with the exact gradient of the objective."""
    seen = _direction(subject)
    if seen is None:
        return _cannot_measure(subject)
    cosine = seen[1].value
    return Verdict("passed" if cosine > UPHILL else "failed", f"cosine {cosine:.3f}")


def unbiased(subject: Subject) -> Verdict:
    """The expected update is the exact gradient, where the docstring says `unbiased`."""
    seen = _direction(subject)
    if seen is None:
        return _cannot_measure(subject)
    bias = seen[0].value
    if "unbiased" not in subject.documentation:
        return Verdict("not claimed", f"relative bias {bias:.3f}")
    return Verdict("passed" if bias < UNBIASED else "failed", f"relative bias {bias:.2g}")


def small_ground(preset: str, problems: int, filler: int) -> tuple[Context, oracle.Ground, PyTree]:
    """Chains of `bifurcation` under a small random network, and all that is exact about them."""
    task = TASKS["bifurcation"](preset=preset, filler=filler, delay=filler)
    policy = transformer(
        Architecture(len(task.vocabulary), 16, 1, heads=2, kv_heads=1, value_head="shared")
    )
    init_key, ref_key = jax.random.split(jax.random.key(0))
    params, ref_params = (jax.jit(policy.init)(key) for key in (init_key, ref_key))
    context = Context(policy, params, ref_params, task, Sampling(legal=True))
    drawn = task.held_out(problems, 0)
    return context, oracle.prepare(context, drawn), drawn


_four_decisions = functools.cache(lambda: small_ground("delayed_effect", 1, 0)[:2])


@functools.lru_cache(maxsize=8)
def _direction_of(rule: credit.Bound) -> tuple[Estimate, Estimate]:
    """(bias, cosine) of the rule's expected update, in every company."""
    context, ground = _four_decisions()
    evidence = make_measured(rule.evidence, context, "exact", EVIDENCE)(ground, jax.random.key(0))
    method = Method(rule, None, Growth(), context.probing)
    reference = make_reference(rule, context)(ground)
    scene = Scene(ground._replace(context=None), evidence, reference, jnp.float32(1))
    company = every(ground, SAMPLES)
    expect = jax.jit(functools.partial(expected_weights, method, across=False))
    weight = jnp.einsum("jn,jne->ne", company.weight, expect(scene, company.batch))
    mean, truth = (np.asarray(g, float) for g in (gradients(ground, weight), ground.gradient))
    return direction(mean[None], truth)


def _direction(subject: Subject) -> tuple[Estimate, Estimate] | None:
    """None where the rule asks for evidence that nobody but its author can measure."""
    if set(subject.rule.evidence) - EVIDENCE.keys():
        return None
    return _direction_of(subject.rule)


def _cannot_measure(subject: Subject) -> Verdict:
    names = ", ".join(sorted(set(subject.rule.evidence) - EVIDENCE.keys()))
    return Verdict("not checked", f"{names} cannot be measured here")
