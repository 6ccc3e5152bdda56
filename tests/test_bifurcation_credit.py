"""The closed-form credit of bifurcation is that of an enumeration of all legal episodes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit

from rlcredit.tasks.bifurcation import bifurcation
from rlcredit.tasks.bifurcation_chain import PRESETS, Chain, settle
from rlcredit.tasks.bifurcation_credit import (
    decision_mask,
    start_value,
    true_advantage,
    true_value,
    variance_share,
)
from rlcredit.types import InputError

LETTERS, FILLERS = "ABCDEFGH", ".,"
CHAINS = {
    "plain": Chain(),
    "unequal": Chain(gaps=(0.1, 0.3, 0.25), base=0.05, branches=3, filler=0, delay=2),
    "equal-sums": Chain(gaps=(0.1, 0.2, 0.3), base=0.0, delay=0),
    "recoverable": Chain(gaps=(0.3, 0.2, 0.4), recoverable=True),
    # good-bad-bad and bad-bad-good have secured the same, and only the first has a loss to repair
    "pending": Chain(gaps=(0.3, 0.1, 0.2, 0.05), recoverable=True, filler=0),
    "recoverable-3": Chain(gaps=(0.25, 0.35, 0.15), branches=3, recoverable=True, delay=0),
    "coin": Chain(gaps=(0.3, 0.4), recoverable=True, chance=True, filler=2, delay=0),
    "insight": PRESETS["insight"]._replace(filler=0),
    "two_approaches": PRESETS["two_approaches"]._replace(chance=True),
    "recovery": PRESETS["recovery"],
    "delayed_effect": PRESETS["delayed_effect"],
}
EVERY = pytest.mark.parametrize("name", CHAINS)


def skills(chain):
    """The uniform policy's, and a skewed one."""
    decisions = len(chain.gaps)
    skewed = np.random.default_rng(decisions).uniform(0.05, 0.95, decisions)
    return [np.full(decisions, 1 / chain.branches), skewed]


def success(chain, good):
    """The rules, one decision after the other."""
    chance = chain.base
    for i, gap in enumerate(chain.gaps):
        repaired = chain.recoverable and i + 1 < len(good) and good[i + 1]
        if good[i] or repaired:
            chance += gap
    return chance


class Enumeration:
    """Every legal episode of one problem, and its success by the rules.

    `success` and what is made of it have one axis for each token, so that a prefix is an index.
    """

    def __init__(self, chain):
        self.chain, self.task = chain, bifurcation(**chain._asdict())
        self.problem = jax.tree.map(lambda leaf: leaf[0], self.task.held_out(1, 4))
        kinds = ("f" * chain.filler + "d") * len(chain.gaps) + "f" * chain.delay
        good = iter(LETTERS[branch] for branch in self.problem.good)
        self.letters = [next(good) if kind == "d" else None for kind in kinds]
        branches = LETTERS[: chain.branches]
        texts = list(itertools.product(*(branches if kind == "d" else FILLERS for kind in kinds)))
        self.size, self.shape = len(kinds), tuple(chain.branches if k == "d" else 2 for k in kinds)
        self.tokens = np.asarray([list(map(self.task.vocabulary.index, text)) for text in texts])
        outcomes = [
            success(
                chain, [c == letter for c, letter in zip(text, self.letters, strict=True) if letter]
            )
            for text in texts
        ]
        self.success = np.asarray(outcomes).reshape(self.shape)

    def credit(self, outcome, skill):
        """Values before each token and after the last, and each token's chance after its prefix."""
        weights = list(self._weights(skill))
        values = [outcome]
        for weight in reversed(weights):
            values.insert(0, (values[0] * weight).sum(axis=-1))
        return values, weights

    def _weights(self, skill):
        """[shape[:t + 1]] of token t; fillers follow a policy that depends on all before."""
        rng, skill = np.random.default_rng(0), iter(skill)
        for t, (letter, options) in enumerate(zip(self.letters, self.shape, strict=True)):
            if letter:
                chance = next(skill)
                row = np.full(options, (1 - chance) / (options - 1))
                row[LETTERS.index(letter)] = chance
                yield np.broadcast_to(row, self.shape[: t + 1])
            else:
                first = rng.uniform(0.1, 0.9, self.shape[:t])
                yield np.stack([first, 1 - first], axis=-1)

    @functools.cached_property
    def folds(self):
        """Rewards [n, size], fingerprints and potentials [n, size + 1]; success is paid itself."""
        task = bifurcation(**self.chain._replace(chance=False)._asdict())

        def fold(tokens):
            def look(state):
                return task.fingerprint(self.problem, state), task.potential(self.problem, state)

            def advance(state, token):
                after = task.step(self.problem, state, token, None)
                return after.state, (after.reward, *look(state))

            last, (reward, *seen) = jax.lax.scan(advance, task.start(self.problem), tokens)
            return reward, *map(jnp.append, seen, look(last))

        return [np.asarray(leaf) for leaf in quick_jit(jax.vmap(fold))(self.tokens)]

    def rows(self):
        """tokens [n, T] with the prompt, mask [T]."""
        prompt = np.asarray(self.task.prompt(self.problem)[0])
        prompts = np.broadcast_to(prompt, (len(self.tokens), prompt.size))
        rows = np.concatenate([prompts, self.tokens], axis=1)
        return rows, np.arange(rows.shape[1]) >= prompt.size


@functools.cache
def enumeration(name):
    return Enumeration(CHAINS[name])


@EVERY
def test_variance_is_the_sum_of_squared_advantages_and_shares_are_the_closed_form(name):
    every = enumeration(name)
    for skill in skills(every.chain):
        values, weights = every.credit(every.success, skill)
        expected, prefix = [], np.ones(())
        for value, after, weight in zip(values[:-1], values[1:], weights, strict=True):
            advantage = after - value[..., None]
            np.testing.assert_allclose((advantage * weight).sum(axis=-1), 0, atol=1e-14)
            prefix = prefix[..., None] * weight
            expected.append((prefix * advantage**2).sum())
        coin = (prefix * every.success * (1 - every.success)).sum() * every.chain.chance
        mean = (prefix * every.success).sum()
        square = every.success if every.chain.chance else every.success**2  # 0 and 1 are theirs
        variance = (prefix * square).sum() - mean**2
        assert sum(expected) + coin == pytest.approx(variance, abs=1e-14)

        share = variance_share(every.chain, skill)
        prompt = every.task.prompt_capacity
        np.testing.assert_allclose(share[prompt:], [*expected, coin] / variance, atol=1e-12)
        assert share.sum() == pytest.approx(1, abs=1e-12)
        assert not share[:-1][~decision_mask(every.chain)].any()  # exactly
        assert start_value(every.chain, skill) == pytest.approx(mean, abs=1e-12)


@EVERY
def test_values_and_advantages_are_those_of_the_steps(name):
    every = enumeration(name)
    reward, (rows, mask) = every.folds[0], every.rows()
    assert not reward[:, :-1].any()
    np.testing.assert_allclose(reward[:, -1], every.success.ravel(), atol=1e-6)
    decisions, both = decision_mask(every.chain), skills(every.chain)

    def closed(tokens):
        row = (every.chain, every.problem, tokens, jnp.asarray(mask))
        return [(true_value(*row, skill), true_advantage(*row, skill)) for skill in both]

    for skill, credit in zip(both, quick_jit(jax.vmap(closed))(rows), strict=True):
        values, _ = every.credit(reward[:, -1].reshape(every.shape).astype(float), skill)
        columns = [np.repeat(v.ravel(), every.success.size // v.size) for v in values]
        expected = np.stack([columns[0]] * every.task.prompt_capacity + columns, axis=1)
        value, advantage = map(np.asarray, credit)
        np.testing.assert_allclose(value, expected, atol=1e-6)
        np.testing.assert_allclose(advantage, np.diff(expected), atol=1e-6)
        assert not advantage[:, ~decisions].any()  # exactly
        assert (value[:, 1:] == value[:, :-1])[:, ~decisions].all()


@EVERY
def test_decision_mask_marks_the_tokens_that_have_branches(name):
    every = enumeration(name)
    letters = [None] * every.task.prompt_capacity + every.letters
    assert decision_mask(every.chain).tolist() == [letter is not None for letter in letters]


@EVERY
def test_fingerprints_part_states_by_their_futures_and_potential_is_the_best_of_these(name):
    every = enumeration(name)
    _, fingerprint, potential = every.folds
    seen = set()
    for t in range(every.size + 1):
        futures = every.success.reshape(int(np.prod(every.shape[:t])), -1)
        states = fingerprint[:: futures.shape[1], t].tolist()
        kinds = [tuple(row) for row in np.round(futures, 6).tolist()]
        assert len(set(zip(states, kinds, strict=True))) == len(set(states)) == len(set(kinds))
        assert not seen & set(states)
        seen |= set(states)
        best = potential[:: futures.shape[1], t]
        np.testing.assert_allclose(best, futures.max(axis=1), atol=1e-6)


def test_an_unfinished_row_keeps_the_value_of_its_prefix():
    every = enumeration("recoverable")
    skill = skills(every.chain)[1]
    value = quick_jit(lambda *row: true_value(every.chain, every.problem, *row, skill))
    rows, mask = every.rows()
    whole = value(rows[37], mask)
    for length in range(every.task.prompt_capacity, mask.size):
        cut = mask & (np.arange(mask.size) < length)
        part = value(np.where(cut, rows[37], 0), cut)
        assert part.tolist() == [*whole[:length], *[whole[length]] * (mask.size + 1 - length)]


@pytest.mark.parametrize(
    "preset, skill, choices, values",
    [
        ("insight", [1 / 8] * 4, "bggb", [0.2, 0.2, 0.2, 0.9, 0.9]),
        ("insight", [1 / 8] * 4, "ggbg", [0.2, 0.2, 0.2, 0.1, 0.1]),
        ("insight", [0.5] * 4, "gggg", [0.5, 0.5, 0.5, 0.9, 0.9]),
        ("two_approaches", [0.02], "b", [0.0392, 0.0392 - 0.0192]),
        ("two_approaches", [0.02], "g", [0.0392, 0.0392 + 0.9408]),
        ("recovery", [0.5] * 2, "gb", [0.75, 1, 1]),
        ("recovery", [0.5] * 2, "bg", [0.75, 0.5, 1]),
        ("recovery", [0.5] * 2, "bb", [0.75, 0.5, 0]),
        ("delayed_effect", [0.5] * 4, "gbbb", [0.5, 0.8, 0.8, 0.8, 0.8]),
        ("delayed_effect", [0.5] * 4, "bggg", [0.5, 0.2, 0.2, 0.2, 0.2]),
    ],
)
def test_presets_have_the_numbers_that_they_are_described_with(preset, skill, choices, values):
    chain, task = settle(Chain(delay=3), preset), bifurcation(preset=preset, delay=3)
    problem = jax.tree.map(lambda leaf: leaf[0], task.held_out(1, 0))
    prompt = np.asarray(task.prompt(problem)[0])
    row = np.append(prompt, [task.vocabulary.index(".")] * task.horizon)
    branch = (problem.good + np.asarray([c == "b" for c in choices])) % chain.branches
    decisions = decision_mask(chain)
    row[decisions] = task.vocabulary.index("A") + branch
    value = true_value(chain, problem, row, np.arange(row.size) >= prompt.size, skill)
    np.testing.assert_allclose(value[np.append(True, decisions)], values, atol=1e-6)


@pytest.mark.parametrize("skill", [[0.5], [0.5, 1.5], [0.5, float("nan")], 0.5])
def test_a_skill_that_is_not_of_the_chain_is_refused(skill):
    every = enumeration("plain")
    rows, mask = every.rows()
    for measure in (true_value, true_advantage):
        with pytest.raises(InputError, match=r"skill=.*2 chances"):
            measure(every.chain, every.problem, rows[0], mask, skill)
    with pytest.raises(InputError, match=r"skill=.*2 chances"):
        variance_share(every.chain, skill)


def test_what_has_no_credit_is_refused():
    every = enumeration("plain")
    rows, mask = every.rows()
    with pytest.raises(InputError, match=r"\[11\], got tokens \(10,\)"):
        true_value(every.chain, every.problem, rows[0, 1:], mask[1:], [0.5, 0.5])
    with pytest.raises(InputError, match="does not vary"):
        variance_share(every.chain, [1, 0])
    with pytest.raises(InputError, match="does not vary"):
        variance_share(Chain(gaps=(0.2, 0.7), chance=True), [1, 1])
