"""An inventory of published credit-assignment methods, for programs and for readers.

The 47 of C. Zhang, From Reasoning to Agentic: Credit Assignment in Reinforcement Learning for Large
Language Models, 2026, arXiv 2604.09459v2, by its numbers, and others. What `method.Method` says is
our reading, and `known_from` how far to trust it. To add one: an entry in the module of its regime.
"""

from rlcredit.survey import agentic, general, multi_agent, reasoning
from rlcredit.survey.method import Method
from rlcredit.survey.selection import select
from rlcredit.survey.views import as_json, as_markdown, as_text

__all__ = ["METHODS", "Method", "as_json", "as_markdown", "as_text", "select"]

METHODS = (*reasoning.METHODS, *agentic.METHODS, *multi_agent.METHODS, *general.METHODS)
