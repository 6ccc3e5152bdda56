"""The settings of a `bifurcation` chain, the presets, and what follows from them alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlcredit.types import InputError

SERIAL_DIGITS = 3
MOST_BRANCHES = 26
MOST_PATHS = 2**48  # numbers of held-out problems stay below 2**63


class Chain(NamedTuple):
    """The settings of a chain; see `bifurcation`."""

    gaps: tuple[float, ...] = (0.4, 0.4)
    base: float = 0.1
    branches: int = 2
    recoverable: bool = False
    filler: int = 1
    delay: int = 1
    alias: float = 0.0
    chance: bool = False


PRESETS = {
    "insight": Chain(gaps=(0.0, 0.0, 0.8, 0.0), base=0.1, branches=8),
    "two_approaches": Chain(gaps=(0.96,), base=0.02),
    "recovery": Chain(gaps=(1.0, 0.0), base=0.0, recoverable=True),
    "delayed_effect": Chain(gaps=(0.6, 0.0, 0.0, 0.0), base=0.2),
}
FIXED = ("gaps", "base", "branches", "recoverable")  # by a preset; the rest is free


def settle(chain: Chain, preset: str = "") -> Chain:
    """The chain with what the preset fixes; raises as `bifurcation`."""
    if preset:
        if preset not in PRESETS:
            raise InputError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
        fixed = {name: getattr(PRESETS[preset], name) for name in FIXED}
        for name, value in fixed.items():
            given = getattr(chain, name)
            if given not in (value, getattr(Chain(), name)):
                raise InputError(f"{name}={given} contradicts {preset=}, where it is {value}")
        chain = chain._replace(**fixed)
    _check(chain)
    return chain


def prompt_size(chain: Chain) -> int:
    """Tokens of every prompt."""
    return SERIAL_DIGITS + len(chain.gaps) + 1


def response_size(chain: Chain) -> int:
    """Tokens of every episode after its prompt."""
    return len(chain.gaps) * (chain.filler + 1) + chain.delay


def decision_columns(chain: Chain) -> np.ndarray:
    """[decisions] int: where in a row the decisions stand."""
    return prompt_size(chain) - 1 + (chain.filler + 1) * np.arange(1, len(chain.gaps) + 1)


def repairable(chain: Chain) -> np.ndarray:
    """[decisions] the gap of each decision that a good next one can still secure, else 0."""
    return np.append(chain.gaps[:-1], 0) * chain.recoverable


def numbers(gaps: str) -> tuple[float, ...]:
    """`0.4,0.4` as numbers; raises InputError."""
    try:
        return tuple(float(number) for number in gaps.split(","))
    except ValueError as error:
        raise InputError(f"gaps={gaps!r}: write numbers with commas between them") from error


def _check(chain: Chain) -> None:
    chances = {"base": chain.base, "alias": chain.alias}
    chances |= {f"gaps[{i}]": gap for i, gap in enumerate(chain.gaps)}
    for name, value in chances.items():
        if not 0 <= value <= 1:
            raise InputError(f"{name}={value} is not between 0 and 1")
    if not chain.gaps:
        raise InputError("gaps=() leaves bifurcation without a decision")
    if chain.base + sum(chain.gaps) > 1 + 1e-9:
        raise InputError(f"base={chain.base} and gaps={chain.gaps} add up to more than 1")
    if chain.filler < 0 or chain.delay < 0:
        raise InputError(f"filler={chain.filler}, delay={chain.delay}: neither can be negative")
    if not 2 <= chain.branches <= MOST_BRANCHES:
        raise InputError(f"branches={chain.branches} is not from 2 to {MOST_BRANCHES}")
    if chain.branches ** len(chain.gaps) > MOST_PATHS:
        raise InputError(f"branches={chain.branches} to the {len(chain.gaps)} exceed {MOST_PATHS}")
