"""Every credit rule and every loss trains for two steps.

Rules share what they have in common: sampling, evidence and the update are compiled once for all
that ask for the same. `test_train_step` and the tests of the scripts have the step as one program.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import stubs

from rlcredit import credit, sharding, train, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Probing
from rlcredit.losses import LOSSES
from rlcredit.tasks import TASKS
from rlcredit.train import Training

SMALL = Training(
    width=16, layers=1, problems=4, samples=2, minibatches=1, accumulate=1,
    probing=Probing(most_units=3, continuations=2, players=2),
)  # fmt: skip
ARITHMETIC = TASKS["arithmetic"](digits=1, operands=3)
CHAIN = TASKS["bifurcation"](preset="recovery")
ANSWERS_ONLY = TASKS["arithmetic"](digits=1, operands=3, worked_steps=False)
TREES = {"branching": (2,), "cut": "every:2"}
OWN_SETTINGS = {
    "gae": {"critic": "shared", "epochs": 2},
    "td_lambda": {"advantage_kwargs": ("lambda_=0.9", "actor_lambda=0.95")},
    "remax": {"loss": "cispo", "legal": True},
    "reinforce_pp": {"loss": "gspo", "whiten": True, "task": ANSWERS_ONLY},
    "rloo": {"loss": "grpo", "reduce": "sequence_mean"},
    "dr_grpo": {"loss": "policy_gradient", "kl_coef": 0.1, "temperature": 0.7},
    "reinforce": {"accumulate": 2, "dtype": "bfloat16", "reduce": "prompt_mean"},
    "reinforce_baseline": {"minibatches": 2, "reduce": "constant_length"},
    "grpo": {"loss_kwargs": ("clip_high=0.28", "dual_clip=3"), "drop_equal": True},
    "gigpo": {"advantage_kwargs": ("statistics=episodes", "omega=0.5")},
    "exact": {"legal": True, "task": CHAIN},
    "hca": {"legal": True, "task": CHAIN},
    "red": {"legal": True, "task": CHAIN},
    "turn_ppo": {"loss": "sorl"},
    **dict.fromkeys(("spo_tree", "treerl", "treerpo", "tree_grpo", "carl", "c3"), TREES),
}


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """What the step is made of is jitted by itself, once for all rules that have it in common."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "transformer", functools.cache(train.transformer))
        for name in ("sample", "grow", "draw_problems"):
            patch.setattr(train, name, jitted(getattr(train, name)))
        patch.setattr(credit, "measure", jitted(credit.measure))
        patch.setattr(update, "make_update", compiled_update(update.make_update))
        yield


def jitted(function):
    """The function of the arrays among its arguments, compiled once for the same other ones."""

    @functools.cache
    def compiled(structure, others):
        def call(arrays):
            arguments = iter(arrays)
            leaves = [next(arguments) if other is None else other for other in others]
            own, named = jax.tree.unflatten(structure, leaves)
            return function(*own, **named)

        return stubs.quick_jit(call)

    def call(*arguments, **named):
        leaves, structure = jax.tree.flatten((arguments, named))
        is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
        others = tuple(None if a else leaf for leaf, a in zip(leaves, is_array, strict=True))
        return compiled(structure, others)([x for x, a in zip(leaves, is_array, strict=True) if a])

    return call


def compiled_update(make_update):
    known = {}

    def make(policy, optimizer, objective, schedule, sampling):
        loss = (objective.loss.name, repr(objective.loss.function.keywords))
        key = (policy, loss, objective._replace(loss=None), schedule, sampling)
        if key not in known:
            whole = make_update(policy, optimizer, objective, schedule, sampling)
            known[key] = stubs.quick_jit(whole)
        return known[key]

    return make


def test_no_loss_is_left_out():
    assert {own.get("loss", "ppo") for own in OWN_SETTINGS.values()} == LOSSES.keys()


@pytest.mark.parametrize("rule", ADVANTAGES)
def test_every_rule_trains(rule):
    own = dict(OWN_SETTINGS.get(rule, {}))
    task = own.pop("task", ARITHMETIC)
    training = dataclasses.replace(SMALL, advantage=rule, **own)
    parts = train.build(training, task)
    collect = train.make_collect(training, parts, sharding.make_mesh(jax.devices()[:1]))
    optimizer = update.guarded(1e-3)
    step = train.make_train_step(training, parts, collect, optimizer)
    params = stubs.parameters(parts.policy, seed=0)
    state = update.initial_state(params, optimizer, jax.random.key(1))
    for _ in range(2):
        state, metrics = step(state)
        assert all(np.isfinite(value) for value in metrics.values())
    assert state.step == 2 and metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0 or metrics["reward_std"] == 0
