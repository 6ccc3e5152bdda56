"""Packed rows hold every token once, keep episodes apart, and teach what padded rows teach."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stubs import VOCABULARY, distance, network, quick_jit, same_bits

from rlcredit import packing, train
from rlcredit.credit import Bound, bind
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.score import score, score_packed
from rlcredit.sharding import make_mesh, over_problems, replicated
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import Sampling
from rlcredit.update import Batch, Objective, Schedule, initial_state, make_update

SHAPE = (8, 4, 12)
CAPACITY = SHAPE[-1] - 1
EPISODES = SHAPE[0] * SHAPE[1]
ROWS = 16  # of a piece, so that both sizes of piece occur
pack = quick_jit(packing.pack, static_argnums=1)
tokens_read = quick_jit(packing.tokens_read)


def first_fit_decreasing(size, capacity):
    """Slow: (row, first slot) of each episode."""
    rows, placed = [], {}
    for episode in sorted(range(len(size)), key=lambda e: -size[e]):
        fits = [row for row, held in enumerate(rows) if held + size[episode] <= capacity]
        if not fits:
            rows.append(0)
        row = fits[0] if fits else len(rows) - 1
        placed[episode] = row, rows[row]
        rows[row] += size[episode]
    return placed


def random_sizes(seed, count=EPISODES, capacity=CAPACITY):
    rng = np.random.default_rng(seed)
    size = np.minimum(rng.geometric(0.25, count), capacity)
    size[rng.random(count) < 0.2] = 0
    size[0] = capacity
    return size.astype(np.int32)


@pytest.mark.parametrize("seed", range(4))
def test_every_token_lies_in_one_slot_where_first_fit_puts_it(seed):
    size = random_sizes(seed)
    packed = pack(size, CAPACITY)
    wanted = np.full((EPISODES, CAPACITY, 2), -1)
    placed = first_fit_decreasing(size, CAPACITY)
    for episode, (row, start) in placed.items():
        for position in range(size[episode]):
            assert (wanted[row, start + position] == -1).all()
            wanted[row, start + position] = episode, position
    held = wanted[..., 0] >= 0
    np.testing.assert_array_equal(np.where(held, packed.slots.episode, -1), wanted[..., 0])
    np.testing.assert_array_equal(np.where(held, packed.slots.position, -1), wanted[..., 1])
    assert (np.asarray(packed.slots.episode)[~held] == EPISODES).all()
    assert packed.used == held.any(axis=1).sum() and held[: int(packed.used)].any(axis=1).all()
    for episode in np.flatnonzero(size):
        assert packed.row[episode] == placed[episode][0]


def test_the_two_extremes():
    """Full episodes have a row each; nothing to read takes no row."""
    full = pack(np.full(EPISODES, CAPACITY, np.int32), CAPACITY)
    assert full.used == EPISODES and (full.slots.episode < EPISODES).all()
    empty = pack(np.zeros(EPISODES, np.int32), CAPACITY)
    assert empty.used == 0 and (empty.slots.episode == EPISODES).all()


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_more_than_the_least_possible(seed):
    """Full rows, cut at random: the least number of rows is known."""
    rng = np.random.default_rng(seed)
    capacity, least = 100, 20
    cuts = (np.sort(rng.choice(np.arange(1, capacity), 3, False)) for _ in range(least))
    size = np.concatenate([np.diff([0, *cut, capacity]) for cut in cuts]).astype(np.int32)
    used = pack(rng.permutation(size), capacity).used
    assert least <= used <= 11 / 9 * least + 2 / 3


def test_a_token_is_read_if_a_later_one_is_chosen():
    mask = np.zeros((2, 2, 6), bool)
    mask[0, 0, [2, 4]] = mask[0, 1, 5] = mask[1, 0, 1] = True
    np.testing.assert_array_equal(tokens_read(mask), [[4, 5], [1, 0]])


def visits(packed):
    """How often each row and each episode is visited, and the rows visited."""

    def add(total, piece):
        slots, present, rows = total
        slots += jnp.sum(piece.slots.episode[..., None] == jnp.arange(EPISODES)[None, None], (0, 1))
        return slots, present + piece.present, rows + len(piece.slots.episode)

    zeros = jnp.zeros(EPISODES, jnp.int32)
    return packing.fold(add, (zeros, zeros, jnp.int32(0)), packed, ROWS)


def test_pieces_visit_what_is_used_once_and_little_else():
    uses, visit = set(), quick_jit(visits)
    for count in (0, 3, 9, 16, 17, 24, 31, 32):
        size = np.where(np.arange(EPISODES) < count, CAPACITY - 1, 0).astype(np.int32)
        packed = pack(size, CAPACITY)
        slots, present, rows = visit(packed)
        np.testing.assert_array_equal(slots, size)
        assert (present[size > 0] == 1).all()
        assert 0 <= rows - packed.used < ROWS / 8
        uses.add(int(rows))
    assert len(uses) > 4 and visit._cache_size() == 1


def test_batches_of_different_use_are_folded_side_by_side():
    sizes = np.stack([random_sizes(seed) // (1 + 2 * seed) for seed in range(3)])

    @quick_jit
    @jax.vmap
    def fold(size):
        packed = packing.pack(size, CAPACITY)
        return visits(packed), packed.used

    (slots, _, rows), used = fold(sizes)
    np.testing.assert_array_equal(slots, sizes)
    assert len(set(used.tolist())) == 3 and (rows - used < ROWS / 8).all()


def test_geometric_lengths_fill_packed_rows():
    """At a mean of an eighth of the cap padded rows are mostly padding, packed rows are not."""
    rng = np.random.default_rng(0)
    size = np.minimum(rng.geometric(1 / 32, 256), 255).astype(np.int32)
    used = pack(size, 255).used
    assert size.mean() / 255 < 0.15 and size.sum() / (255 * used) > 0.95


def episodes(seed=0):
    """(tokens, mask [N, K, T]): chosen tokens between observations; some rows have none."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, len(VOCABULARY), SHAPE).astype(np.int32)
    length = rng.integers(3, SHAPE[-1] + 1, SHAPE[:2])
    mask = (np.arange(SHAPE[-1]) < length[..., None]) & (rng.random(SHAPE) < 0.7)
    mask[..., 0] = mask[3, 1] = mask[5] = False
    mask[0, 0, 1] = mask[0, 1, -1] = True
    return tokens, mask


def legal_with(tokens):
    """Some tokens are legal, those that were taken among them."""
    legal = np.random.default_rng(1).random((*SHAPE, len(VOCABULARY))) < 0.7
    return jnp.asarray(legal | (np.arange(len(VOCABULARY)) == tokens[..., None]))


def packed_slots(mask):
    return pack(np.asarray(tokens_read(mask)).reshape(-1), CAPACITY).slots


@pytest.mark.parametrize("kind", ["none", "shared", "separate"])
def test_packed_scores_are_those_of_whole_rows(kind):
    tokens, mask = episodes()
    policy, params = network(value_head=kind)
    sampling = Sampling(temperature=0.7, legal=kind != "none")
    legal = legal_with(tokens)

    @quick_jit
    def both(params, slots):
        how = {"sampling": sampling, "legal": legal if sampling.legal else None}
        whole = score(policy, params, jnp.asarray(tokens), **how)
        return whole, score_packed(policy, params, jnp.asarray(tokens), slots, **how)

    whole, packed = both(params, packed_slots(mask))
    read = np.arange(SHAPE[-1] + 1) <= np.asarray(tokens_read(mask))[..., None]
    assert (packed.value is None) == (kind == "none")
    for mine, yours in zip(packed, whole, strict=True):
        if mine is not None:
            scored = read[..., : mine.shape[-1]]
            np.testing.assert_allclose(mine, np.where(scored, yours, 0), atol=2e-6, rtol=0)
    assert np.std(np.asarray(packed.log_prob)[mask]) > 0.1


@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_a_segment_is_read_as_if_alone(dtype, atol):
    """Wherever it starts: positions are relative. What lies in others changes not a bit of it."""
    policy, params = network(layers=2, dtype=dtype, value_head="separate")
    rows = np.random.default_rng(2).integers(0, len(VOCABULARY), (2, 24)).astype(np.int32)
    segment = np.repeat([[7, 3, 5]], [2, 13, 9], axis=1).repeat(2, axis=0).astype(np.int32)
    forward = quick_jit(policy.forward)
    together = forward(params, rows, segment)
    alone = forward(params, rows[:, 2:15])
    for mine, yours in zip(together, alone, strict=True):
        mine, yours = np.asarray(mine, np.float32), np.asarray(yours, np.float32)
        np.testing.assert_allclose(mine[:, 2:15], yours, atol=atol, rtol=0)
    other = np.where(segment == 3, rows, (rows + 1) % len(VOCABULARY))
    changed = forward(params, other, segment)
    for mine, yours in zip(together, changed, strict=True):
        assert same_bits(mine[:, 2:15], yours[:, 2:15])
        assert not same_bits(mine[:, 15:], yours[:, 15:])


SGD = optax.apply_if_finite(optax.sgd(1.0), 1000)
POLICY, PARAMS = network(value_head="shared")
NAMES = ("ppo", "grpo", "gspo", "sorl")
EVIDENCE = ("ref_log_prob", "unit")


def make_batch(seed=0, tree=False):
    """Nan wherever nothing may be read; of a tree only the end of a row is its own."""
    rng = np.random.default_rng(100 + seed)
    tokens, mask = episodes(seed)
    if tree:
        mask &= np.arange(SHAPE[-1]) >= rng.integers(0, 8, (*SHAPE[:2], 1))
    noise = rng.normal(size=(5, *SHAPE)).astype(np.float32)
    noise[:2] = 0.3 * noise[:2] - 2
    old_log_prob, reference, advantage, target, value = np.where(mask, noise, np.nan)
    unit = np.arange(SHAPE[-1]) // 3 + 0 * tokens
    evidence = dict(zip(EVIDENCE, (reference, unit), strict=True))
    batch = Batch(
        tokens, mask, old_log_prob, advantage, target, value, legal_with(tokens), evidence
    )
    return jax.tree.map(jnp.asarray, batch)


def loss_number(which):
    """The loss of that number, traced; of the metrics those that all have."""

    def call(name, *arrays, **evidence):
        loss = bind(name, LOSSES, "loss")
        value, metrics = loss.function(*arrays, **{key: evidence[key] for key in loss.evidence})
        return value, {key: metric for key, metric in metrics.items() if key != "kl"}

    def function(*arrays, **evidence):
        branches = [lambda a, e, n=name: call(n, *a, **e) for name in NAMES]
        return jax.lax.switch(which, branches, arrays, evidence)

    return Bound("any", function, EVIDENCE)


@functools.cache
def updates(packed, accumulate=1, devices=1):
    """(batch, number of a loss) -> (state, metrics) of two minibatches."""
    schedule = Schedule(minibatches=2, accumulate=accumulate, packed=packed)
    mesh = make_mesh(jax.devices()[:devices])

    def run(state, batch, which):
        objective = Objective(loss_number(which), REDUCERS["sequence_mean"], 0.1, 0.2)
        sampling = Sampling(temperature=0.7, legal=True)
        whole = make_update(POLICY, SGD, objective, schedule, sampling)
        return whole(state, over_problems(mesh, batch), jax.random.key(0))

    state = replicated(mesh, initial_state(PARAMS, SGD, jax.random.key(1)))
    jitted = quick_jit(run)
    call = functools.partial(jitted, state)
    return lambda batch, which=0: call(*replicated(mesh, (batch, jnp.int32(which)))), jitted


def assert_same_step(one, other):
    (state, metrics), (wanted, wanted_metrics) = one, other
    moved = distance(wanted.params, PARAMS)
    assert moved > 0.01 and distance(state.params, wanted.params) < 1e-5 * moved
    assert metrics.keys() == wanted_metrics.keys()
    for name, metric in wanted_metrics.items():
        np.testing.assert_allclose(metrics[name], metric, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("loss", NAMES)
@pytest.mark.parametrize("tree", [False, True])
def test_packed_rows_teach_what_padded_rows_teach(loss, tree):
    """In one piece, and in four on four devices; with observations, legal tokens and a critic."""
    batch, which = make_batch(tree=tree), NAMES.index(loss)
    wanted = updates(packed=False)[0](batch, which)
    assert_same_step(updates(packed=True)[0](batch, which), wanted)
    assert_same_step(updates(packed=True, accumulate=4, devices=4)[0](batch, which), wanted)


def test_the_same_batch_teaches_the_same_bits_and_other_lengths_compile_nothing_anew():
    update, jitted = updates(packed=True)
    batch, other = make_batch(), make_batch(1)
    assert int(other.mask.sum()) != int(batch.mask.sum())
    first, _ = update(batch)
    between, _ = update(other)
    assert same_bits(update(batch)[0].params, first.params)
    assert not same_bits(between.params, first.params)
    nothing, metrics = update(batch._replace(mask=batch.tokens < 0))
    assert same_bits(nothing.params, PARAMS) and metrics["loss"] == 0
    assert jitted._cache_size() == 1


def test_the_setting_reaches_the_schedule():
    task = TASKS["arithmetic"](digits=1, operands=3)
    for packed in (False, True):
        assert train.build(Training(packed=packed), task).schedule.packed == packed
