"""The inventory of published methods, and `python -m rlcredit survey`."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from rlcredit.__main__ import main
from rlcredit.advantages import ADVANTAGES
from rlcredit.credit import signature
from rlcredit.evidence import EVIDENCE
from rlcredit.losses import LOSSES, REDUCERS
from rlcredit.survey import METHODS, as_json, as_markdown, as_text, method, select
from rlcredit.train import Training
from rlcredit.types import InputError

README = Path(__file__).parent.parent / "README.md"
TABLES = {"": ADVANTAGES, "loss": LOSSES, "evidence": EVIDENCE}

# Rules that no entry has to name: textbook variants, the truth itself, and a benchmark's.
NOT_PUBLISHED = {"reinforce_baseline", "td_lambda", "exact", "turn_loo"}

# One of these needs stands behind the evidence that a rule asks for.
BEHIND = {
    "value": {"value"},
    "ref_log_prob": {"reference"},
    "entropy": {"entropy"},
    "collision": {"entropy"},
    "fingerprint": {"state_identity"},
    "unit": {"units", "tree"},
    "branch_value": {"branches"},
    "prover_value": {"branches"},
    "node_value": {"tree"},
    "answer_log_prob": {"privileged"},
    "hindsight_log_prob": {"extra_forward"},
    "exact_hindsight": {"second_model"},
    "step_score": {"step_scorer", "judge"},
    "prefix_score": {"step_scorer"},
    "coalition_value": {"step_scorer", "ablation"},
}


def names(entries):
    return [entry.name for entry in entries]


def function_of(entry):
    kind, _, name = entry.rule.rpartition(":")
    return TABLES[kind].get(name)


def test_all_numbers_of_the_survey_are_there():
    numbers = [entry.survey_number for entry in METHODS if entry.survey_number]
    assert len(set(numbers)) == len(numbers)
    assert {int(number.rstrip("ab")) for number in numbers} == set(range(1, 48))
    assert numbers == sorted(numbers, key=lambda n: (int(n.rstrip("ab")), n))


def test_names_are_unique():
    assert len(set(names(METHODS))) == len(METHODS)


@pytest.mark.parametrize("entry", METHODS, ids=names(METHODS))
def test_the_source_is_well_formed(entry):
    assert entry.name and entry.paper
    if entry.arxiv:
        assert re.fullmatch(r"\d{2}(0[1-9]|1[0-2])\.\d{5}", entry.arxiv)
        assert entry.year == 2000 + int(entry.arxiv[:2])


def test_ids_are_those_of_the_papers_where_the_surveys_list_has_others():
    ids = {entry.name: entry.arxiv for entry in METHODS}
    assert (ids["PURE"], ids["LaRe"]) == ("2504.15275", "2412.11120")


CLOSED = {
    "granularity": method.GRANULARITIES,
    "methodology": method.METHODOLOGIES,
    "regime": method.REGIMES,
    "needs": method.NEEDS,
    "auxiliary_model": method.AUXILIARY_MODELS,
    "baseline_family": method.BASELINE_FAMILIES,
    "known_from": method.KNOWN_FROM,
    "price": method.PRICES,
}


@pytest.mark.parametrize("field", CLOSED)
def test_closed_sets_are_closed_and_every_word_is_used_and_explained(field):
    used = set()
    for entry in METHODS:
        value = getattr(entry, field)
        words = value if isinstance(value, tuple) else (value,)
        assert len(set(words)) == len(words), entry.name
        used |= set(words)
    assert used == set(CLOSED[field])
    assert all(CLOSED[field].values())


@pytest.mark.parametrize("entry", METHODS, ids=names(METHODS))
def test_the_fields_agree_with_each_other(entry):
    assert entry.granularity
    assert bool(entry.rule) != bool(entry.why_not), "a rule, or why there is none"
    assert len(entry.why_not) <= 90
    asked = entry.auxiliary_model == "llm"
    assert asked == ("judge" in entry.needs) == (entry.price == "judge")
    second = entry.auxiliary_model in ("second policy", "return model")
    assert second == ("second_model" in entry.needs)
    assert (entry.auxiliary_model == "critic") <= bool({"value", "action_value"} & {*entry.needs})
    assert (entry.price == "training") <= (entry.auxiliary_model not in ("none", "llm"))
    again = {"branches", "tree", "ablation"} & {*entry.needs}
    assert (entry.price == "sampling") <= bool(again or entry.name == "ReMax")
    assert (entry.known_from == "abstract") <= (not entry.rule), "then it is our own formula"


HERE = [entry for entry in METHODS if entry.rule]


@pytest.mark.parametrize("entry", HERE, ids=names(HERE))
def test_every_rule_named_exists(entry):
    assert function_of(entry) is not None, f"{entry.rule} is in no table"


def test_every_rule_of_a_published_method_is_named():
    assert ADVANTAGES.keys() >= NOT_PUBLISHED
    assert ADVANTAGES.keys() - NOT_PUBLISHED == {e.rule for e in HERE if ":" not in e.rule}


DOUBTFUL = [e for e in HERE if e.known_from in ("own-operationalisation", "memory", "note")]


@pytest.mark.parametrize("entry", DOUBTFUL, ids=names(DOUBTFUL))
def test_a_rule_says_where_its_source_was_not_read(entry):
    function = function_of(entry)
    documents = (inspect.getdoc(inspect.getmodule(function)), inspect.getdoc(function))
    said = " ".join(" ".join(filter(None, documents)).split())
    message = f"the docstring of {entry.rule} has to say that its source was 'not read in full'"
    assert "not read in full" in said, message


RULES = [entry for entry in HERE if ":" not in entry.rule]


@pytest.mark.parametrize("entry", RULES, ids=names(RULES))
def test_needs_cover_the_evidence_that_the_rule_asks_for(entry):
    for name in signature(function_of(entry))[0]:
        assert BEHIND.get(name, set(entry.needs)) & {*entry.needs} or name not in BEHIND, name


def test_notes_name_what_is_there():
    known = {*ADVANTAGES, *LOSSES, *REDUCERS, *inspect.signature(LOSSES["ppo"]).parameters}
    known |= {field.name for field in dataclasses.fields(Training)}
    named = {n for e in METHODS for n in re.findall("`(.*?)`", e.note + e.why_not)}
    assert "drop_equal" in named
    assert named <= known


def test_filters_choose():
    tokens = select(METHODS, granularity="token")
    assert {"RED", "TEMPO", "SCAR"} <= {*names(tokens)} and "VinePPO" not in names(tokens)
    assert {e.methodology for e in select(METHODS, methodology="game-theoretic")} == {
        "game-theoretic"
    }
    assert {e.regime for e in select(METHODS, regime="multi-agent")} == {"multi-agent"}
    assert select(METHODS, implemented=True) == tuple(HERE)
    both = select(METHODS, regime="agentic", methodology="temporal-difference", implemented=True)
    assert names(both) == ["Turn-PPO", "POAD", "RAGEN"]
    assert select(METHODS) == METHODS


def test_needs_are_what_one_has():
    found = select(METHODS, needs=("group", "units"))
    assert {"REINFORCE", "GRPO", "MT-GRPO"} <= {*names(found)}
    assert not {"GiGPO", "SPRO", "VinePPO"} & {*names(found)}
    assert all(set(entry.needs) <= {"group", "units"} for entry in found)
    assert all(entry.needs == () for entry in select(METHODS, needs=()))
    assert select(METHODS, needs=method.NEEDS) == METHODS


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("granularity", "word"),
        ("methodology", "td"),
        ("regime", "robots"),
        ("needs", "group,unit"),
    ],
)
def test_an_unknown_word_is_one_sentence_and_status_two(flag, word, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["survey", f"--{flag}", word])
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    bad = word.split(",")[-1]
    assert len(said) == 1 and repr(bad) in said[0] and ", ".join(CLOSED[flag]) in said[0]


def test_an_unknown_word_is_an_input_error():
    with pytest.raises(InputError, match="granularity 'word' is not one of token, segment"):
        select(METHODS, granularity="word")


def printed(capsys, *arguments):
    main(["survey", *arguments])
    return capsys.readouterr().out.strip()


def test_the_command_passes_every_filter_on(capsys):
    chosen = dict(granularity="step", methodology="group-statistic", regime="agentic")
    flags = [part for name, word in chosen.items() for part in (f"--{name}", word)]
    flags += ["--needs", "group, units,state_identity", "--implemented"]
    needs = ("group", "units", "state_identity")
    expected = select(METHODS, **chosen, needs=needs, implemented=True)
    assert names(expected) == ["GiGPO", "HGPO", "SALT", "GACA"]
    assert printed(capsys, *flags) == as_text(expected)
    assert printed(capsys, "--implemented") == as_text(HERE)
    assert printed(capsys, "--needs", "", "--json") == as_json(select(METHODS, needs=()))
    assert printed(capsys) == as_text(METHODS)


def test_json_has_every_field(capsys):
    entries = json.loads(printed(capsys, "--json"))
    assert [tuple(entry) for entry in entries] == [method.Method._fields] * len(METHODS)
    assert entries[0]["granularity"] == ["step"] and entries[0]["rule"] == "vineppo"


def test_text_names_every_method_and_counts():
    text = as_text(METHODS)
    assert all(f"{name} (" in text or f"{name}\n" in text for name in names(METHODS))
    assert text.endswith(f"methods: {len(METHODS)}; here: {len(HERE)}")


def test_markdown_has_one_row_a_method_and_escapes(capsys):
    table = printed(capsys, "--markdown")
    rows = table.splitlines()
    assert len(rows) == 2 + len(METHODS)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}
    assert "[From r to Q\\*](https://arxiv.org/abs/2404.12358)" in table
    assert "| `vineppo` |" in table and "| loss `sorl` |" in table
    piped = METHODS[0]._replace(note="a|b")
    assert "a\\|b" in as_markdown([piped])


def test_help_says_what_needs_mean(capsys):
    with pytest.raises(SystemExit):
        main(["survey", "--help"])
    assert "needs are all among these" in " ".join(capsys.readouterr().out.split())


def test_the_table_of_the_readme_is_current():
    readme = README.read_text()
    table = readme.partition("<!-- survey -->")[2].partition("<!-- /survey -->")[0]
    assert table.strip() == as_markdown(METHODS)
