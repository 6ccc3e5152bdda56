"""The benchmarks: what they measure with, that every script runs, and what its rows say."""

import importlib
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlcredit.tasks import TASKS
from rlcredit.types import InputError

FOLDER = Path(__file__).parent.parent / "benchmarks"
PRESENT = {"jax", "jaxlib", "flax", "numpy"}
TIMED = {"op", "shape", "dtype", "implementation", "median", "p20", "p80", "n", "device"}


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if FOLDER in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]


@pytest.fixture
def run(load, monkeypatch, tmp_path):
    """The rows of a script on some shapes, as if no peer was installed; compiled in a hurry."""

    def installed(name):
        if name not in PRESENT:
            raise PackageNotFoundError(name)
        return version(name)

    def rows(name, *shapes, **options):
        script = load(name)
        monkeypatch.setattr(load("contest"), "version", installed)
        path = tmp_path / f"{name}.json"
        options = {"shapes": shapes, "repeats": 2, "peers": True, **options}
        script.main(script.Options(json=path, **options))
        return json.loads(path.read_text())["rows"]

    jax.config.update("jax_disable_most_optimizations", True)
    yield rows
    jax.config.update("jax_disable_most_optimizations", False)


def missing(rows):
    return {r["implementation"]: r["not_measured"] for r in rows if "not_measured" in r}


def test_programs_run_in_turn_after_one_run_each(load):
    order = []
    programs = {name: lambda name=name: order.append(name) or jnp.zeros(1) for name in "ab"}
    seconds = load("timing").interleaved(programs, 3)
    assert order == ["a", "b"] * 4
    assert all(times.shape == (3,) and (times > 0).all() for times in seconds.values())


def test_ratios_are_of_pairs_and_rows_of_quantiles(load):
    timing = load("timing")
    slow, fast = np.array([2.0, 30.0, 8.0]), np.array([1.0, 10.0, 2.0])
    assert timing.ratio(slow, fast) == 3.0  # of 2, 3 and 4; that of the medians is 4
    row = timing.row("op", "shape", "way", np.arange(1.0, 12.0), occupancy=0.5)
    assert (row["p20"], row["median"], row["p80"], row["n"]) == (3.0, 6.0, 9.0, 11)
    assert row["occupancy"] == 0.5


def test_a_report_is_printed_and_written_with_its_machine(load, tmp_path, capsys):
    timing = load("timing")
    rows = [timing.row("op", "shape", way, np.ones(2)) for way in ("one", "other")]
    timing.report(rows, tmp_path / "rows.json")
    assert "other" in capsys.readouterr().out
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["rows"] == rows and written["machine"]["jax"] == jax.__version__


def test_a_contest_keeps_the_faster_threads_and_rates_by_the_ceiling(load, monkeypatch):
    contest = load("contest")
    seconds = {
        "ceiling": np.array([1.0, 2.0, 4.0]),
        ("rlcredit", None): np.array([2.0, 4.0, 8.0]),
        ("peer", 1): np.array([9.0, 9.0, 9.0]),
        ("peer", 2): np.array([6.0, 12.0, 8.0]),
    }
    monkeypatch.setattr(contest, "interleaved", lambda programs, repeats: seconds)
    ways = [contest.Way("rlcredit", lambda: 1.0, temporary=7, check=lambda result: result / 4)]
    ways += [contest.Way("peer", lambda: 0.0, (), threads=count) for count in (1, 2)]
    ways.append(contest.Way("gone", None, (), missing="it is not here"))
    what = {"op": "op", "shape": "shape", "dtype": "float32", "mode": "forward"}
    work = contest.Work(3e9, "GB/s", lambda: None, 2e9)
    own, peer, gone = contest.compare(what, ways, 3, work)
    assert (own["rate"], own["of_ceiling"]) == (0.75, 0.75)  # 3 in 4 s, where 2 in 2 s are possible
    assert (own["temporary"], own["error"]) == (7, 0.25) and "ratio" not in own
    assert (peer["threads"], peer["median"], peer["ratio"]) == (2, 8.0, 3.0)
    assert gone["not_measured"] == "it is not here" and "median" not in gone


def test_programs_write_over_their_last_results(load):
    program, temporary = load("contest").compiled(lambda x: 2 * x, jnp.arange(1000.0))
    first = program()
    np.testing.assert_array_equal(first, 2 * np.arange(1000.0))
    np.testing.assert_array_equal(program(), 2 * np.arange(1000.0))
    assert first.is_deleted() and temporary == 0


def test_the_distance_is_the_largest_relative_one(load):
    found = [jnp.array([3.0, 4.0]), None, jnp.array([1.0])]
    truth = [np.array([3.0, 4.5]), np.array([2.0])]
    assert load("contest").distance(found, truth) == 0.5


def test_an_unknown_shape_is_named(load):
    losses = load("losses")
    with pytest.raises(InputError, match="no shape 'huge'; there are large-512"):
        losses.main(losses.Options(shapes=("huge",)))


@pytest.mark.parametrize("name", ["losses", "advantages", "recurrences", "rollout", "training"])
def test_presets_name_shapes(load, name):
    script = load(name)
    named = [shape for preset in ("cpu", "accelerator") for shape in script.PRESETS[preset]]
    assert set(named) <= set(script.SHAPES) and len(named) == len(set(named)) > 1


def test_losses(run):
    rows = run("losses", "tiny", "tiny-logits")
    timed = [row for row in rows if "median" in row]
    assert all(TIMED | {"mode", "rate", "unit", "temporary", "error"} <= set(r) for r in timed)
    assert all(row["error"] < 2e-6 for row in timed)
    seen = {(row["op"], row["mode"], row["implementation"]) for row in timed}
    modes = ("forward", "forward+backward")
    assert {("fused head", mode, way) for mode in modes for way in ("rlcredit", "naive")} < seen
    assert ("loss from logits", "forward+backward", "rlcredit") in seen
    assert set(missing(rows)) == {"tokamax", "optax", "trl", "liger"}
    assert missing(rows)["tokamax"] == "tokamax is not installed"


def test_the_truth_of_a_loss_is_its_definition_however_many_rows_at_once(load, monkeypatch):
    objectives = load("objectives")
    monkeypatch.setattr(objectives, "AT_ONCE", 16 * 9)
    case = objectives.make(objectives.Shape(64, 4, 9))
    hidden, head, tokens, old, ref, advantage = (np.asarray(a) for a in case)
    step = 1e-6

    def loss(hidden, head, entropy_coef):
        z = hidden.astype(np.float64) @ head.astype(np.float64) / objectives.TEMPERATURE
        log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
        log_prob, entropy = log_p[np.arange(64), tokens], -(np.exp(log_p) * log_p).sum(1)
        ratio, d = np.exp(log_prob - old), log_prob - ref
        surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        penalty = objectives.KL * (np.exp(-d) - 1 + d)
        return np.mean(-surrogate + penalty - entropy_coef * entropy), (log_prob, entropy)

    for full, coefficient in ((True, objectives.ENTROPY), (False, 0.0)):
        forward = objectives.truth_of(case, "forward", full)
        for found, expected in zip(forward, loss(hidden, head, coefficient)[1], strict=False):
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        gradients = objectives.truth_of(case, "forward+backward", full)
        for argument, at in ((0, (0, 0)), (0, (63, 3)), (1, (3, 8))):
            around = []
            for sign in (1, -1):
                inputs = [hidden.astype(np.float64), head.astype(np.float64)]
                inputs[argument][at] += sign * step
                around.append(loss(*inputs, coefficient)[0])
            slope = (around[0] - around[1]) / (2 * step)
            np.testing.assert_allclose(gradients[argument][at], slope, rtol=1e-5, atol=1e-9)


def test_recurrences(run):
    rows = run("recurrences", "16x32")
    timed = [row for row in rows if "median" in row]
    assert all(TIMED | {"mode", "of_ceiling", "temporary", "error"} <= set(row) for row in timed)
    assert all(row["error"] < 2e-6 for row in timed)
    seen = {(row["op"], row["mode"]) for row in timed}
    modes = {("reverse_affine [B, T]", mode) for mode in ("forward", "forward+backward")}
    assert seen == {("gae [T, B]", "forward"), ("gae [B, T]", "forward")} | modes
    assert set(missing(rows)) == {"rlax", "torchrl loop", "torchrl vec_gae", "loop over tensors"}


def test_advantages(run):
    rows = run("advantages", "4x4x16", rules=("grpo", "gae"))
    assert {row["op"] for row in rows} == {"grpo", "gae"}
    assert all(TIMED | {"over_grpo", "of_ceiling"} <= set(row) for row in rows[:2])
    assert missing(rows) == {"rlax": "rlax is not installed"}


def test_rollout(run, load, monkeypatch, tmp_path):
    monkeypatch.setattr(load("stepping"), "STEPPED", {"maze": {}, "bifurcation": {}})
    rows = run("rollout", "tiny-decode", "tiny-geometric", "tiny-steps", figure=tmp_path / "f.png")
    by_name = {row["implementation"]: row for row in rows}
    assert TIMED | {"rate", "of_ceiling", "per_second", "temporary"} <= set(by_name["rlcredit"])
    assert by_name["padded"]["ratio"] > 0 and "ratio" not in by_name["refilled"]
    assert all(0 < by_name[way]["occupancy"] <= 1 for way in ("padded", "refilled"))
    assert {f"rlcredit {name}" for name in ("maze", "bifurcation")} < set(by_name)
    assert set(missing(rows)) == {"transformers generate", "tunix sampler", "jumanji Maze-v0"}
    assert (tmp_path / "f.png").stat().st_size > 1000


def test_training(run):
    rows = run("training", "tiny-grpo", "tiny-packed")
    values = {row["op"]: row["value"] for row in rows if "value" in row}
    assert values == {"compilations after two steps": 0, "aliased": 1}
    by_name = {(row["op"], row["implementation"]): row for row in rows}
    assert TIMED | {"rate", "of_ceiling", "per_second"} <= set(by_name["grpo step", "rlcredit"])
    assert by_name["one program", "pieces from Python"]["ratio"] > 0
    padded = by_name["update", "padded"]
    assert 0 < padded["padding"] < 1 and "of_ideal" not in by_name["update", "packed"]
    np.testing.assert_allclose(
        padded["of_ideal"], padded["ratio"] * (1 - padded["padding"]), atol=2e-3
    )
    assert missing(rows) == {"trl GRPOTrainer": "trl is not installed"}


def test_episodes_are_as_long_as_their_problems_say(load):
    task = load("lengths").geometric(3, 5)
    problems = task.held_out(400, 0)
    length = np.asarray(problems.length)
    assert length.min() == 1 and length.max() == 5 and abs(length.mean() - 2.6) < 0.3
    one = jax.tree.map(lambda leaf: leaf[0], problems)
    state, earned = task.start(one), 0.0
    for written in range(1, int(one.length) + 1):
        after = task.step(one, state, jnp.int32(2), jax.random.key(0))
        state, earned = after.state, earned + after.reward
        assert after.terminated == (written == one.length)
    np.testing.assert_allclose(earned, 1.0, rtol=1e-6)


@pytest.mark.parametrize("size", ["1.07 M", "0.14 M"])
def test_networks_have_the_size_they_are_called_by(load, size):
    shapes = jax.eval_shape(load("lengths").network(size).init, jax.random.key(0))
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert f"{total / 1e6:.2f} M" == size
    used = load("lengths").matrix_parameters(shapes)
    assert 0.9 * total < used < total


def test_a_random_token_is_one_of_the_allowed_each_as_likely(load):
    allowed = jnp.asarray([False, True, False, True, True])
    choose = jax.vmap(load("stepping").any_of, (None, 0))
    counts = np.bincount(choose(allowed, jax.random.split(jax.random.key(0), 3000)), minlength=5)
    assert not counts[[0, 2]].any() and (np.abs(counts[[1, 3, 4]] - 1000) < 120).all()


def test_random_play_starts_again_after_an_end(load):
    task = TASKS["bifurcation"]()  # episodes of five tokens that earn at the last one
    state, rewards = load("stepping").random_play(task, 8, 12)()
    assert (state.position == 12 % 5).all()
    assert (np.flatnonzero(rewards) % 5 == 4).all() and np.count_nonzero(rewards) == 2


ROWS = [
    {"op": "gae", "shape": "T=8", "dtype": "float32", "implementation": "rlcredit"}
    | {"median": 0.002, "rate": 3.0, "unit": "GB/s", "of_ceiling": 0.5, "temporary": 2**20},
    {"op": "gae", "shape": "T=8", "dtype": "float32", "implementation": "quick"}
    | {"median": 1.5, "ratio": 0.75, "error": 2e-7},
    {"op": "gae", "shape": "T=8", "implementation": "gone", "not_measured": "gone is not there"},
    {"op": "aliased", "shape": "T=8", "implementation": "rlcredit", "value": 1.0, "unit": "of it"},
]


def test_every_row_is_in_the_table_also_those_where_others_are_faster(load, tmp_path):
    report = load("report")
    content = {"machine": {"jax": "0"}, "rows": ROWS}
    (tmp_path / "losses-3.12.json").write_text(json.dumps(content))
    (tmp_path / "enumeration.json").write_text("{}")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.MARK}\nold\n{report.END}\nafter\n")
    options = report.Options(tmp_path, readme, tmp_path / "f.png")
    report.main(options)
    text = readme.read_text()
    assert "`benchmarks/results/losses-3.12.json`: jax 0" in text
    for line in (
        "| gae, T=8 | rlcredit | 2 ms | 3 GB/s | 0.50 | 1 MiB |  |  |",
        "| gae, T=8 | quick | 1.5 s |  |  |  | 2.0e-07 | 0.75 |",
        "| gae, T=8 | gone | not measured: gone is not there |  |  |  |  |  |",
        "| aliased, T=8 | rlcredit | 1 of it |  |  |  |  |  |",
    ):
        assert line in text
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    report.main(options)
    assert readme.read_text() == text and (tmp_path / "f.png").stat().st_size > 1000


def test_a_report_refuses_what_it_cannot_use(load, tmp_path):
    report = load("report")
    with pytest.raises(InputError, match="no results of losses"):
        report.main(report.Options(tmp_path))
    (tmp_path / "losses.json").write_text(json.dumps({"machine": {}, "rows": ROWS}))
    (tmp_path / "README.md").write_text("no place for it")
    with pytest.raises(InputError, match=r"README\.md needs <!-- benchmarks -->"):
        report.main(report.Options(tmp_path, tmp_path / "README.md"))
