"""Generalised advantage estimation by rlax and torchrl, and by a loop over torch tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from contest import Way, absent, compiled, distance
from timing import Program

from peers.threads import torch_ways


def estimators(case, truth: tuple, discount: float, lambda_: float) -> list[Way]:
    """Every peer on `recurrences.Case`; truth: (advantage, returns)."""
    return [
        _rlax(case, truth, discount, lambda_),
        *_in_torch("torchrl loop", _torchrl("", case, discount, lambda_), case, truth),
        *_in_torch("torchrl vec_gae", _torchrl("vec_", case, discount, lambda_), case, truth),
        *_in_torch("loop over tensors", _loop(case, discount, lambda_), case, truth),
    ]


def _rlax(case, truth: tuple, discount: float, lambda_: float) -> Way:
    if gone := absent("rlax", ("rlax",)):
        return gone
    import rlax

    def of_row(reward, goes_on, values):
        return rlax.truncated_generalized_advantage_estimation(reward, goes_on, lambda_, values)

    rows = 1 - case.axis
    of_rows = jax.vmap(of_row, in_axes=rows, out_axes=rows)

    def estimate(reward, value, ends, final):
        values = jnp.concatenate([value, jnp.expand_dims(final, case.axis)], axis=case.axis)
        advantage = of_rows(reward, discount * (1.0 - ends), values)
        return advantage, advantage + value

    program, temporary = compiled(estimate, *case[:4])
    check = functools.partial(distance, truth=truth)
    return Way("rlax", program, ("jax", "jaxlib", "rlax"), temporary, check)


def _in_torch(name: str, make: Callable[[], Program], case, truth: tuple) -> list[Way]:
    packages = ("torchrl", "tensordict") if name.startswith("torchrl") else ()
    if gone := absent(name, ("torch", *packages)):
        return [gone]

    def check(results: tuple) -> float:
        return distance([a.reshape(case.value.shape).numpy() for a in results], truth)

    return torch_ways(name, make(), packages, check)


def _torchrl(kind: str, case, discount: float, lambda_: float) -> Callable[[], Program]:
    """Its functions take [..., T, 1], or the time on another axis."""

    def make() -> Program:
        from torchrl.objectives.value import functional

        estimate = getattr(functional, f"{kind}generalized_advantage_estimate")
        reward, value, ends, following = (a.unsqueeze(-1) for a in _tensors(case))
        given = (value, following, reward, ends, ends)
        return lambda: estimate(discount, lambda_, *given, time_dim=case.axis - 3)

    return make


def _loop(case, discount: float, lambda_: float) -> Callable[[], Program]:
    """A Python loop that keeps a list and stacks it, as trainers of language models have it."""

    def make() -> Program:
        import torch

        reward, value, ends, following = _tensors(case)
        goes_on = (~ends).float()

        def estimate():
            running, backwards = 0.0, []
            for t in reversed(range(case.value.shape[case.axis])):
                at = (t,) if case.axis == 0 else (slice(None), t)
                delta = reward[at] + discount * following[at] * goes_on[at] - value[at]
                running = delta + discount * lambda_ * goes_on[at] * running
                backwards.append(running)
            advantage = torch.stack(backwards[::-1], dim=case.axis)
            return advantage, advantage + value

        return estimate

    return make


def _tensors(case) -> list:
    """reward, value, ends, and the value after each token."""
    import torch

    reward, value, ends, final = (np.array(a) for a in case[:4])
    final = np.expand_dims(final, case.axis)
    later = value[1:] if case.axis == 0 else value[:, 1:]
    following = np.concatenate([later, final], axis=case.axis)
    return [torch.from_numpy(a) for a in (reward, value, ends, following)]
