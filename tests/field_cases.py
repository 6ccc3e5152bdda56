"""Reads the field cases: known faults of training code, each with the numbers of a right one.

In `expected` a key that starts with `_faulty` is what the fault gives, and `_atol` the tolerance.
"""

import json
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).with_name("field_cases.json")
CASES = {entry["id"]: entry for entry in json.loads(PATH.read_text())}


def numbers(entry):
    """Lists as arrays, 0/1 as they are, and the words nan, inf and -inf as numbers."""
    if isinstance(entry, dict):
        return {key: numbers(value) for key, value in entry.items()}
    try:
        return np.asarray(entry, np.float32) if isinstance(entry, list) else float(entry)
    except (TypeError, ValueError):  # rows of different lengths, or other words
        return entry


class Expected:
    """The results of one case."""

    def __init__(self, entry):
        self.results = numbers(entry)
        self.atol = self.results.get("_atol", 1e-6)

    def __getitem__(self, name):
        return self.results[name]

    def check(self, got, name, *faulty):
        """`got` is the result called `name`, and none of the `faulty` ones."""
        np.testing.assert_allclose(got, self[name], atol=self.atol, rtol=0)
        for fault in faulty:
            assert not np.allclose(got, self[fault], atol=10 * self.atol, rtol=0), fault


def case(name):
    """Gives a test the inputs of a case and what to expect; the case is its id."""
    entry = CASES[name]
    values = [(numbers(entry["inputs"]), Expected(entry["expected"]))]
    return pytest.mark.parametrize("given, expected", values, ids=[name])
