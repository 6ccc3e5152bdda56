"""Whole updates: every loss learns, memory and compilations stay put, the reference stays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import VOCABULARY, network, quick_jit, same_bits, scripts, tape

from rlcredit.advantages import ADVANTAGES
from rlcredit.credit import Bound, assign, bind
from rlcredit.evidence import Context
from rlcredit.evidence.ref_log_prob import ref_log_prob
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.rollout import sample
from rlcredit.types import Sampling
from rlcredit.units import token
from rlcredit.update import Objective, Schedule, guarded, initial_state, make_batch, make_update

POLICY, PARAMS = network()
LEVER = scripts(*["?"] * 8, limit=1, end=None, horizon=1)  # one choice; the token `b` wins
WINNING = VOCABULARY.index("b")
BANDIT = tape(horizon=1, name="bandit")
BANDIT = BANDIT._replace(
    step=lambda problem, count, token, key: (
        tape()
        .step(problem, count, token, key)
        ._replace(reward=(token == WINNING).astype(jnp.float32), terminated=jnp.bool_(True))
    )
)
OPTIMIZER = guarded(0.03)
HOW = Sampling(temperature=1.0)


@quick_jit
def collect(state):
    """(share of episodes that won, batch) of one rollout."""
    key = jax.random.fold_in(state.key, state.step)
    keys = jax.random.split(key, len(LEVER.end))
    rollout, _ = sample(POLICY, state.params, BANDIT, LEVER, keys, samples=8, sampling=HOW)
    context = Context(POLICY, state.params, state.ref_params, BANDIT, HOW)
    evidence = {"ref_log_prob": ref_log_prob(context, rollout, key)[0], "unit": token(rollout)}
    credit = assign(bind("dr_grpo", ADVANTAGES, "advantage"), rollout, {})
    return jnp.sum(rollout.reward) / 64, make_batch(rollout, credit, evidence)


def any_loss(which):
    """All of LOSSES behind a traced number: one compilation for all of them."""
    bound = [bind(name, LOSSES, "loss") for name in LOSSES]

    def loss(*arrays, **evidence):
        def call(chosen):
            return chosen.function(*arrays, **{name: evidence[name] for name in chosen.evidence})[0]

        return jax.lax.switch(which, [functools.partial(call, one) for one in bound]), {}

    return Bound("any", loss, ("ref_log_prob", "unit"))


def make_learn(donate=()):
    def learn(state, batch, which):
        objective = Objective(any_loss(which), REDUCERS["constant_length"])
        update = make_update(POLICY, OPTIMIZER, objective, Schedule(), HOW)
        state, metrics = update(state, batch, state.key)
        return state._replace(step=state.step + 1), metrics

    return quick_jit(learn, donate_argnums=donate)


@functools.cache
def donating():
    return make_learn(donate=0)


def fresh_state(seed=0):
    params = jax.tree.map(jnp.copy, PARAMS)
    return initial_state(params, OPTIMIZER, jax.random.key(seed))


@pytest.mark.parametrize("loss", list(LOSSES))
def test_every_loss_learns_a_lever(loss):
    state, which = fresh_state(), jnp.int32(list(LOSSES).index(loss))
    before, _ = collect(state)
    for _ in range(40):
        _, batch = collect(state)
        state, _ = donating()(state, batch, which)
    after, _ = collect(state)
    assert before < 0.4 and after > 0.9


def test_reference_outlives_donated_updates():  # FL-124
    state = fresh_state()
    first = state
    for _ in range(3):
        state, _ = donating()(state, collect(state)[1], jnp.int32(0))
    assert same_bits(state.ref_params, PARAMS) and not same_bits(state.params, PARAMS)
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        collect(first)


def test_an_aliased_reference_is_refused_by_donation():  # FL-124
    state = fresh_state()
    state = state._replace(ref_params=state.params)
    batch = collect(state)[1]
    with pytest.raises((RuntimeError, ValueError), match="donate"):
        donating()(state, batch, jnp.int32(0))


def test_nothing_is_compiled_or_kept_after_the_second_update():  # FL-121, FL-123
    state = fresh_state()
    compiled, alive = [], []
    for _ in range(6):
        share, batch = collect(state)
        state, metrics = donating()(state, batch, jnp.int32(1))
        float(share), float(metrics["loss"])
        compiled.append((collect._cache_size(), donating()._cache_size()))
        alive.append(len(jax.live_arrays()))
    assert len(set(compiled[1:])) == 1 and len(set(alive[1:])) == 1


def test_a_run_is_a_function_of_its_seed():  # FL-097
    def run(seed):
        state = fresh_state(seed)
        for _ in range(3):
            state, _ = donating()(state, collect(state)[1], jnp.int32(1))
        return state

    one, same, other = run(0), run(0), run(1)
    assert same_bits(one.params, same.params) and not same_bits(one.params, other.params)
    still = fresh_state()
    batches = [collect(still._replace(step=jnp.int32(i)))[1] for i in range(3)]
    assert len({np.asarray(batch.tokens).tobytes() for batch in batches}) == 3
