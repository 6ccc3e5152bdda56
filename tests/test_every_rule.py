"""Every credit rule and every loss trains for two steps."""

import dataclasses

import jax
import numpy as np
import pytest
import stubs

from rlcredit import sharding, train, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.losses import LOSSES
from rlcredit.tasks import TASKS
from rlcredit.train import Training

SMALL = Training(width=16, layers=1, problems=4, samples=2, minibatches=1, accumulate=1)
WORKED = TASKS["arithmetic"](digits=1, operands=3)
CHAIN = TASKS["bifurcation"](preset="recovery")
ANSWERS_ONLY = TASKS["arithmetic"](digits=1, operands=3, worked_steps=False)
RUNS = [
    {"advantage": "gae", "critic": "shared", "epochs": 2},
    {"advantage": "td_lambda", "advantage_kwargs": ("lambda_=0.9", "actor_lambda=0.95")},
    {"advantage": "remax", "loss": "cispo", "legal": True},
    {"advantage": "reinforce_pp", "loss": "gspo", "whiten": True, "task": ANSWERS_ONLY},
    {"advantage": "rloo", "loss": "grpo", "reduce": "sequence_mean"},
    {"advantage": "dr_grpo", "loss": "policy_gradient", "kl_coef": 0.1, "temperature": 0.7},
    {"advantage": "reinforce", "accumulate": 2, "dtype": "bfloat16", "reduce": "prompt_mean"},
    {"advantage": "reinforce_baseline", "minibatches": 2, "reduce": "constant_length"},
    {"advantage": "grpo", "loss_kwargs": ("clip_high=0.28", "dual_clip=3")},
    {"advantage": "gigpo", "advantage_kwargs": ("statistics=episodes", "omega=0.5")},
    {"advantage": "turn_loo"},
    {"advantage": "exact", "legal": True, "task": CHAIN},
]


def test_no_rule_and_no_loss_is_left_out():
    assert {run["advantage"] for run in RUNS} >= ADVANTAGES.keys()
    assert {run.get("loss", "ppo") for run in RUNS} == LOSSES.keys()


@pytest.mark.parametrize("settings", RUNS, ids=lambda settings: settings["advantage"])
def test_every_rule_trains(settings):
    own = dict(settings)
    task = own.pop("task", WORKED)
    training = dataclasses.replace(SMALL, **own)
    parts = train.build(training, task)
    collect = train.make_collect(training, parts, sharding.make_mesh(jax.devices()[:1]))
    optimizer = update.guarded(1e-3)
    step = stubs.quick_jit(train.make_train_step(training, parts, collect, optimizer))
    params = stubs.parameters(parts.policy, seed=0)
    state = update.initial_state(params, optimizer, jax.random.key(1))
    for _ in range(2):
        state, metrics = step(state)
        assert all(np.isfinite(value) for value in metrics.values())
    assert state.step == 2 and metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0 or metrics["reward_std"] == 0
