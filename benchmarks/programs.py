"""The programs that `targets.py` compiles: every kernel, the rollout, the whole training step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rlcredit import sharding, train, update
from rlcredit.kernels import token_log_prob
from rlcredit.kernels.chunked import token_log_prob_chunked
from rlcredit.kernels.gae import gae
from rlcredit.kernels.head_gpu import token_log_prob_gpu
from rlcredit.kernels.head_tpu import token_log_prob_tpu
from rlcredit.kernels.platform import compiling_for
from rlcredit.kernels.policy_loss import policy_loss
from rlcredit.kernels.recurrence import reverse_affine
from rlcredit.kernels.recurrence_gpu import scan_gpu
from rlcredit.kernels.recurrence_pairs import gae_by, reverse_affine_by
from rlcredit.kernels.recurrence_tpu import scan_tpu
from rlcredit.kernels.token_log_prob import log_prob_and_entropy, logits
from rlcredit.losses.grpo import grpo
from rlcredit.rollout import draw_problems, sample
from rlcredit.types import Array, PyTree, Task

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
VOCABULARY, HIDDEN = 151_936, 256
ROWS, STEPS = 4096, 1024
SMALL = {
    "width": 32, "layers": 1, "problems": 8, "samples": 4, "lanes": 2, "minibatches": 1,
    "accumulate": 1,
}  # fmt: skip


class Made(NamedTuple):
    """A jitted function and the shapes of its arguments."""

    function: Callable
    arguments: tuple[PyTree, ...]
    cache: jax.ShapeDtypeStruct | None = None  # a leaf of the KV cache


class Program(NamedTuple):
    """What to compile."""

    make: Callable[[Mesh], Made]
    devices: int = 1
    naive: str | None = None  # the program that its temporary bytes are compared with
    platform: str | None = None  # "tpu" or "gpu", for a kernel that is for one of them


def _shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def objective(
    log_prob: Array,
    entropy: Array,
    old_log_prob: Array,
    ref_log_prob: Array,
    advantage: Array,
    weight: Array,
) -> Array:
    """The clipped surrogate with a k3 penalty to the reference and an entropy bonus."""
    loss, _ = grpo(log_prob, old_log_prob, advantage, weight, ref_log_prob=ref_log_prob)
    return loss - 0.01 * jnp.sum(weight * entropy)


def _head(token_log_prob: Callable, count: int, dtype: str, _: Mesh) -> Made:
    """`objective` and its gradient from hidden states, through one of the fused heads."""

    def loss(hidden: Array, head: Array, tokens: Array, *of_tokens: Array) -> Array:
        return objective(*token_log_prob(hidden, head, tokens), *of_tokens)

    operands = (_shape(count, HIDDEN, dtype=dtype), _shape(HIDDEN, VOCABULARY, dtype=dtype))
    of_tokens = (_shape(count, dtype=jnp.int32), *[_shape(count)] * 4)
    return Made(jax.jit(jax.value_and_grad(loss, (0, 1))), (*operands, *of_tokens))


def _naive_head(hidden: Array, head: Array, tokens: Array) -> tuple[Array, Array]:
    return log_prob_and_entropy(logits(hidden, head), tokens)


def _policy_loss(from_logits: Callable, vocabulary: int, _: Mesh) -> Made:
    """`objective` and its gradient from logits [65536, V], which are written over."""
    loss = jax.value_and_grad(from_logits)
    count = 65_536
    of_tokens = (_shape(count, dtype=jnp.int32), *[_shape(count)] * 4)
    return Made(jax.jit(loss, donate_argnums=0), (_shape(count, vocabulary), *of_tokens))


def _naive_policy_loss(logits: Array, tokens: Array, *of_tokens: Array) -> Array:
    return objective(*log_prob_and_entropy(logits, tokens), *of_tokens)


def _fused_policy_loss(platform: str, logits: Array, tokens: Array, *of_tokens: Array) -> Array:
    names = ("old_log_prob", "ref_log_prob", "advantage", "weight")
    per_token = dict(zip(names, of_tokens, strict=True))
    with compiling_for(platform):
        return policy_loss(objective, logits, tokens, per_token)[0]


def _affine(reverse_affine: Callable, _: Mesh) -> Made:
    arguments = (_shape(ROWS, STEPS), _shape(ROWS, STEPS), _shape(ROWS))
    return Made(jax.jit(reverse_affine), arguments)


def _gae(gae: Callable, _: Mesh) -> Made:
    wide = _shape(ROWS, STEPS)
    arguments = (wide, wide, _shape(ROWS, STEPS, dtype=bool), _shape(ROWS))
    return Made(jax.jit(functools.partial(gae, discount=0.99, lambda_=0.95)), arguments)


@functools.cache
def _experiment(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXPERIMENTS / f"{name}.py"))


def _setting(name: str, size: str, **changed: Any) -> tuple[train.Training, Task]:
    """Training and task of an experiment: its preset `accelerator`, or `small`."""
    module = _experiment(name)
    config = module["PRESETS"]["accelerator" if size == "accelerator" else "cpu"]
    reward = ("warmer",) if name == "maze" else ()
    own = SMALL if size == "small" else {}
    training = dataclasses.replace(config.training, **own, **changed)
    return training, module["make_task"](config, *reward)


def _rollout(name: str, size: str, mesh: Mesh) -> Made:
    """Sampling the episodes of a step, problems drawn and all."""
    training, task = _setting(name, size)
    parts = train.build(training, task)
    how = {"samples": training.samples, "sampling": parts.sampling}

    def run(params: PyTree, key: Array) -> PyTree:
        drawn = draw_problems(task, key, training.problems)
        where = train.layout(training, mesh)
        return sample(parts.policy, params, task, *drawn, layout=where, **how)

    key = jax.eval_shape(lambda: jax.random.key(0))
    slots = task.prompt_capacity + task.horizon
    cache = jax.eval_shape(lambda: parts.policy.init_cache(training.lanes, slots))
    params = jax.eval_shape(parts.policy.init, key)
    return Made(jax.jit(run), (params, key), jax.tree.leaves(cache)[0])


def _step(advantage: str, size: str, mesh: Mesh) -> Made:
    """The training step of the arithmetic experiment, as `train.reinforce` jits it."""
    training, task = _setting("arithmetic", size, advantage=advantage)
    parts = train.build(training, task)
    optimizer = update.guarded(update.inverse_sqrt(training.learning_rate))
    collect = train.make_collect(training, parts, mesh)
    step = train.make_train_step(training, parts, collect, optimizer)

    def initial() -> PyTree:
        key = jax.random.key(0)
        return update.initial_state(parts.policy.init(key), optimizer, key)

    return Made(sharding.jit_step(mesh, step), (jax.eval_shape(initial),))


# Form -> (function, the platform that it is for; None for both).
HEADS = {
    "naive": (_naive_head, None),
    "chunked": (token_log_prob_chunked, None),
    "dispatched": (token_log_prob, None),
    "tpu kernel": (token_log_prob_tpu, "tpu"),
    "gpu kernel": (token_log_prob_gpu, "gpu"),
}
POLICY_LOSSES = {
    "naive": (_naive_policy_loss, None),
    "xla": (functools.partial(_fused_policy_loss, "cpu"), None),
    "tpu kernel": (functools.partial(_fused_policy_loss, "tpu"), "tpu"),
    "gpu kernel": (functools.partial(_fused_policy_loss, "gpu"), "gpu"),
}
RECURRENCES = {
    "dispatched": (reverse_affine, gae, None),
    **{
        f"{platform} kernel": (
            functools.partial(reverse_affine_by, scan),
            functools.partial(gae_by, scan),
            platform,
        )
        for platform, scan in (("tpu", scan_tpu), ("gpu", scan_gpu))
    },
}


def programs() -> dict[str, Program]:
    """All of them by name, each after the one that it is compared with."""
    return _heads() | _policy_losses() | _recurrences() | _rollouts_and_steps()


def _heads() -> dict[str, Program]:
    table = {}
    for dtype, count in itertools.product(("float32", "bfloat16"), (512, 2048)):
        shape = f"{dtype}, N={count}"
        for form, (function, platform) in HEADS.items():
            if (platform, dtype) == ("gpu", "float32"):
                continue  # the kernel has bfloat16 operands
            naive = None if form == "naive" else f"head naive, {shape}"
            make = functools.partial(_head, function, count, dtype)
            table[f"head {form}, {shape}"] = Program(make, 1, naive, platform)
    return table


def _policy_losses() -> dict[str, Program]:
    table = {}
    for vocabulary in (64, 1024):
        for form, (function, platform) in POLICY_LOSSES.items():
            naive = None if form == "naive" else f"policy loss naive, V={vocabulary}"
            make = functools.partial(_policy_loss, function, vocabulary)
            table[f"policy loss {form}, V={vocabulary}"] = Program(make, 1, naive, platform)
    return table


def _recurrences() -> dict[str, Program]:
    table = {}
    for form, (affine, advantage, platform) in RECURRENCES.items():
        make = functools.partial(_affine, affine)
        table[f"reverse_affine {form}"] = Program(make, platform=platform)
        table[f"gae {form}"] = Program(functools.partial(_gae, advantage), platform=platform)
    return table


def _rollouts_and_steps() -> dict[str, Program]:
    table = {}
    for size in ("small", "accelerator"):
        for task in ("arithmetic", "maze"):
            table[f"rollout {task}, {size}"] = Program(functools.partial(_rollout, task, size))
        for rule, devices in itertools.product(("grpo", "gae"), (1, 4, 8)):
            make = functools.partial(_step, rule, size)
            table[f"step {rule}, {size}, devices={devices}"] = Program(make, devices)
    return table
