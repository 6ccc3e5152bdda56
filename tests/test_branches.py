"""Rules of branches and trees: what they come to without trees, and on shared tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_branches import hand_made
from stubs import same_bits
from tree_reference import CASES, ground_of, problems_of

from rlcredit import credit as binding
from rlcredit import masked, oracle, trees, units
from rlcredit.advantages import ADVANTAGES
from rlcredit.advantages.outcome import episode_return
from rlcredit.evidence import Probing
from rlcredit.oracle import batch, make_judge, redraw
from rlcredit.testing.grafts import graft
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout

RNG = np.random.default_rng(4)
APART = random_rollout(RNG, 6, 4)
TREES = graft(np.random.default_rng(5), APART)
close = functools.partial(np.testing.assert_allclose, atol=1e-5)
OF_TREES = ("spo_tree", "treerl", "treerpo", "tree_grpo", "carl", "c3")


def credit(name, rollout, **given):
    return np.asarray(jax.jit(functools.partial(ADVANTAGES[name], **given))(rollout))


def of_tree(name, rollout):
    """With the values that the tree's own rows give."""
    asks = binding.signature(ADVANTAGES[name])[0]
    value = {"node_value": trees.node_value(rollout, episode_return(rollout)[0])} if asks else {}
    return credit(name, rollout, **value)


@pytest.mark.parametrize("name, outcome", [("spo_tree", "dr_grpo"), ("carl", "dr_grpo"),
                                           ("c3", "rloo"), ("treerpo", "grpo")])  # fmt: skip
def test_rows_sampled_apart_are_siblings(name, outcome):
    close(of_tree(name, APART), credit(outcome, APART))


def test_treerl_without_trees_counts_the_outcome_twice():
    close(of_tree("treerl", APART), 2 * credit("dr_grpo", APART))


def test_tree_grpo_without_trees_has_no_one_in_its_own_tree():
    close(of_tree("tree_grpo", APART), credit("grpo", APART))


@pytest.mark.parametrize("name", OF_TREES)
def test_tokens_that_rows_share_have_one_credit(name):
    """Trap: learned from once, in the row that owns them, they must not depend on which it is."""
    found = of_tree(name, TREES)
    shared = 0
    for n, k in np.argwhere(TREES.branch_at > 0):
        here = TREES.mask[n, k] & (np.arange(TREES.mask.shape[2]) < TREES.branch_at[n, k])
        close(found[n, k][here], found[n, TREES.parent[n, k]][here])
        shared += here.sum()
    assert shared > 10


BY_HAND = {  # of the edges: two from the prompt, two from the fork at 3, two from the one at 4
    "spo_tree": (-3, 3, -1, 1, -1, 1),
    "carl": (-3, 3, -1, 1, -1, 1),
    "treerpo": (-1, 1, -1, 1, -1, 1),
    "treerl": (-6 / 3**0.5, 6, -5, -1 / 2**0.5, -4, 0),
    "c3": (7 / 3 - 8, 8 - 7 / 3, -2, 2, -2, 2),  # what rows came to, not what forks are worth
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_tree_made_by_hand(name):
    left, apart, first, second, third, fourth = BY_HAND[name]
    found = of_tree(name, hand_made())[0]
    close(found[0], [0, left, left, first, first])
    close(found[1], [0, left, left, second, third])
    close(found[2], [0, left, left, second, fourth])
    close(found[3], [0, apart, apart, 0, 0])


def test_tree_grpo_gives_a_shared_token_the_mean_of_its_rows():
    """Within their tree the three rows cancel; returns 1, 2, 4, 8 have the variance 7.1875."""
    found = of_tree("tree_grpo", hand_made())[0]
    alone = (8 - 3.75) / 7.1875**0.5
    close(found[3], [0, alone, alone, 0, 0])
    close(found[:3, 1:3], -alone / 3)
    close(found[1, 3], (found[1, 4] + found[2, 4]) / 2)
    assert np.ptp(found[:3, 4]) > 1


@pytest.mark.parametrize("name", ["carl", "c3", "treerpo"])
def test_an_edge_without_a_sibling_has_no_credit(name):
    """Trap: a group of one gives 0, not the return, whatever its node is said to be worth."""
    alone = random_rollout(np.random.default_rng(6), 6, 1)
    value = evidence_for(RNG, alone, ["node_value"])
    asks = binding.signature(ADVANTAGES[name])[0]
    assert np.any(credit("spo_tree", alone, **value))
    assert not np.any(credit(name, alone, **(value if asks else {})))


def test_the_scaled_form_of_spo_tree_is_treerpo():
    """V(child) - V(parent) over a deviation that is nothing beside eps."""
    value = {"node_value": trees.node_value(TREES, episode_return(TREES)[0])}
    scaled = 1e4 * credit("treerpo", TREES, eps=1e4, **value)
    np.testing.assert_allclose(scaled, credit("spo_tree", TREES, **value), atol=2e-3)


def test_spo_tree_is_vineppo_at_the_forks():
    value = trees.node_value(TREES, episode_return(TREES)[0])
    at_forks = credit("vineppo", TREES, unit=units.fork(TREES), branch_value=value)
    close(of_tree("spo_tree", TREES), at_forks)
    close(of_tree("carl", TREES), at_forks)  # its own is where it forks


def test_the_credit_of_a_row_adds_up_to_its_return_less_the_roots_value():
    value = trees.node_value(TREES, episode_return(TREES)[0])
    found = of_tree("spo_tree", TREES)
    first = np.asarray(units.opens(units.fork(TREES)))
    total, present = episode_return(TREES)
    root = np.max(np.where(first & (np.asarray(units.fork(TREES)) == 0), value, -np.inf), axis=-1)
    sums = np.sum(np.where(first, found, 0), axis=-1)
    close(sums[present], (np.asarray(total) - root)[present])


def test_normalising_twice_forgets_which_tree_was_better():
    """Trap (`tree_2norm`): a score in the problem, scored again in its tree, is the tree's."""
    total, present = (np.asarray(a) for a in episode_return(TREES))
    root = np.asarray(trees.owners(TREES.parent, TREES.branch_at, TREES.mask.shape[2]))[..., 0]

    def score(x, own):
        return (x - x[own].mean()) / (x[own].std() + 1e-6)

    for n in range(total.shape[0]):
        for tree in np.unique(root[n][present[n]]):
            own = present[n] & (root[n] == tree)
            if own.sum() > 1 and np.ptp(total[n][own]) > 0:
                twice = score(score(total[n], present[n]), own)[own]
                np.testing.assert_allclose(twice, score(total[n], own)[own], atol=1e-4)


def test_the_probability_mask_of_spo_leaves_zeros_in_the_whitening():
    """Trap: the authors take masked tokens out of its statistics, which is another credit."""
    evidence = evidence_for(RNG, APART, ["unit", "branch_value"])
    found = credit("spo_chain", APART, threshold=0.5, **evidence)
    kept = APART.mask & (np.exp(APART.log_prob) < 0.5)
    close(found[APART.mask & ~kept & kept.any(-1, keepdims=True)], 0)
    whole, unsure = masked.whiten(found, APART.mask), masked.whiten(found, kept)
    assert not np.allclose(np.asarray(whole)[kept], np.asarray(unsure)[kept], atol=1e-2)
    row = tuple(np.argwhere(kept.any(-1))[0])  # one that has none beside others that have
    one = APART.log_prob.copy()
    one[row] = 0
    found = credit("spo_chain", APART._replace(log_prob=one), threshold=0.5, **evidence)
    assert same_bits(found[row], credit("vineppo", APART, **evidence)[row]) and found[row].any()
    sure = APART._replace(log_prob=np.zeros_like(APART.log_prob))
    assert same_bits(credit("spo_chain", sure, **evidence), credit("vineppo", sure, **evidence))


def test_pav_with_the_best_of_one_adds_the_provers_progress():
    evidence = evidence_for(RNG, APART, ["unit", "prover_value"])
    progress = credit(
        "vineppo", APART, unit=evidence["unit"], branch_value=evidence["prover_value"]
    )
    close(credit("pav", APART, coef=0.5, **evidence), credit("dr_grpo", APART) + 0.5 * progress)
    close(credit("pav", APART, coef=0.0, best_of=4, **evidence), credit("dr_grpo", APART))


def two_units():
    """One episode of two units of two tokens that returns 1, and their values 0.5 and 0.75."""
    rollout = random_rollout(np.random.default_rng(0), 1, 1, 4)
    mask, reward = np.ones((1, 1, 4), bool), np.float32([[[0, 0, 0, 1]]])
    value = np.float32([[[0.5, 0.5, 0.75, 0.75]]])
    return rollout._replace(mask=mask, reward=reward), np.int32([[[0, 0, 1, 1]]]), value


def test_the_noise_at_a_border_is_in_both_units():
    rollout, unit, value = two_units()
    close(credit("vineppo", rollout, unit=unit, branch_value=value), 0.25)
    noise = np.float32([[[0, 0, 0.1, 0.1]]])
    noisy = credit("vineppo", rollout, unit=unit, branch_value=value + noise)
    close(noisy[0, 0], [0.35, 0.35, 0.15, 0.15])


def test_the_best_of_two_episodes_sees_less_progress_in_the_end():
    """1 - (1 - v)**2 of 0.5, 0.75 and 1 is 0.75, 0.9375 and 1."""
    rollout, unit, value = two_units()
    found = credit("pav", rollout, unit=unit, prover_value=value, best_of=2)
    close(found[0, 0], [0.1875, 0.1875, 0.0625, 0.0625])


def vineppo_on(ground, continuations):
    """(credit, exact advantage, mask) of drawn episodes, values from so many continuations."""
    source = redraw.Source(
        ground.tree, ground.truth.probability, ground.truth.probability, ground.truth.total
    )
    probing = Probing(unit="token", continuations=continuations)
    own = jax.tree.map(lambda a: a[0], batch.apart(jnp.arange(8)[None, None].repeat(2, 1), KEY))
    rollout = batch.rollout_of(ground.tree, ground.truth, own)
    unit = units.token(rollout)
    value = redraw.branch_value(source, rollout, unit, own, probing)
    found = credit("vineppo", rollout, unit=unit, branch_value=value)
    return found, np.asarray(batch.taken(ground.truth.advantage, own.row)), rollout.mask


KEY = jax.random.key(3)


def test_vineppo_comes_to_the_exact_advantage_with_many_branches():
    few, truth, mask = vineppo_on(ground_of("recovery"), 4)
    many = vineppo_on(ground_of("recovery"), 4096)[0]
    errors = [np.sqrt(np.mean((found - truth)[np.asarray(mask)] ** 2)) for found in (few, many)]
    assert errors[1] < 0.02 and errors[0] > 5 * errors[1]


def test_the_expected_gradient_of_vineppo_is_the_true_one():
    rule = binding.bind("vineppo", ADVANTAGES, "advantage")
    context = ground_of("recovery").context._replace(probing=Probing(continuations=2))
    card = make_judge(rule, context, samples=2, draws=1024)(ground_of("recovery"), KEY)
    bias = card.figures["bias"]
    assert bias.value < 0.05 and card.figures["cosine"].value > 0.99


def test_values_are_those_of_the_policy_that_sampled():
    """Trap: after an update they are stale; the batch keeps the credit of before it."""
    here = ground_of("recovery")
    context = here.context
    moved = jax.tree.map(lambda leaf: leaf + 0.3, context.params)
    later = oracle.prepare(context._replace(params=moved), problems_of(CASES["recovery"]))
    assert np.max(np.abs(np.asarray(later.truth.value) - np.asarray(here.truth.value))) > 0.01
