"""Rules compared: seeds together are seeds alone, the price of a step, budgets, statistics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import assert_trees_close, quick_jit, same_bits

from rlcredit import comparison, sharding, train
from rlcredit.comparison import Budget, Curve, Entrant
from rlcredit.evidence import EVIDENCE
from rlcredit.rollout import sample
from rlcredit.stage import MAX_SKIPPED_UPDATES
from rlcredit.tasks import TASKS
from rlcredit.train import Training
from rlcredit.types import InputError, Price, TrainState

MESH = sharding.make_mesh(jax.devices()[:1])
TASK = TASKS["bifurcation"](gaps=(1.0,), base=0.0, branches=3, filler=1, chance=True)
SMALL = {"width": 16, "layers": 1, "problems": 4, "samples": 2, "lanes": 0}
SEEDS = 3
KEYS = comparison.seed_keys(0, SEEDS)
LAYOUT = train.layout(Training(**SMALL), MESH)


def row(tree, seed):
    return jax.tree.map(lambda leaf: leaf[seed], tree)


@pytest.fixture(autouse=True)
def no_trial(monkeypatch):
    """Rules that fit; the tests of the experiment try others."""
    for name in ("check_fit", "untrained"):
        monkeypatch.setattr(train, name, lambda *_: None)


@functools.cache
def entrant(rule):
    training = Training(advantage=rule, minibatches=1, accumulate=1, **SMALL)
    return comparison.enter(training, TASK, MESH, jax.random.key(0))


@functools.cache
def start(rule):
    return quick_jit(functools.partial(comparison.first_states, entrant(rule)))


@functools.cache
def states(rule):
    return start(rule)(KEYS)


def test_seeds_together_are_each_seed_alone_and_are_written_over():
    own = entrant("reinforce")
    block = quick_jit(comparison.make_block(own.step), donate_argnums=0)
    compiled = block.lower(states("reinforce"), 0.0).compile()
    params = (states("reinforce").params, states("reinforce").ref_params)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert compiled.memory_analysis().alias_size_in_bytes >= held

    alone = quick_jit(own.step)
    price = float(alone(row(states("reinforce"), 0))[1]["charged"])  # lengths are fixed
    together, done = compiled(jax.tree.map(jnp.copy, states("reinforce")), 1.5 * price)
    assert done.steps == 2
    for seed in range(SEEDS):
        state, charged = row(states("reinforce"), seed), 0
        for _ in range(2):
            state, metrics = alone(state)
            charged += metrics["charged"]
        assert charged == done.charged[seed]
        numbers = (state.params, state.opt_state, state.step)
        others = row((together.params, together.opt_state, together.step), seed)
        assert_trees_close(numbers, others, 1e-5)
    assert not same_bits(row(together.params, 0), row(together.params, 1))


def test_success_is_the_mean_return_of_each_seed_on_held_out_problems():
    own, params = entrant("reinforce"), states("reinforce").params
    # Far from uniform, so that the seeds differ.
    params = jax.tree.map(lambda leaf: 20 * leaf, params)
    success = comparison.make_success(own.parts, TASK, LAYOUT, problems=6, samples=3, seed=5)
    judged = quick_jit(success)(params)
    problems, keys = TASK.held_out(6, 5), jax.random.split(jax.random.key(5), 6)
    how = {"samples": 3, "sampling": own.parts.sampling}
    policy = own.parts.policy
    alone = quick_jit(lambda one: sample(policy, one, TASK, problems, keys, **how)[0].reward)
    expected = [float(jnp.mean(alone(row(params, seed)).sum(-1))) for seed in range(SEEDS)]
    np.testing.assert_allclose(judged, expected, atol=1e-6)
    assert len({*expected}) > 1


def test_a_step_is_charged_what_was_sampled_and_scored(monkeypatch):
    """Of the rollout and of planted evidence; environment steps are free."""
    planted = Price(tokens_sampled=70, tokens_scored=500, environment_steps=9000)
    monkeypatch.setitem(EVIDENCE, "entropy", lambda *_: (jnp.zeros(()), planted))
    parts = entrant("gae").parts._replace(evidence=("value", "entropy"))
    prices = []

    def noted(*arguments, **named):
        rollout, price = sample(*arguments, **named)
        prices.append((price, rollout.length))
        return rollout, price

    monkeypatch.setattr(train, "sample", noted)
    training = Training(advantage="gae", **SMALL)
    collect = comparison.charging(train.make_collect(training, parts, MESH))
    call = quick_jit(lambda *given: (collect(*given)[-1]["charged"], prices[-1]))
    charged, (price, length) = call(row(states("gae"), 0), jax.random.key(1))
    rollout = price.tokens_sampled + price.tokens_scored
    assert price.tokens_sampled == 8 * 3 and price.tokens_scored == 4 * TASK.prompt_capacity
    assert charged == rollout + np.sum(length) + 570


def test_all_rules_start_from_the_same_policies_and_keys():
    plain, critic = states("reinforce"), states("gae")
    assert plain.params.keys() != critic.params.keys()
    assert same_bits(plain.params["policy"], critic.params["policy"])
    assert same_bits(jax.random.key_data(plain.key), jax.random.key_data(critic.key))
    assert not same_bits(row(plain.params, 0), row(plain.params, 1))
    assert not same_bits(*(jax.random.key_data(plain.key[seed]) for seed in (0, 1)))
    assert same_bits(*map(jax.random.key_data, (comparison.seed_keys(0, 2), KEYS[:2])))


def test_all_seeds_start_from_what_was_trained_with_a_critic_of_their_own():
    trained = row(states("reinforce").params, 2)
    started = start("gae")(KEYS, trained).params
    for seed in range(SEEDS):
        assert same_bits(row(started["policy"], seed), trained["policy"])
    assert same_bits(started["value_head"], states("gae").params["value_head"])


def planted(charge, skipped=0, name="planted"):
    """An entrant whose step counts, for a price of `charge(seed, step)` tokens."""

    def step(state):
        seed = state.params["seed"]
        metrics = {"charged": jnp.float32(charge(seed, state.step))}
        metrics["skipped_updates"] = jnp.int32(skipped) * (seed == 1)
        return state._replace(step=state.step + 1), metrics

    return Entrant(name, None, None, step)


def learn(own, budget, after_point=lambda point, mean: None):
    seed = jnp.arange(4, dtype=jnp.float32)
    zeros = jnp.zeros(4, jnp.int32)
    first = TrainState({"seed": seed}, (), (), jax.random.split(jax.random.key(0), 4), zeros)

    def success(params):
        return 1.0 * params["seed"]

    return comparison.learn(own, MESH, first, success, budget, after_point)


def test_the_dearer_rule_takes_fewer_steps_for_the_same_budget():
    cheap = learn(planted(lambda seed, step: 10), Budget(100, 4))
    dear = learn(planted(lambda seed, step: 40), Budget(100, 4))
    assert cheap.steps == [0, 3, 5, 8, 10]  # at 25, 50, 75 and 100 tokens
    assert dear.steps == [0, 1, 2, 2, 3]
    assert np.asarray(cheap.charged)[:, 0].tolist() == [0, 30, 50, 80, 100]
    for curve, price in ((cheap, 10), (dear, 40)):
        assert 100 <= curve.charged[-1][0] < 100 + price
    assert cheap.success == [[0, 1, 2, 3]] * 5
    assert len(cheap.seconds) == 5 and cheap.seconds == sorted(cheap.seconds)
    assert cheap.seconds[0] == 0 and cheap.compile_seconds > 0


def test_the_budget_is_that_of_the_mean_seed():
    curve = learn(planted(lambda seed, step: seed * 10), Budget(60, 1))
    assert curve.steps[-1] == 4  # 15 a step in the mean
    assert curve.charged[-1] == [0, 40, 80, 120]


def test_nothing_is_compiled_after_the_first_point():
    seen, counts = [], []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        learn(
            planted(lambda seed, step: 1 + step),  # another length for every block
            Budget(1000, 5),
            lambda point, mean: counts.append(len(seen)),
        )
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert counts[0] > 0 and len(counts) == 5 and len({*counts}) == 1


def test_points_are_reported_and_may_end_it():
    points = []

    def stop(point, mean):
        points.append((point, mean))
        if point == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(planted(lambda seed, step: 10), Budget(100, 4), stop)
    assert points == [(1, 1.5), (2, 1.5)]


def test_a_rule_that_diverges_is_named():
    for skipped in (MAX_SKIPPED_UPDATES - 1, MAX_SKIPPED_UPDATES):
        own = planted(lambda seed, step: 10, skipped, "wild")
        if skipped < MAX_SKIPPED_UPDATES:
            learn(own, Budget(20, 1))
        else:
            with pytest.raises(InputError, match=r"wild.*not finite"):
                learn(own, Budget(20, 1))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7),
        ([1.0, 4.0], 2.5),
        ([0.0, 3.0, 12.0], (0 + 4 * 3 + 12) / 6),
        ([-100.0, 2.0, 4.0, 50.0], 3),
        ([0.0, 1.0, 2.0, 10.0, 100.0], 0.3 * 1 + 0.4 * 2 + 0.3 * 10),
        ([0.0, 1.0, 2.0, 3.0, 7.0, 100.0], (1 + 2 * 2 + 2 * 3 + 7) / 6),
        ([-9.0, -8.0, 1.0, 2.0, 3.0, 6.0, 70.0, 800.0], 3),  # two go at either end
    ],
)
def test_interquartile_mean_by_hand(values, expected):
    shuffled = np.random.default_rng(0).permutation(values)
    np.testing.assert_allclose(comparison.interquartile_mean(shuffled), expected, atol=1e-12)
    stacked = comparison.interquartile_mean(np.stack([shuffled, 2 * shuffled]))
    np.testing.assert_allclose(stacked, [expected, 2 * expected], atol=1e-12)


def test_bootstrap_intervals_hold_the_truth_about_as_often_as_they_say():
    """A little less often: the percentile bootstrap is too narrow for so few runs."""
    draws = np.random.default_rng(1).normal(size=(600, 12))
    for level, at_least in ((0.95, 0.87), (0.5, 0.42)):
        low, high = comparison.bootstrap_interval(draws, level=level, resamples=500)
        assert at_least < np.mean((low < 0) & (high > 0)) < level + 0.02


def test_bootstrap_is_a_function_of_its_seed_and_holds_the_mean():
    values = np.random.default_rng(0).normal(size=(3, 8))
    low, high = comparison.bootstrap_interval(values)
    middle = comparison.interquartile_mean(values)
    assert np.all((low < middle) & (middle < high))
    again = comparison.bootstrap_interval(values)
    other = comparison.bootstrap_interval(values, seed=1)
    assert same_bits((low, high), again) and not same_bits((low, high), other)
    assert same_bits(comparison.bootstrap_interval(np.ones(8)), (np.ones(()), np.ones(())))


def test_rows_and_summary_by_hand():
    curve = Curve(
        steps=[0, 2, 3],
        seconds=[0.0, 1.0, 1.5],
        charged=[[0.0, 0.0], [10.0, 30.0], [40.0, 40.0]],
        success=[[0.0, 0.0], [1.0, 0.5], [1.0, 0.75]],
        compile_seconds=9.0,
    )
    rows = comparison.rows("rloo", curve)
    assert [(r["rule"], r["block"], r["steps"]) for r in rows] == [
        ("rloo", 0, 0), ("rloo", 1, 2), ("rloo", 2, 3),
    ]  # fmt: skip
    assert [r["charged"] for r in rows] == [0, 20, 40]
    assert [r["iqm"] for r in rows] == [0, 0.75, 0.875]
    assert rows[1]["success"] == [1, 0.5] and (rows[1]["low"], rows[1]["high"]) == (0.5, 1)
    summary = comparison.summary("rloo", curve)
    assert rows[-1].items() <= summary.items() and summary["compile_seconds"] == 9
    # Seed 0: 10 * 0.5 + 30 * 1 of 40 tokens; seed 1: 30 * 0.25 + 10 * 0.625.
    np.testing.assert_allclose(summary["area"], (35 / 40 + 13.75 / 40) / 2)
