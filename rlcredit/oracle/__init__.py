"""The truth about small tasks, and how credit rules compare with it."""

from rlcredit.exact.objective import objective
from rlcredit.exact.size import row_capacity, tree_size
from rlcredit.exact.tree import Tree, enumerate_episodes
from rlcredit.exact.values import Truth, exact, visits
from rlcredit.oracle.ground import Ground, make_prepare, prepare
from rlcredit.oracle.judge import Card, make_judge, report
from rlcredit.oracle.monte_carlo import MonteCarlo, monte_carlo_value
from rlcredit.oracle.price import make_pricer

__all__ = [
    "Card",
    "Ground",
    "MonteCarlo",
    "Tree",
    "Truth",
    "enumerate_episodes",
    "exact",
    "make_judge",
    "make_prepare",
    "make_pricer",
    "monte_carlo_value",
    "objective",
    "prepare",
    "report",
    "row_capacity",
    "tree_size",
    "visits",
]
