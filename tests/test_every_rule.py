"""Every credit rule and every loss trains for two steps."""

import dataclasses
import functools
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
import stubs

from rlcredit import sharding, update
from rlcredit.advantages import ADVANTAGES
from rlcredit.losses import LOSSES

EXPERIMENT = runpy.run_path(str(Path(__file__).parent.parent / "experiments" / "arithmetic.py"))
SMALL = dataclasses.replace(
    EXPERIMENT["PRESETS"]["cpu"],
    width=16,
    layers=1,
    problems=4,
    samples=2,
    minibatches=1,
    accumulate=1,
)
RUNS = [
    {"advantage": "gae", "critic": "shared", "epochs": 2},
    {"advantage": "td_lambda", "advantage_kwargs": ("lambda_=0.9", "actor_lambda=0.95")},
    {"advantage": "remax", "loss": "cispo", "legal": True},
    {"advantage": "reinforce_pp", "loss": "gspo", "whiten": True, "worked_steps": False},
    {"advantage": "rloo", "loss": "grpo", "reduce": "sequence_mean"},
    {"advantage": "dr_grpo", "loss": "policy_gradient", "kl_coef": 0.1, "temperature": 0.7},
    {"advantage": "reinforce", "accumulate": 2, "dtype": "bfloat16", "reduce": "prompt_mean"},
    {"advantage": "reinforce_baseline", "minibatches": 2, "reduce": "constant_length"},
    {"advantage": "grpo", "loss_kwargs": ("clip_high=0.28", "dual_clip=3")},
]


def test_no_rule_and_no_loss_is_left_out():
    assert {run["advantage"] for run in RUNS} >= ADVANTAGES.keys()
    assert {run.get("loss", "ppo") for run in RUNS} == LOSSES.keys()


@pytest.mark.parametrize("settings", RUNS, ids=lambda settings: settings["advantage"])
def test_every_rule_trains(settings):
    config = dataclasses.replace(SMALL, **settings)
    parts = EXPERIMENT["build"](config)
    mesh = sharding.make_mesh(jax.devices()[:1])
    place = functools.partial(sharding.over_problems, mesh)
    collect = EXPERIMENT["make_collect"](config, parts, place)
    optimizer = update.guarded(1e-3)
    step = stubs.quick_jit(EXPERIMENT["make_train_step"](config, parts, collect, optimizer))
    params = jax.jit(parts.policy.init)(jax.random.key(0))
    state = update.initial_state(params, optimizer, jax.random.key(1))
    for _ in range(2):
        state, metrics = step(state)
        assert all(np.isfinite(value) for value in metrics.values())
    assert state.step == 2 and metrics["skipped_updates"] == 0
    assert metrics["grad_norm"] > 0 or metrics["reward_std"] == 0
