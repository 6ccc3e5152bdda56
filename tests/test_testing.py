"""`rlcredit.testing`: for each property a rule that fails it, and how findings are told."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.__main__ import main
from rlcredit.advantages import ADVANTAGES
from rlcredit.advantages.outcome import episode_return, spread
from rlcredit.recurrence import discounted_return, last_chosen
from rlcredit.testing import PROPERTIES, assert_advantage, check_advantage, rollouts
from rlcredit.testing.card import as_text
from rlcredit.testing.check import find
from rlcredit.testing.subject import example, make_subject
from rlcredit.types import InputError

ROOT = Path(__file__).parent.parent
COUNTER = itertools.count()
PRECISIONS = itertools.cycle(["float32", "highest"])


def per_episode(rollout):
    return jnp.where(rollout.mask, episode_return(rollout)[0][..., None], 0)


def number_along(rollout, axis):
    number = jax.lax.broadcasted_iota(jnp.float32, rollout.mask.shape, axis)
    return jnp.where(rollout.mask, number, 0)


def one_number_an_episode(rollout):
    return episode_return(rollout)[0]


def spreads_over_the_whole_row(rollout):
    return jnp.broadcast_to(episode_return(rollout)[0][..., None], rollout.mask.shape)


def leaks(rollout):
    return spread(jnp.sum(rollout.reward, axis=-1), rollout)


def divides_by_the_row_length(rollout):
    return per_episode(rollout) / rollout.mask.shape[-1]


def counts_positions(rollout):
    return number_along(rollout, 2)


def numbers_the_problems(rollout):
    return number_along(rollout, 0)


def numbers_the_samples(rollout):
    return number_along(rollout, 1)


def leaves_a_residue(rollout):
    """Exactly 0 for a group of equal returns."""
    total, present = episode_return(rollout)
    mean = jnp.sum(total, axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
    return spread(total - mean[:, None], rollout)


def compares_over_the_batch(rollout):
    total, _ = episode_return(rollout)
    return spread(total - jnp.mean(total), rollout)


def claims_to_compare_over_the_batch(rollout):
    """A[t] = R - mean over all N * K episodes of R."""
    return per_episode(rollout)


def asks_whether_it_is_traced(rollout):
    return per_episode(rollout) * (2 if isinstance(rollout.reward, jax.core.Tracer) else 1)


def sets_the_configuration(rollout):
    jax.config.update("jax_default_matmul_precision", next(PRECISIONS))
    return per_episode(rollout)


def counts_its_calls(rollout):
    return per_episode(rollout) + jnp.where(rollout.mask, next(COUNTER), 0)


def exponential(rollout):
    return jnp.where(rollout.mask, jnp.exp(per_episode(rollout)), 0)


def calls_the_host(rollout):
    result = jax.ShapeDtypeStruct(rollout.mask.shape, jnp.float32)
    return jax.pure_callback(lambda x: np.asarray(x), result, per_episode(rollout))


def takes_its_own_future_for_a_baseline(rollout):
    ends = last_chosen(rollout.mask)
    to_go = discounted_return(rollout.reward, rollout.mask, ends, discount=1.0)
    return jnp.where(rollout.mask, to_go - jnp.where(ends, 0, to_go), 0)


def claims_to_be_unbiased(rollout):
    """Its gradient is unbiased."""
    total, _ = episode_return(rollout)
    return spread(total - jnp.mean(total, axis=1, keepdims=True), rollout)


PLANTED = [
    ("shape and type", one_number_an_episode, "InputError: .* returned advantage of shape"),
    (
        "zero off the mask",
        spreads_over_the_whole_row,
        r"where the mask is False, advantage\[.*\] is 7.6",
    ),
    ("masked content", leaks, r"with nan under the mask, advantage\[.*\] is nan, not"),
    ("padding", divides_by_the_row_length, "with 4 more padding tokens"),
    ("observations", counts_positions, "with observation tokens put in"),
    ("problem order", numbers_the_problems, "with the problems in another order"),
    ("sample order", numbers_the_samples, "with the samples in another order"),
    ("equal rewards", leaves_a_residue, r"samples with a return of 0\.\d+ get .*, not 0"),
    ("communication", compares_over_the_batch, "needs communication: all-reduce; say"),
    ("communication", claims_to_compare_over_the_batch, "nothing is communicated"),
    ("jit", asks_whether_it_is_traced, "jitted, advantage"),
    ("jit", sets_the_configuration, "traced 2 times for 2 calls"),
    ("repeatable", counts_its_calls, "called a second time"),
    ("finite", exponential, "for rewards of 1e8 and -1e8, .* is inf"),
    ("gradient", calls_the_host, "Pure callbacks do not support JVP"),
    ("uphill", takes_its_own_future_for_a_baseline, r"cosine -?0\.0"),
    ("unbiased", claims_to_be_unbiased, r"relative bias 0\.33"),
]


@pytest.fixture
def restored():
    before = jax.config.jax_default_matmul_precision
    yield
    jax.config.update("jax_default_matmul_precision", before)


@pytest.mark.parametrize("property_, rule, seen", PLANTED, ids=lambda p: getattr(p, "__name__", p))
def test_a_rule_without_the_property_fails_it(restored, property_, rule, seen):
    finding = find(property_, make_subject(rule))
    assert finding.property == property_ and finding.outcome == "failed"
    assert re.search(seen, finding.detail) and "\n" not in finding.detail


def test_every_property_has_a_rule_that_fails_it():
    assert {property_ for property_, *_ in PLANTED} >= PROPERTIES.keys()


def test_every_property_is_in_the_guide():
    guide = (ROOT / "docs/extending.md").read_text()
    listed = re.search(r"\| property \|.*?\n\n", guide, re.DOTALL).group()
    names = [name for row in listed.split("\n")[2:-2] for name in row.split("|")[1].split(",")]
    assert [name.strip() for name in names] == list(PROPERTIES)


def test_a_gradient_that_reaches_the_rewards_is_named(monkeypatch):
    monkeypatch.setattr(jax.lax, "stop_gradient", lambda tree: tree)
    finding = find("gradient", make_subject("reinforce"))
    assert finding == ("gradient", "failed", "a gradient flows to reward")


def test_one_fault_is_one_finding():
    failed = [f.property for f in check_advantage(leaks) if f.outcome == "failed"]
    assert failed == ["masked content"]
    with pytest.raises(AssertionError, match=r"^masked content: with nan under the mask"):
        assert_advantage(leaks)


def test_a_rule_that_raises_has_failed_where_it_was_tried():
    def needs_a_group(rollout):
        if rollout.mask.shape[1] == 1:
            raise KeyError("one\nsample")
        return per_episode(rollout)

    findings = {f.property: f for f in check_advantage(needs_a_group)}
    assert [name for name, f in findings.items() if f.outcome == "failed"] == ["finite"]
    assert findings["finite"].detail == r"raised KeyError: 'one\nsample'"
    assert findings["equal rewards"].outcome == "not claimed"
    assert list(findings) == list(PROPERTIES)


def test_a_rule_that_always_raises_fails_everything_it_is_tried_for():
    def broken(rollout):
        raise RuntimeError("first line\nsecond line")

    for finding in check_advantage(broken):
        assert finding.outcome == "failed" or finding.property == "equal rewards"
        assert finding.outcome != "failed" or finding.detail == "raised RuntimeError: first line"


def test_fewer_devices_leave_communication_unchecked(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    finding = find("communication", make_subject("dr_grpo"))
    assert finding == ("communication", "not checked", "needs 4 devices, there is 1")


def test_what_a_batch_statistic_communicates_is_told():
    finding = find("communication", make_subject("reinforce_baseline"))
    assert finding == ("communication", "passed", "needs communication: all-reduce")


def test_evidence_of_ones_own():
    """Without a maker numbers below 0 at the chosen tokens; with one what it makes."""

    def rule(rollout, *, surprise, scale=1.0):
        return jnp.where(rollout.mask, scale * surprise, 0)

    subject = make_subject(rule, hyperparameters={"scale": 2.0})
    rollout, evidence = example(subject)
    assert evidence["surprise"].dtype == np.float32
    np.testing.assert_array_equal(evidence["surprise"] < 0, rollout.mask)
    doubled = subject.assign(rollout, evidence).advantage
    np.testing.assert_array_equal(doubled, 2 * evidence["surprise"])

    own = {"surprise": lambda rng, r: rng.integers(5, 9, r.mask.shape).astype(np.uint32)}
    rollout, evidence = example(make_subject(rule, evidence=own))
    assert evidence["surprise"].dtype == np.uint32 and evidence["surprise"].min() >= 5
    _, spoiled = rollouts.with_garbage(rollout, evidence, np.nan)
    changed = spoiled["surprise"] != evidence["surprise"]
    assert spoiled["surprise"].dtype == np.uint32
    np.testing.assert_array_equal(changed, ~rollout.mask)


def test_a_rule_is_found_by_name_as_a_module_and_as_itself():
    for rule in ("dr_grpo", "rlcredit.advantages:dr_grpo", ADVANTAGES["dr_grpo"]):
        assert "Dr. GRPO" not in make_subject(rule).documentation
        assert make_subject(rule).documentation.startswith("A[t] = R - mean_group R.")
    assert make_subject(ADVANTAGES["gae"]).rule.evidence == ("value",)


def test_unusable_rules_and_hyperparameters_are_refused_by_name():
    with pytest.raises(InputError, match="unknown advantage 'grpoo'"):
        check_advantage("grpoo")
    with pytest.raises(InputError, match="'gae' has no hyperparameter 'lam'"):
        check_advantage("gae", hyperparameters={"lam": 1.0})
    with pytest.raises(InputError, match="'mine' has no hyperparameter 'beta'"):
        check_advantage(leaks, name="mine", hyperparameters={"beta": 1.0})
    with pytest.raises(InputError, match="3 is no rule"):
        check_advantage(3)


@pytest.mark.parametrize("arguments", [["grpoo"], ["gae", "--advantage-kwargs", "lam=1"]])
def test_the_command_names_bad_input_in_a_line(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(["check", *arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and not printed.out
    assert re.fullmatch(r"error: .*(grpoo|lam).*\n", printed.err)


def test_the_command_prints_a_line_for_each_property(capsys, monkeypatch):
    """With the hyperparameters that it was given, and a word on evidence that nobody measures."""
    seen = {}

    def only(subject):
        seen["scale"] = subject.rule.function.keywords["scale"]
        return PROPERTIES["shape and type"](subject)

    monkeypatch.setattr("rlcredit.testing.check.PROPERTIES", {"padding": only, "finite": only})
    main(["check", f"{__name__}:scaled", "--advantage-kwargs", "scale=3"])
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["passed       padding", "passed       finite"]
    assert seen == {"scale": 3.0} and "'surprise' is not in the list" in printed.err


def scaled(rollout, *, surprise, scale: float = 1.0):
    return jnp.where(rollout.mask, scale * surprise, 0)


def test_a_rule_of_another_file_in_a_process_of_its_own(tmp_path):
    """From the current folder, with one device to begin with."""
    (tmp_path / "mine.py").write_text("def double(rollout):\n    return 2 * rollout.reward\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlcredit", "check", "mine:double", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    printed = json.loads(done.stdout)
    assert printed["rule"] == "mine:double" and printed["passed"] is False
    outcomes = {f["property"]: f["outcome"] for f in printed["findings"]}
    assert list(outcomes) == list(PROPERTIES) and outcomes["communication"] == "passed"
    assert [name for name, seen in outcomes.items() if seen == "failed"] == [
        "masked content",
        "finite",
        "uphill",  # the reward comes long after the choice that earned it
    ]


def test_a_rules_report_card_on_the_command_line(capsys):
    main(["check", "reinforce", "--oracle", "--json"])
    card = json.loads(capsys.readouterr().out)["card"]
    assert card.keys() >= {"bias", "cosine", "signal", "leakage"} and card["company"] == "none"
    assert card["bias"]["value"] < 1e-4 and card["variance_ratio"]["value"] == 1
    printed = as_text(card)
    assert re.search(r"bias +\d\S+ +\[", printed) and "charge_ratio" in printed
