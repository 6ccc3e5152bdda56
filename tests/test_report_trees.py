"""Reports on rules of trees, and on rules whose evidence is sampled: drawn as sampling gives it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tree_reference import ground_of

from rlcredit import credit, units
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import Probing
from rlcredit.oracle import batch, company, make_judge, redraw
from rlcredit.oracle.batch import Growth
from rlcredit.trees import owners
from rlcredit.types import owned


def before_second(rollout, stage):
    """A cut at the second chosen token; -1 for episodes of one."""
    second = rollout.mask & (jnp.cumsum(rollout.mask, axis=-1) == 1 + stage)
    return jnp.where(jnp.any(second, axis=-1), jnp.argmax(second, axis=-1), -1)


GROWTH = Growth((2, 2), before_second)


@pytest.fixture(scope="module")
def trees():
    """(ground, 400 batches of trees of 2 * 2 * 2 rows)"""
    ground = ground_of("recovery")
    return ground, batch.drawn(ground.tree, ground.truth, 2, 400, jax.random.key(0), GROWTH)


def test_rows_of_a_tree_begin_as_their_parents(trees):
    ground, drawn = trees
    assert drawn.row.shape == (400, 2, 8) and np.all(drawn.present)
    assert np.all(drawn.branch_at[..., 2:] > 0) and not np.any(drawn.branch_at[..., :2])
    one = jax.tree.map(lambda leaf: leaf[7], drawn)
    rollout = batch.rollout_of(ground.tree, ground.truth, one)
    for n, k in np.ndindex(2, 8):
        at, parent = int(rollout.branch_at[n, k]), int(rollout.parent[n, k])
        np.testing.assert_array_equal(rollout.tokens[n, k, :at], rollout.tokens[n, parent, :at])
        assert at == 0 or rollout.mask[n, k, at]
    owner = owners(rollout.parent, rollout.branch_at, rollout.mask.shape[-1])
    own = np.asarray(owner) == np.arange(8)[None, :, None]
    np.testing.assert_array_equal(own & np.asarray(rollout.mask), owned(rollout))


def test_every_row_of_a_tree_is_as_likely_as_sampling_makes_it(trees):
    ground, drawn = trees
    chance = np.asarray(ground.truth.probability)
    for n in range(2):
        for k in range(8):
            share = np.bincount(drawn.row[:, n, k], minlength=chance.shape[1]) / 400
            error = np.sqrt(chance[n] * (1 - chance[n]) / 400)
            np.testing.assert_array_less(np.abs(share - chance[n]), 4.5 * error + 0.005)


def test_an_episode_that_ends_before_its_cut_has_no_rows_of_its_own():
    ground = ground_of("recovery")
    growth = Growth((3,), lambda rollout, stage: jnp.full(rollout.mask.shape[:2], -1))
    drawn = batch.drawn(ground.tree, ground.truth, 2, 3, jax.random.key(0), growth)
    np.testing.assert_array_equal(drawn.present, np.arange(6)[None, None] < 2 + 0 * drawn.row)
    one = jax.tree.map(lambda leaf: leaf[0], drawn)
    rollout = batch.rollout_of(ground.tree, ground.truth, one)
    assert not np.any(rollout.mask[:, 2:]) and not np.any(rollout.reward[:, 2:])


def test_a_token_that_rows_share_is_learned_from_once(trees):
    """All tokens weigh the same, as much together as those of eight episodes."""
    ground, drawn = trees
    rule = credit.bind("reinforce", ADVANTAGES, "advantage")
    method = company.Method(rule, None, GROWTH, Probing())
    scale = float(company.mean_scale(method, ground, drawn))
    light = ground._replace(context=None, scores=None, gradient=None)
    scene = company.Scene(light, {}, ground.truth.probability, jnp.float32(scale))
    few = jax.tree.map(lambda leaf: leaf[:3], drawn)
    raw, weighted, _ = company.sampled(method, scene, few)
    for j in range(3):
        own = owned(
            batch.rollout_of(ground.tree, ground.truth, jax.tree.map(lambda a, j=j: a[j], few))
        )
        np.testing.assert_allclose(weighted[j], np.where(own, scale * raw[j], 0), rtol=1e-5)
    assert scale > 1.2


def test_a_judge_of_trees_says_so():
    ground = ground_of("recovery")
    rule = credit.bind("exact", ADVANTAGES, "advantage")
    card = make_judge(rule, ground.context, samples=2, draws=8, growth=GROWTH)(
        ground, jax.random.key(1)
    )
    assert card.company == "trees"
    # The exact advantage on trees: every credit is right, but early tokens weigh less.
    assert card.figures["rmse"].value < 1e-5
    assert card.figures["cosine"].value > 0.9 and card.figures["bias"].low > 0.01


def test_redrawn_values_are_those_of_continuations():
    """Their mean is the value of what precedes the unit, their spread that of so few returns."""
    ground = ground_of("recovery")
    probing = Probing(continuations=2)
    drawn = company.drawn(ground, 3, 300, jax.random.key(4), Growth()).batch
    source = redraw.Source(
        ground.tree, ground.truth.probability, ground.truth.probability, ground.truth.total
    )

    def of_batch(own):
        rollout = batch.rollout_of(ground.tree, ground.truth, own)
        unit = units.step(rollout)
        value = redraw.branch_value(source, rollout, unit, own, probing)
        return value, unit, batch.taken(ground.truth.value[..., :-1], own.row)

    value, unit, truth = (np.asarray(a) for a in jax.jit(jax.vmap(of_batch))(drawn))
    opens = np.asarray(units.opens(jnp.asarray(unit)))
    np.testing.assert_allclose(value[opens].mean(), truth[opens].mean(), atol=0.03)
    error = (value - truth)[opens]
    assert 0.01 < error.var() < 0.25
    j, n, k = 5, 1, 2
    for number in range(unit[j, n, k].max() + 1):
        assert np.ptp(value[j, n, k][unit[j, n, k] == number]) == 0


def test_labels_of_shepherd_and_omega():
    """On the chain `recovery` some ways earn nothing: after them no continuation succeeds."""
    ground = ground_of("recovery")
    total = np.asarray(ground.truth.total)
    source = redraw.Source(
        ground.tree, ground.truth.probability, ground.truth.probability, ground.truth.total
    )
    rows = jnp.broadcast_to(jnp.arange(total.shape[1])[None], total.shape)
    own = jax.tree.map(lambda a: a[0], batch.apart(rows[None], jax.random.key(2)))
    rollout = batch.rollout_of(ground.tree, ground.truth, own)
    unit = units.step(rollout)
    probing = Probing(continuations=64)
    shepherd = np.asarray(redraw.shepherd_label(source, rollout, unit, own, probing))
    omega = np.asarray(redraw.omega_label(source, rollout, unit, own, probing))
    solved = total >= redraw.SUCCESS
    assert np.all((omega <= shepherd) | solved[..., None])
    assert 0 < shepherd[np.asarray(rollout.mask)].mean() < 1
    last = np.asarray(units.closes(unit)) & (np.asarray(unit) == np.asarray(unit).max())
    for n, k in np.argwhere(np.asarray(rollout.mask).any(axis=-1)):
        end = np.flatnonzero(np.asarray(rollout.mask)[n, k])[-1]
        assert last[n, k, end] and shepherd[n, k, end] == solved[n, k]
