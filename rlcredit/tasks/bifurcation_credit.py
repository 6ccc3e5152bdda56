"""The true credit of `bifurcation`, in closed form.

For a policy that takes the good branch of decision i with chance `skill[i]`, whatever came before
(1 / branches if it is uniform), and writes filler as it likes. Let good[i] be 1 where the good
branch of decision i was taken, else 0. In a chain that is not recoverable at_stake[i] = gap[i]; in
a recoverable one, with skill[i+1] = 0 for the last decision and gap[-1] = 0 for the first,

    at_stake[i]  = gap[i] * (1 - skill[i+1]) + gap[i-1] * (1 - good[i-1])
    advantage[i] = (good[i] - skill[i]) * at_stake[i]

A filler's advantage is exactly 0. The value is a martingale, it changes by the advantage of each
token alone, so with the chance that a reward of 0 or 1 is drawn with (Doob's decomposition)

    Var(reward) = sum over t of E[advantage[t]^2] + E[success * (1 - success)]
    E[advantage[i]^2] = skill[i] * (1 - skill[i]) * E[at_stake[i]^2]

where the last term of the first line is 0 without `chance`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from rlcredit.tasks.bifurcation import BRANCH, Problem
from rlcredit.tasks.bifurcation_chain import (
    Chain,
    decision_columns,
    prompt_size,
    repairable,
    response_size,
)
from rlcredit.types import Array, InputError


def true_value(
    chain: Chain, problem: Problem, tokens: Array, mask: Array, skill: Sequence[float]
) -> Array:
    """Expected reward before each token of a row, and after the last.

    value[t] = E[reward | tokens[:t]], so value[t + 1] is Q of the token at t, and value[T] of a
    whole row is its success chance.

    Args:
      problem: one; tokens, mask: [T] one row of a rollout.
      skill: [decisions] chances in [0, 1], numbers on the host.
    Returns: [T + 1] float32; prompt and padding repeat the value beside them.
    Raises: InputError if the row or the skill are not those of the chain.
    """
    advantage = _decision_advantage(chain, problem, tokens, mask, skill)
    start = jnp.full(1, start_value(chain, skill), jnp.float32)
    values = jnp.concatenate([start, start + jnp.cumsum(advantage)])
    passed = np.searchsorted(decision_columns(chain), np.arange(tokens.size + 1))
    return values[passed]


def true_advantage(
    chain: Chain, problem: Problem, tokens: Array, mask: Array, skill: Sequence[float]
) -> Array:
    """[T] float32 advantage of each token, 0 off the decisions; arguments as `true_value`."""
    advantage = _decision_advantage(chain, problem, tokens, mask, skill)
    return jnp.zeros(tokens.size).at[decision_columns(chain)].set(advantage)


def decision_mask(chain: Chain) -> np.ndarray:
    """[T] bool: where in every row a decision stands, whether or not it matters."""
    mask = np.zeros(prompt_size(chain) + response_size(chain), bool)
    mask[decision_columns(chain)] = True
    return mask


def start_value(chain: Chain, skill: Sequence[float]) -> float:
    """Expected reward of an episode: base + sum of gap[i] * P(decision i is not lost)."""
    own, _ = _stakes(chain, skill)
    # gap - own is what the next decision secures whatever is chosen here.
    return chain.base + float(np.sum(np.asarray(chain.gaps) - own * (1 - _checked(chain, skill))))


def variance_share(chain: Chain, skill: Sequence[float]) -> np.ndarray:
    """The fraction of the reward's variance that the token at each place of a row carries.

    Returns: [T + 1] float64 that sum to 1; the last is that of the chance drawn after all tokens.
    Raises: InputError if the reward does not vary, or the skill is not that of the chain.
    """
    chances = _checked(chain, skill)
    own, inherited = _stakes(chain, skill)
    slip = 1 - np.append(1, chances[:-1])
    squared_stake = (1 - slip) * own**2 + slip * (own + inherited) ** 2
    variance = np.zeros(prompt_size(chain) + response_size(chain) + 1)
    variance[decision_columns(chain)] = chances * (1 - chances) * squared_stake
    if chain.chance:  # the reward is 0 or 1 and its variance that of a coin
        mean = start_value(chain, skill)
        variance[-1] = max(mean * (1 - mean) - variance.sum(), 0)
    if variance.sum() < 1e-12:
        raise InputError(f"with skill={list(skill)} the reward of {chain} does not vary")
    return variance / variance.sum()


def _decision_advantage(
    chain: Chain, problem: Problem, tokens: Array, mask: Array, skill: Sequence[float]
) -> Array:
    """[decisions] float32; 0 where the row has no token."""
    size = prompt_size(chain) + response_size(chain)
    if tokens.shape != (size,):
        raise InputError(f"a row of this bifurcation is [{size}], got tokens {tokens.shape}")
    columns = decision_columns(chain)
    good = tokens[columns] == BRANCH + problem.good
    slipped = jnp.append(False, ~good[:-1])
    own, inherited = _stakes(chain, skill)
    at_stake = own + jnp.where(slipped, inherited, 0)
    return jnp.where(mask[columns], (good - _checked(chain, skill)) * at_stake, 0)


def _stakes(chain: Chain, skill: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """[decisions] what hangs on each choice of its own gap, and of the one before if that slipped.

    The own part is what the next decision will not repair.
    """
    left = repairable(chain)
    own = np.asarray(chain.gaps) - left * np.append(_checked(chain, skill)[1:], 0)
    return own, np.append(0, left[:-1])


def _checked(chain: Chain, skill: Sequence[float]) -> np.ndarray:
    chances = np.asarray(skill, float)
    if chances.shape != (len(chain.gaps),) or not ((chances >= 0) & (chances <= 1)).all():
        raise InputError(f"skill={skill}: give {len(chain.gaps)} chances between 0 and 1")
    return chances
