"""A signature is a declaration: what a rule names it gets, and what nobody has is refused."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import network, parameters, quick_jit, scripts, tape

from rlcredit.advantages import ADVANTAGES
from rlcredit.credit import assign, bind, check_group_size, from_flags, measure, resolve, signature
from rlcredit.evidence import EVIDENCE, Context
from rlcredit.rollout import sample
from rlcredit.score import score as eager_score
from rlcredit.testing.measured import evidence_for
from rlcredit.types import InputError, Price, Sampling

N, K, T = 4, 3, 10
HOW = Sampling(0.7, legal=True)
POLICY, PARAMS = network(value_head="shared")
OTHER = parameters(POLICY, 1)
REWARD = np.asarray([1, 0, 2, -1, 0, 1]) * np.asarray([[1], [2], [3], [4]])
PROBLEMS = scripts(*["?!?!?!"] * N, prompt_length=[1, 2, 3, 4], reward=REWARD)
# What one pass, one replay or the rollout itself says; all else has its own tests.
NAMES = ("value", "ref_log_prob", "entropy", "greedy_return", "fingerprint")
# Without a word of it in the docstring; some compare states or edges, which are all different here.
ONE_SAMPLE_SAYS_NOTHING = {
    *("gdpo", "mt_grpo", "optimal_token_baseline", "rloo_kl", "gigpo", "gaca", "treerpo"),
    *("tree_grpo", "carl", "c3", "spro"),
}


@quick_jit
def score(params, rollout):
    return eager_score(POLICY, params, rollout.tokens, sampling=HOW, legal=rollout.legal)


@functools.cache
def run(samples, sampling=HOW):
    keys = jax.random.split(jax.random.key(0), N)
    return quick_jit(
        lambda: sample(POLICY, PARAMS, tape(), PROBLEMS, keys, samples=samples, sampling=sampling)[
            0
        ]
    )()


@pytest.fixture(scope="module")
def rollout():
    return run(K)


@pytest.fixture(scope="module")
def collect():
    """(rollout, reference) -> (evidence of every kind, price)."""

    def call(rollout, ref_params):
        context = Context(POLICY, PARAMS, ref_params, tape(), HOW)
        return measure(NAMES, context, rollout, jax.random.key(1))

    return quick_jit(call)


@pytest.fixture(scope="module")
def evidence(collect, rollout):
    return collect(rollout, OTHER)[0]


def one_sided(rollout, other, *, value, half, discount=0.5, whole=True, count=2, name="x"):
    """A rule for looking at: positional arrays are neither evidence nor hyperparameters."""
    return jnp.where(rollout.mask, discount * half, 0)


TABLE = {"mine": one_sided, "plain": lambda rollout: rollout.reward}


def test_signature_is_the_declaration():
    evidence, defaults = signature(one_sided)
    assert evidence == ("value", "half")
    assert defaults == {"discount": 0.5, "whole": True, "count": 2, "name": "x"}
    assert signature(TABLE["plain"]) == ((), {})


def half(context, rollout, key):
    return 0.5 * jnp.ones(rollout.mask.shape), Price(environment_steps=7)


def test_bind_fills_in_hyperparameters_and_lists_evidence():
    bound = bind("mine", TABLE, "advantage", {"discount": 0.25}, EVIDENCE | {"half": half})
    assert (bound.name, bound.evidence) == ("mine", ("value", "half"))
    assert bound.function.keywords == {"discount": 0.25}


@pytest.mark.parametrize("name", [":f", ".m:f", "m:", "no_such_module:f", "json:no_such", "json"])
def test_unknown_rules_are_refused_by_name(name):
    with pytest.raises(InputError, match=f"advantage '{name}'"):
        resolve(name, ADVANTAGES, "advantage")


def test_an_unknown_rule_is_told_what_there_is():
    with pytest.raises(InputError, match=r"reinforce, .*remax, .*, or module:function"):
        bind("grpoo", ADVANTAGES, "advantage")


def test_unknown_hyperparameters_and_evidence_are_refused_by_name():
    with pytest.raises(InputError, match=r"'lam'; it has discount=1\.0, lambda_=1\.0"):
        bind("gae", ADVANTAGES, "advantage", {"lam": 0.9})
    with pytest.raises(InputError, match="'grpo' has no hyperparameter 'beta'; it has eps"):
        bind("grpo", ADVANTAGES, "advantage", {"beta": 0.1})
    with pytest.raises(InputError, match="'gae' has no hyperparameter 'value'"):
        bind("gae", ADVANTAGES, "advantage", {"value": 1.0})
    with pytest.raises(InputError, match=r"'mine' asks .*evidence 'half'; known are value, "):
        bind("mine", TABLE, "advantage")


def from_pairs(*pairs):
    return from_flags("mine", TABLE, "advantage", pairs, EVIDENCE | {"half": half})


def test_flags_become_values_of_the_types_of_the_defaults():
    bound = from_pairs("discount=1e-1", "whole=False", "count=3", "name=a=b")
    assert bound.function.keywords == {"discount": 0.1, "whole": False, "count": 3, "name": "a=b"}
    assert from_pairs("discount=2").function.keywords == {"discount": 2.0}
    assert from_pairs("whole=1").function.keywords == {"whole": True}


@pytest.mark.parametrize(
    "pair, named",
    [
        ("count", "'count': write NAME=VALUE"),
        ("count=1.5", "'1.5' is not of type int"),
        ("whole=perhaps", "'perhaps' is not of type bool"),
        ("discount=x", "'x' is not of type float"),
        ("nothing=1", "no hyperparameter 'nothing'"),
    ],
)
def test_a_flag_that_cannot_be_read_is_refused_by_name(pair, named):
    with pytest.raises(InputError, match=named):
        from_pairs(pair)


SOURCE = """
import jax.numpy as jnp
not_a_function = 3
def rule(rollout, *, half, scale=1.0):
    return jnp.where(rollout.mask, scale * half, 0)
"""


def test_a_rule_and_its_evidence_from_outside(tmp_path, monkeypatch, rollout):
    (tmp_path / "rules_of_a_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, providers = "rules_of_a_user:rule", EVIDENCE | {"half": half}
    bound = bind(name, ADVANTAGES, "advantage", {"scale": 4.0}, providers)
    context = Context(POLICY, PARAMS, PARAMS, tape(), HOW)
    found, price = measure(bound.evidence, context, rollout, jax.random.key(0), providers)
    credit = assign(bound, rollout, found)
    assert (credit.advantage == 2.0 * rollout.mask).all() and credit.target is None
    assert price == Price(0, 0, 7)
    with pytest.raises(InputError, match="has no function 'not_a_function'"):
        resolve("rules_of_a_user:not_a_function", ADVANTAGES, "advantage")
    sys.modules.pop("rules_of_a_user")


def test_evidence_is_what_scoring_says(collect, rollout):
    found, _ = collect(rollout, OTHER)
    own, other = score(PARAMS, rollout), score(OTHER, rollout)
    assert {name: array.shape for name, array in found.items()} == {
        "value": (N, K, T + 1), "ref_log_prob": (N, K, T), "entropy": (N, K, T),
        "greedy_return": (N,), "fingerprint": (N, K, T),
    }  # fmt: skip
    wanted = {name: jnp.uint32 if name == "fingerprint" else jnp.float32 for name in NAMES}
    assert {name: array.dtype for name, array in found.items()} == wanted
    for name, wanted in (("ref_log_prob", other.log_prob), ("entropy", own.entropy)):
        wanted = jnp.where(rollout.mask, wanted, 0)
        np.testing.assert_allclose(found[name], wanted, atol=1e-5)
        assert jnp.abs(wanted).max() > 0.1
    np.testing.assert_allclose(found["value"], own.value, atol=1e-5)
    assert not found["value"][..., 0].any()


def test_reference_log_prob_is_the_policys_where_they_are_one(collect, rollout):  # FL-055
    found, _ = collect(rollout, PARAMS)
    np.testing.assert_allclose(found["ref_log_prob"], rollout.log_prob, atol=1e-5)


def test_greedy_return_is_that_of_greedy_sampling(collect, rollout):
    greedy = run(1, HOW._replace(greedy=True))
    found, _ = collect(rollout, OTHER)
    np.testing.assert_allclose(found["greedy_return"], greedy.reward.sum(axis=(1, 2)))
    assert len(set(found["greedy_return"].tolist())) > 1


def test_prices_count_tokens(collect, rollout):
    greedy = run(1, HOW._replace(greedy=True))
    chosen = int(greedy.mask.sum())
    prompts = int(greedy.length.sum()) - chosen
    scored = 3 * int(rollout.length.sum())  # value, ref_log_prob and entropy, each in full
    steps = greedy.mask.shape[0] * int(greedy.mask.sum(axis=-1).max())
    replayed = int(rollout.mask.sum())
    wanted = Price(chosen, prompts + scored, chosen + replayed, steps, steps - chosen)
    assert Price(*map(int, collect(rollout, OTHER)[1])) == wanted


def test_evidence_is_measured_once_however_often_it_is_asked_for():
    calls = []

    def counted(context, rollout, key):
        calls.append(np.asarray(jax.random.key_data(key)).tobytes())
        return jnp.zeros(1), Price(tokens_sampled=1)

    names, providers = ("a", "b", "a"), {"a": counted, "b": counted}
    found, price = measure(names, None, None, jax.random.key(0), providers)
    assert set(found) == {"a", "b"} and price.tokens_sampled == 2
    assert len(set(calls)) == len(calls) == 2
    assert measure((), None, None, jax.random.key(0)) == ({}, Price())


def test_value_without_a_critic_is_refused(rollout):
    policy, params = network()
    context = Context(policy, params, params, tape(), HOW)
    with pytest.raises(InputError, match="'value' needs a critic"):
        measure(("value",), context, rollout, jax.random.key(0))


@pytest.mark.parametrize(
    "returned, named",
    [
        (lambda r: r.reward[..., :-1], r"advantage of shape \(4, 3, 9\)"),
        (lambda r: r.mask, "type bool"),
        (lambda r: r.reward.astype(jnp.bfloat16), "type bfloat16"),
        (lambda r: None, "shape None"),
        (lambda r: 1.0, "shape"),
        (lambda r: (r.reward, r.reward[0]), r"critic target of shape \(3, 10\)"),
        (lambda r: (r.reward, r.reward, r.reward), "odd"),
    ],
    ids=["shape", "bool", "bfloat16", "None", "number", "target", "three"],
)
def test_what_is_no_credit_is_refused_by_the_rules_name(rollout, returned, named):
    bound = bind("odd", {"odd": returned}, "advantage")
    with pytest.raises(InputError, match="'odd'") as caught:
        assign(bound, rollout, {})
    assert caught.match(named)


def test_target_is_advantage_plus_value_unless_the_rule_has_its_own(rollout, evidence):
    credit = assign(bind("gae", ADVANTAGES, "advantage"), rollout, evidence)
    wanted = jnp.where(rollout.mask, credit.advantage + evidence["value"][..., :-1], 0)
    assert (credit.target == wanted).all() and credit.target.any()
    own = assign(bind("td_lambda", ADVANTAGES, "advantage"), rollout, evidence)
    assert own.target.any() and not (own.target == wanted).all()
    assert assign(bind("grpo", ADVANTAGES, "advantage"), rollout, evidence).target is None


def test_no_gradient_flows_through_credit(rollout, evidence):  # FL-152
    bound = bind("gae", ADVANTAGES, "advantage")

    def total(value):
        credit = assign(bound, rollout, {"value": value})
        return credit.advantage.sum() + credit.target.sum()

    assert not jax.grad(total)(evidence["value"]).any()


@pytest.fixture(scope="module")
def alone(rollout, evidence):
    """The first sample of each problem, with evidence of every name."""
    single = jax.tree.map(lambda leaf: leaf[:, :1], rollout._replace(problem=None, key=None))
    single = jax.tree.map(np.asarray, single)
    made = evidence_for(np.random.default_rng(0), single, EVIDENCE)
    return single, made | {"fingerprint": np.asarray(evidence["fingerprint"])[:, :1]}


@pytest.mark.parametrize("rule", list(ADVANTAGES))
def test_rules_that_compare_samples_refuse_one(alone, rule):
    bound = bind(rule, ADVANTAGES, "advantage")
    claims = re.search(r"exactly 0[^.;]*\bone\b", " ".join(ADVANTAGES[rule].__doc__.split()))
    if claims or rule in ONE_SAMPLE_SAYS_NOTHING:
        with pytest.raises(InputError, match=f"'{rule}' compares the samples"):
            check_group_size(bound, 1, lambda: alone)
    else:
        check_group_size(bound, 1, lambda: alone)


def test_more_samples_need_no_look():
    check_group_size(bind("grpo", ADVANTAGES, "advantage"), 2, pytest.fail)


def test_providers_of_one_pass_share_it_in_a_jitted_step(rollout):
    """The compiled program of two providers does hardly more work than that of one."""

    def work(*names):
        def collected(params, rollout):
            context = Context(POLICY, params, PARAMS, tape(), HOW)
            return measure(names, context, rollout, jax.random.key(0))[0]

        return jax.jit(collected).lower(PARAMS, rollout).compile().cost_analysis()["flops"]

    one = work("value")
    assert work("value", "entropy") < 1.5 * one
    assert work("value", "ref_log_prob") > 1.5 * one  # another network's pass is not shared
