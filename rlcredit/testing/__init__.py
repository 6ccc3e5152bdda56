"""What a credit rule is held to: run `check_advantage` on one of your own."""

from rlcredit.testing.check import assert_advantage, check_advantage
from rlcredit.testing.properties import PROPERTIES
from rlcredit.testing.verdict import Finding, Verdict

__all__ = ["PROPERTIES", "Finding", "Verdict", "assert_advantage", "check_advantage"]
