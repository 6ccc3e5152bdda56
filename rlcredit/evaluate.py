"""Success on held-out problems.

pass@1 and pass@k are separate curves: a policy that concentrates on what it already does gains the
one and can lose the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlcredit import masked, recurrence
from rlcredit.kernels.token_log_prob import logits
from rlcredit.rollout import ALL_AT_ONCE, sample
from rlcredit.types import (
    Array,
    InputError,
    Layout,
    Policy,
    PyTree,
    Rollout,
    Sampling,
    Task,
    TrainState,
)


class Report(NamedTuple):
    """Means over the held-out problems."""

    pass_at_1: Array
    pass_at_k: Array
    greedy: Array  # share of problems that the greedy answer solves
    entropy: Array  # nats per chosen token
    kl: Array  # nats per chosen token, KL(policy || reference) over the whole vocabulary
    mean_length: Array  # chosen tokens per episode
    feedback: Array  # [F] what the episodes' last tokens were given, by channel of the task


def pass_at_k(correct: Array, samples: int, k: int) -> Array:
    """1 - C(n - c, k) / C(n, k): the chance that k of the n samples, c of them right, hold a right
    one. Unbiased for the success of k independent samples. Chen et al., 2021, arXiv 2107.03374.

    As a product of n - c - i over n - i for i < k, exact where binomials overflow; the factor is 0
    as soon as k > n - c.

    Args: correct: [...] c; samples: n.
    Returns: [...] float32.
    Raises: InputError if k is not in 1..n.
    """
    if not 1 <= k <= samples:
        raise InputError(f"pass@{k} needs 1 <= k <= samples, there are {samples}")
    drawn = jnp.arange(k, dtype=jnp.float32)
    wrong = jnp.asarray(samples - correct, jnp.float32)[..., None]
    drawn = drawn.reshape((1,) * (wrong.ndim - 1) + (k,))
    fail = jnp.maximum(wrong - drawn, 0) / (samples - drawn)
    return 1 - jnp.prod(fail, axis=-1)


def make_evaluate(
    policy: Policy,
    task: Task,
    *,
    problems: int,
    samples: int,
    k: int,
    sampling: Sampling,
    seed: int = 0,
    layout: Layout = ALL_AT_ONCE,
) -> Callable[[PyTree, PyTree], Report]:
    """A pure `evaluate(params, ref_params) -> Report`; `seed` fixes the problems and the keys.

    Raises: InputError if there are not that many held-out problems, or k > samples.
    """
    if k > samples:
        raise InputError(f"pass@{k} needs at least {k} samples a problem, got {samples}")
    held_out = task.held_out(problems, seed)
    keys = jax.random.split(jax.random.key(seed), problems)

    def evaluate(params: PyTree, ref_params: PyTree) -> Report:
        def episodes(count: int, how: Sampling) -> Rollout:
            where = {"samples": count, "sampling": how, "layout": layout}
            return sample(policy, params, task, held_out, keys, **where)[0]

        sampled = episodes(samples, sampling)
        greedy = episodes(1, sampling._replace(greedy=True))
        correct = jnp.sum(_solved(sampled), axis=1)
        entropy, kl = _divergence(policy, params, ref_params, sampled, sampling)
        return Report(
            pass_at_1=jnp.mean(pass_at_k(correct, samples, 1)),
            pass_at_k=jnp.mean(pass_at_k(correct, samples, k)),
            greedy=jnp.mean(_solved(greedy), dtype=jnp.float32),
            entropy=entropy,
            kl=kl,
            mean_length=jnp.mean(masked.count(sampled.mask, axis=-1)),
            feedback=_last_feedback(sampled),
        )

    return evaluate


def make_judge(
    policy: Policy,
    task: Task,
    sampling: Sampling,
    layout: Layout,
    *,
    k: int = 8,
    problems: int = 256,
) -> Callable[[TrainState], dict[str, float]]:
    """`evaluate` of a state, jitted and as plain numbers under the names that logs use; a channel
    of feedback is `feedback/NAME`.

    Takes 2k samples of each problem, so that pass@k has less variance than from k alone.
    """
    sizes = {"problems": problems, "samples": 2 * k, "k": k}
    evaluate = jax.jit(make_evaluate(policy, task, **sizes, sampling=sampling, layout=layout))
    names = ("pass@1", f"pass@{k}", "greedy", "entropy", "kl", "mean_length")

    def judge(state: TrainState) -> dict[str, float]:
        *numbers, feedback = jax.device_get(evaluate(state.params, state.ref_params))
        channels = (f"feedback/{name}" for name in task.feedback)
        named = zip((*names, *channels), (*numbers, *feedback), strict=True)
        return {name: float(value) for name, value in named}

    return judge


def trade_off(before: dict[str, float], after: dict[str, float], k: int) -> str | None:
    """A sentence where one of pass@1 and pass@k rose while the other fell, else None."""
    names = ("pass@1", f"pass@{k}")
    change = {name: after[name] - before[name] for name in names}
    rose, fell = max(names, key=change.get), min(names, key=change.get)
    if not change[rose] > 0 > change[fell]:
        return None
    return f"{rose} rose by {change[rose]:.3f} while {fell} fell by {-change[fell]:.3f}"


def _solved(rollout: Rollout) -> Array:
    """[N, K] bool: the return is positive."""
    return masked.sum(rollout.reward, rollout.mask, axis=-1) > 0


def _last_feedback(rollout: Rollout) -> Array:
    """[F] mean over the episodes of the feedback at their last chosen token."""
    if rollout.feedback is None:
        return jnp.zeros(0)
    last = recurrence.last_chosen(rollout.mask)[..., None]
    return jnp.mean(jnp.sum(jnp.where(last, rollout.feedback, 0), axis=2), axis=(0, 1))


def _divergence(policy, params, ref_params, rollout, sampling) -> tuple[Array, Array]:
    """Mean entropy and KL to the reference, exact over the vocabulary, of the chosen tokens."""
    rows = rollout.tokens.reshape(-1, rollout.tokens.shape[-1])
    mask = rollout.mask.reshape(rows.shape)[:, 1:]
    legal = rollout.legal.reshape(*rows.shape, -1)[:, 1:] if sampling.legal else None

    def log_probs(weights: PyTree) -> Array:
        hidden, _ = policy.forward(weights, rows)
        z = logits(hidden[:, :-1], policy.head(weights), sampling.temperature, legal)
        return jax.nn.log_softmax(z)

    own, reference = log_probs(params), log_probs(ref_params)
    entropy = -jnp.sum(jnp.exp(own) * own, axis=-1)
    kl = jnp.sum(jnp.exp(own) * (own - reference), axis=-1)
    return masked.mean(entropy, mask), masked.mean(kl, mask)
