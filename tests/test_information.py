"""Rules of information gain and hindsight, and the evidence that they ask for, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, quick_jit, scripts, tape
from tree_reference import ground_of

from rlcredit import units
from rlcredit.advantages import ADVANTAGES
from rlcredit.evidence import EVIDENCE, Context, Probing
from rlcredit.evidence.exact_hindsight import _posterior
from rlcredit.exact.values import Truth
from rlcredit.rollout import sample
from rlcredit.score import score
from rlcredit.tasks import TASKS, line
from rlcredit.testing.measured import evidence_for
from rlcredit.testing.rollouts import random_rollout
from rlcredit.types import InputError, Sampling

TASK = TASKS["arithmetic"](digits=1, operands=2, operators="+-")
POLICY, PARAMS = network(vocabulary=len(TASK.vocabulary))
CONTEXT = Context(POLICY, PARAMS, PARAMS, TASK, Sampling(legal=True), probing=Probing(most_units=3))
close = functools.partial(np.testing.assert_allclose, atol=1e-5)


def credit(name, rollout, **given):
    return np.asarray(jax.jit(functools.partial(ADVANTAGES[name], **given))(rollout))


@pytest.fixture(scope="module")
def rollout():
    problems = TASK.held_out(2, 0)
    keys = jax.random.split(jax.random.key(0), 2)
    draw = quick_jit(
        lambda: sample(POLICY, PARAMS, TASK, problems, keys, samples=2, sampling=CONTEXT.sampling)
    )
    return draw()[0]


def provided(name, rollout, context=CONTEXT):
    return quick_jit(lambda r: EVIDENCE[name](context, r, jax.random.key(1)))(rollout)


@pytest.mark.parametrize("value, text", [(0, "0$"), (-7, "-7$"), (42, "42$"), (-300, "-300$")])
def test_the_answer_is_written_as_the_policy_has_to(value, text):
    tokens, length = line.written(jnp.int32(value))
    assert "".join(line.CHARACTERS[int(t)] for t in tokens[: int(length)]) == text
    assert not np.any(tokens[int(length) :])


def test_the_answers_chance_is_that_of_each_prefix_scored_by_itself(rollout):
    found, price = provided("answer_log_prob", rollout)
    unit = np.asarray(units.capped(units.step(rollout), 3))
    scored = jax.jit(lambda row: score(POLICY, PARAMS, row, sampling=Sampling()).log_prob)
    wide, read = rollout.tokens.shape[2] + 12, 0
    for n, k in np.ndindex(2, 2):
        answer, size = TASK.answer(jax.tree.map(lambda leaf, n=n: leaf[n], rollout.problem))
        answer = np.asarray(answer)[: int(size)]
        for number in range(unit[n, k].max() + 1):
            at = np.flatnonzero(unit[n, k] == number)
            row = np.zeros(wide, np.int32)
            row[: at[0]] = rollout.tokens[n, k, : at[0]]
            row[at[0] : at[0] + len(answer)] = answer
            wanted = np.mean(scored(row[None])[0, at[0] : at[0] + len(answer)])
            close(found[n, k, at], wanted)
            read += at[0] + len(answer)
    assert not np.any(np.asarray(found)[~np.asarray(rollout.mask)])
    assert price.tokens_scored == read


def test_an_expert_tells_the_answer_where_the_task_does_not():
    chain = TASKS["bifurcation"](preset="recovery", filler=0, delay=0)
    policy, params = network(vocabulary=len(chain.vocabulary))
    context = Context(policy, params, params, chain, Sampling(legal=True))
    problems, keys = chain.held_out(1, 0), jax.random.split(jax.random.key(0), 1)
    rows = quick_jit(
        lambda: sample(policy, params, chain, problems, keys, samples=2, sampling=context.sampling)
    )()[0]
    found, _ = provided("answer_log_prob", rows, context)
    good = np.asarray(problems.good[0]) + chain.vocabulary.index("A")
    at = chain.prompt_capacity
    row = np.concatenate([np.asarray(rows.tokens[0, 0, :at]), good])
    wanted = score(policy, params, jnp.asarray(row)[None], sampling=Sampling()).log_prob[0, at:]
    close(found[0, :, at], np.mean(wanted))


def test_a_task_without_answer_and_expert_is_refused_by_name():
    policy, params = network()
    context = Context(policy, params, params, tape(), Sampling())
    problems, keys = scripts("?"), jax.random.split(jax.random.key(0), 1)
    rows = sample(policy, params, tape(), problems, keys, samples=1, sampling=Sampling())[0]
    with pytest.raises(InputError, match="'tape' has neither an answer nor an expert"):
        EVIDENCE["answer_log_prob"](context, rows, jax.random.key(0))


def test_hindsight_is_read_between_prompt_and_response(rollout):
    found, _ = provided("hindsight_log_prob", rollout)
    unit = np.asarray(units.capped(units.step(rollout), 3))
    scored = jax.jit(
        lambda row, legal: (
            score(POLICY, PARAMS, row, sampling=CONTEXT.sampling, legal=legal).log_prob
        )
    )
    for n, k in np.ndindex(2, 2):
        chosen = np.flatnonzero(rollout.mask[n, k])
        told = np.flatnonzero(unit[n, k] == unit[n, k].max())
        tokens, legal = np.asarray(rollout.tokens[n, k]), np.asarray(rollout.legal[n, k])
        row = np.insert(tokens, chosen[0], tokens[told])
        allowed = np.insert(legal, [chosen[0]] * len(told), True, axis=0)
        wanted = scored(row[None], allowed[None])[0]
        close(found[n, k, chosen], wanted[chosen + len(told)], rtol=1e-4)


@pytest.mark.parametrize("name", ["recovery", "maze"])
def test_exact_hindsight_makes_hca_right_on_average(name):
    """Over what comes after a choice, (1 - pi / h) Z is Q - V, as far as each return can be had."""
    ground = ground_of(name)
    tree, truth = ground.tree, ground.truth
    rows = jnp.broadcast_to(jnp.arange(truth.total.shape[1])[None], truth.total.shape)
    posterior = np.asarray(jax.jit(_posterior)(tree, truth, rows), float)
    rollout = tree.rollout._replace(log_prob=truth.log_prob)
    found = credit("hca", rollout, exact_hindsight=posterior.astype(np.float32)).astype(float)
    mask, chance = np.asarray(rollout.mask), np.asarray(truth.probability, float)
    node, edge = np.asarray(tree.node)[..., :-1], np.asarray(tree.edge)
    to_go = np.cumsum(np.asarray(rollout.reward, float)[..., ::-1], axis=-1)[..., ::-1]
    for n, m, t in np.argwhere(mask)[::7]:
        here = chance[n] * (edge[n, :, t] == edge[n, m, t])
        there = chance[n] * (node[n, :, t] == node[n, m, t])
        returns = np.round(to_go[n, :, t], 4)
        had = np.isin(returns, returns[here > 0])  # those that this choice leaves possible
        mean = (here * np.nan_to_num(found[n, :, t])).sum() / here.sum()
        value = (there * to_go[n, :, t] * had).sum() / there.sum()
        close(mean, (here * to_go[n, :, t]).sum() / here.sum() - value, atol=1e-4)
    assert np.all(posterior[mask] <= 1e-5) and Truth._fields[-1] == "total"


RNG = np.random.default_rng(6)
RANDOM = random_rollout(RNG, 4, 4)
EVIDENCES = evidence_for(RNG, RANDOM, ["unit", "answer_log_prob", "hindsight_log_prob"])
UNIT, ANSWER = EVIDENCES["unit"], EVIDENCES["answer_log_prob"]


def test_gains_of_a_policy_that_learns_nothing_on_the_way_are_none():
    still = np.where(RANDOM.mask, np.float32(-0.7), 0)
    outcome = credit("grpo", RANDOM)
    close(credit("igpo", RANDOM, unit=UNIT, answer_log_prob=still), outcome)
    for name in ("mig", "delta_belief"):
        found = credit(name, RANDOM, unit=UNIT, answer_log_prob=still)
        close(found, credit("dr_grpo", RANDOM))


def test_one_unit_has_the_outcome_alone():
    one = np.where(RANDOM.mask, 0, -1)
    close(credit("igpo", RANDOM, unit=one, answer_log_prob=ANSWER), credit("grpo", RANDOM))
    close(credit("mig", RANDOM, unit=one, answer_log_prob=ANSWER), credit("dr_grpo", RANDOM))


def by_hand(marks):
    """One sample whose units of a token each stand at these log-probabilities."""
    count = len(marks)
    mask = np.ones((1, 1, count), bool)
    rows = random_rollout(np.random.default_rng(0), 1, 1, max(count, 3))
    rows = rows._replace(mask=mask, reward=np.zeros(mask.shape, np.float32))
    unit = np.arange(count, dtype=np.int32)[None, None]
    return rows, {"unit": unit, "answer_log_prob": np.float32(marks)[None, None]}


def test_to_lose_the_answer_and_find_it_again_earns_nothing_in_mig():
    rows, evidence = by_hand([-3.0, -1.0, -4.0, -1.0, -0.5])
    close(credit("mig", rows, **evidence)[0, 0], [2, 0, 0, 0.5, 0])
    close(credit("delta_belief", rows, **evidence)[0, 0], [2, -3, 3, 0.5, 0])
    clipped = credit("delta_belief", rows, clip=1.0, **evidence)
    close(clipped[0, 0], [1, -1, 1, 0.5, 0])


def test_igpo_compares_turns_whatever_their_length():
    """Trap: a mean at each token position compares unrelated turns where lengths differ."""
    marks = np.float32([[-3.0, -1.0, -2.0], [-2.0, -1.5, -0.2]])

    def of_units(sizes):
        """[2, 3] the credit of the units of two samples, of so many tokens each."""
        unit = np.full((1, 2, 8), -1, np.int32)
        for k, own in enumerate(sizes):
            unit[0, k, : sum(own)] = np.repeat(np.arange(3), own)
        mask = unit >= 0
        reward = np.zeros(mask.shape, np.float32)
        reward[0, 0, 0] = 1
        answer = np.where(mask, marks[np.arange(2)[:, None], np.maximum(unit[0], 0)], 0)
        rows = random_rollout(np.random.default_rng(0), 1, 2, 8)._replace(mask=mask, reward=reward)
        found = credit("igpo", rows, unit=unit, answer_log_prob=answer)
        return found[np.asarray(units.opens(unit))].reshape(2, 3)

    close(of_units([(1, 1, 1), (1, 1, 1)]), of_units([(1, 2, 1), (4, 1, 3)]))


def test_blame_taken_from_successes_leaves_a_mean_above_zero():
    """Trap: HCAPO's zeroing changes what is estimated; without it the second part is centred."""
    evidence = {"unit": UNIT, "hindsight_log_prob": EVIDENCES["hindsight_log_prob"]}
    first = np.asarray(units.opens(UNIT))
    won = RANDOM._replace(reward=np.where(RANDOM.mask, np.abs(RANDOM.reward) + 1, 0))
    praised = credit("hcapo", won, **evidence) - credit("grpo", won)
    assert all(praised[n][first[n]].mean() > 0.05 for n in range(4))
    lost = RANDOM._replace(reward=np.where(RANDOM.mask, -np.abs(RANDOM.reward) - 1, 0))
    centred = credit("hcapo", lost, **evidence) - credit("grpo", lost)
    for n in range(4):
        close(centred[n][first[n]].mean(), 0)
