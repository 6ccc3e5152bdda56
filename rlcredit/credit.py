"""Binds a rule or a loss to its hyperparameters, and collects the evidence that it asks for.

The signature is the declaration: a keyword-only argument without a default is evidence, one with a
default is a hyperparameter. Nothing else has to be registered.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlcredit.evidence import EVIDENCE, Context
from rlcredit.types import Array, InputError, Price, Rollout

Providers = Mapping[str, Callable[[Context, Rollout, Array], tuple[Array, Price]]]


class Bound(NamedTuple):
    """A rule or loss with its hyperparameters filled in."""

    name: str
    function: Callable  # called with its positional arrays and the evidence by name
    evidence: tuple[str, ...]


class Credit(NamedTuple):
    """What a rule made of a rollout."""

    advantage: Array  # [N, K, T] float32, raw; 0 off the mask
    target: Array | None  # [N, K, T] float32 for the critic, where the rule has one


def signature(function: Callable) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(evidence names, hyperparameter defaults) of a rule, loss or task factory."""
    keywords = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    evidence = tuple(p.name for p in keywords if p.default is p.empty)
    return evidence, {p.name: p.default for p in keywords if p.default is not p.empty}


def resolve(name: str, table: Mapping[str, Callable], kind: str) -> Callable:
    """The function called `name` in the table, or `module:function` from the Python path.

    Raises: InputError naming what is unknown and listing what is known.
    """
    if name in table:
        return table[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(table)
        raise InputError(f"unknown {kind} {name!r}; known are {known}, or module:function")
    try:
        function = getattr(importlib.import_module(module_name), attribute, None)
    except (ImportError, TypeError, ValueError) as error:  # the latter two for names like ".m"
        raise InputError(f"{kind} {name!r}: cannot import {module_name}: {error}") from error
    if not callable(function):
        raise InputError(f"{kind} {name!r}: {module_name} has no function {attribute!r}")
    return function


def bind(
    name: str,
    table: Mapping[str, Callable],
    kind: str,
    hyperparameters: Mapping[str, Any] | None = None,
    providers: Providers = EVIDENCE,
) -> Bound:
    """Find a rule or loss, fill in hyperparameters, and check that its evidence can be had.

    Args:
      kind: what to call it in an error ("advantage", "loss").
      hyperparameters: those that differ from the defaults.
    Raises: InputError naming an unknown rule, hyperparameter or evidence.
    """
    function = resolve(name, table, kind)
    evidence, defaults = signature(function)
    given = dict(hyperparameters or {})
    for key in given.keys() - defaults.keys():
        known = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "none"
        raise InputError(f"{kind} {name!r} has no hyperparameter {key!r}; it has {known}")
    for key in evidence:
        if key not in providers:
            known = ", ".join(providers)
            raise InputError(
                f"{kind} {name!r} asks for unknown evidence {key!r}; known are {known}"
            )
    return Bound(name, functools.partial(function, **given), evidence)


def from_flags(
    name: str,
    table: Mapping[str, Callable],
    kind: str,
    pairs: tuple[str, ...],
    providers: Providers = EVIDENCE,
) -> Bound:
    """`bind` for a command line: hyperparameters as NAME=VALUE, of the types of the defaults.

    Raises: InputError as `bind`, and naming a pair that is malformed or of another type.
    """
    defaults = signature(resolve(name, table, kind))[1]
    parsed = dict(_parse(pair, defaults, f"--{kind}-kwargs") for pair in pairs)
    return bind(name, table, kind, parsed, providers)


def _parse(pair: str, defaults: Mapping[str, Any], option: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals:
        raise InputError(f"{option} {pair!r}: write NAME=VALUE")
    kind = type(defaults.get(key, text))
    if kind is type(None):
        raise InputError(f"{option} {pair!r}: a default of None does not say what type it is")
    try:
        return key, _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        raise InputError(f"{option} {pair!r}: {text!r} is not of type {kind.__name__}") from error


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def measure(
    names: tuple[str, ...],
    context: Context,
    rollout: Rollout,
    key: Array,
    providers: Providers = EVIDENCE,
) -> tuple[dict[str, Array], Price]:
    """Each named evidence once, and the price of all together."""
    names = tuple(dict.fromkeys(names))
    collected, total = {}, Price()
    for name, provider_key in zip(names, jax.random.split(key, max(len(names), 1)), strict=False):
        collected[name], price = providers[name](context, rollout, provider_key)
        total = total + price
    return collected, total


def assign(rule: Bound, rollout: Rollout, evidence: Mapping[str, Array]) -> Credit:
    """Apply a rule. No gradient flows through what it returns.

    A rule that returns an advantage alone and asked for `value` has the target advantage + value.

    Raises: InputError naming the rule if what it returns has the wrong shape or dtype.
    """
    wanted = {name: evidence[name] for name in rule.evidence}
    returned = jax.lax.stop_gradient(rule.function(rollout, **wanted))
    pair = returned if isinstance(returned, tuple) else (returned, None)
    if len(pair) != 2:
        raise InputError(f"advantage {rule.name!r} returned {len(pair)} arrays, expected 1 or 2")
    advantage, target = pair
    for label, array in (("advantage", advantage), ("critic target", target)):
        _check_array(rule.name, label, array, rollout)
    if target is not None and "value" not in wanted:
        raise InputError(f"advantage {rule.name!r} has a critic target but does not ask for value")
    if target is None and "value" in wanted:
        value = jax.lax.stop_gradient(wanted["value"][..., :-1])
        target = jnp.where(rollout.mask, advantage + value, 0)
    return Credit(advantage, target)


def check_group_size(
    rule: Bound, samples: int, collect: Callable[[], tuple[Rollout, Mapping[str, Array]]]
) -> None:
    """Refuse one sample a problem for a rule that compares the samples of a problem.

    What a rule compares is seen, not declared: it gives nothing to episodes of different rewards
    where every problem has one.

    Args:
      collect: gives a rollout with that many samples and its evidence; called for samples=1 only.
    Raises: InputError naming the rule.
    """
    if samples > 1:
        return
    rollout, evidence = collect()
    rewards = jax.random.normal(jax.random.key(0), rollout.mask.shape)
    rewarded = rollout._replace(reward=jnp.where(rollout.mask, rewards, 0))
    if not jnp.any(assign(rule, rewarded, evidence).advantage):
        raise InputError(
            f"advantage {rule.name!r} compares the samples of a problem and gives no credit with "
            "samples=1; take 2 or more"
        )


def _check_array(rule: str, label: str, array: Array | None, rollout: Rollout) -> None:
    if array is None and label != "advantage":
        return
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape != rollout.mask.shape or dtype != jnp.float32:
        raise InputError(
            f"advantage {rule!r} returned {label} of shape {shape} and type {dtype}, "
            f"expected {rollout.mask.shape} and float32"
        )
