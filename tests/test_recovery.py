"""The recovery experiment reproduces the published table, and says rightly where it depends on
what is counted."""

import functools
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from stubs import quick_jit

from rlcredit.advantages import ADVANTAGES
from rlcredit.testing import rollouts

SCRIPT = Path(__file__).parent.parent / "experiments" / "recovery.py"
PUBLISHED = {
    "exact advantage": (-0.25, 0.5),
    "reinforce": (1, 1),
    "rloo": (0.25, 0.25),
    "turn_loo": (0.25, 0.25),  # not published: rloo, where an episode is one turn
    "grpo": (0.58, 0.58),
    "gigpo": (1.15, 1.57),
}
ALL_BAD = {"exact advantage": -0.25, "reinforce": 0.5, "rloo": -0.25, "grpo": -(3**-0.5)}


def call(monkeypatch, *flags):
    """The script in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as stop:
        return stop.code
    return 0


def test_the_published_table_is_reproduced(monkeypatch, capsys, tmp_path):
    path = tmp_path / "recovery.json"
    assert call(monkeypatch, "--seeds", 8, "--json", path) == 0
    results, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert list(results) == list(PUBLISHED)
    for name, pair in PUBLISHED.items():
        own = results[name]
        wanted = dict(zip(("BAD, successful", "RECOVER, successful"), pair, strict=True))
        wanted |= {"all BAD": ALL_BAD[name]} if name in ALL_BAD else {}
        for column, value in wanted.items():
            mean, error = own[column]["mean"], own[column]["standard_error"]
            assert abs(mean - value) <= 5 * error + 1e-6, (name, column, own)
            assert error < 0.03
        assert f"{own['BAD, successful']['mean']:+.3f}" in printed
    assert results["turn_loo"] == results["rloo"]


@pytest.mark.parametrize(("flags", "named"), [(("--seeds", 1), "seeds=1"),
                                              (("--episodes", 1), "episodes=1")])  # fmt: skip
def test_too_little_to_compare_is_refused_by_name(monkeypatch, capsys, flags, named):
    assert call(monkeypatch, *flags) == 1
    assert named in capsys.readouterr().err


def test_a_batch_in_which_nobody_recovered_is_refused(monkeypatch):
    names = runpy.run_path(str(SCRIPT))
    main, config = names["main"], names["Config"]
    monkeypatch.setitem(main.__globals__, "batch", lambda key, episodes: (np.zeros((6, 3)), 0))
    with pytest.raises(names["InputError"], match="episodes=3"):
        main(config(seeds=2, episodes=3))


GOOD, RECOVERED, LOST = 2, 1, 1  # of four episodes under the uniform policy


def expected_group(ends, size=400):
    """One group in which every episode is as frequent as expected, and its states."""
    kinds = np.repeat([0, 1, 2], np.array([GOOD, RECOVERED, LOST]) * size // 4)[:, None]
    second = (kinds > 0) if ends else np.ones_like(kinds, bool)
    mask = np.concatenate([np.ones_like(second), second], axis=1)
    last = mask & ~np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    number = np.where(mask, np.arange(2), -1)
    states = np.where(number == 1, 1 + (kinds > 0), 0)
    filler = rollouts.random_rollout(np.random.default_rng(0), 1, size, 3)
    rollout = filler._replace(
        mask=mask[None],
        reward=np.float32(last & (kinds < 2))[None],
        step=number[None],
        turn=number[None],
    )
    return rollout, states[None].astype(np.uint32), (kinds == 1)[:, 0]


def recovered_credit(name, ends, **settings):
    rollout, states, recovered = expected_group(ends)
    evidence = {"fingerprint": states} if name == "gigpo" else {}
    rule = quick_jit(functools.partial(ADVANTAGES[name], **settings))
    return np.asarray(rule(rollout, **evidence))[0][recovered][0]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo"])
def test_rules_of_the_returns_are_the_same_where_the_chain_ends(name, ends):
    pair = {"grpo": (3**-0.5, 3**-0.5)}.get(name, PUBLISHED[name])
    np.testing.assert_allclose(recovered_credit(name, ends), pair, atol=2e-3)


def test_what_counts_steps_or_turns_is_not():
    over_episodes, over_steps = (2 * 3**-0.5, 3**-0.5 + 1), (0.5**0.5 + 3**-0.5, 0.5**0.5 + 1)
    cases = [
        ("gigpo", False, over_episodes, {}),
        ("gigpo", True, over_steps, {}),
        ("gigpo", True, over_episodes, {"statistics": "episodes"}),
        ("turn_loo", False, (0.25, 0.25), {}),
        ("turn_loo", True, (0.25, 0.5), {}),
    ]
    for name, ends, pair, settings in cases:
        got = recovered_credit(name, ends, **settings)
        np.testing.assert_allclose(got, pair, atol=4e-3, err_msg=f"{name} {ends} {settings}")
    np.testing.assert_allclose(over_steps, (1.28, 1.71), atol=0.005)
    np.testing.assert_allclose(over_episodes, (1.15, 1.58), atol=0.005)
