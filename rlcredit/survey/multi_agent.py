"""Methods for several agents with one return: the survey's numbers 42 to 47, and others.

The survey counts C3 and CCPO among the agentic methods, where they are here too.
"""

from __future__ import annotations

from functools import partial

from rlcredit.survey.method import entry

_entry = partial(entry, regime="multi-agent")
_NO_ROLES = "multi-agent: roles are not in a rollout yet"

METHODS = (
    _entry(
        "Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
        ("M-GRPO", 2025, "2511.13288", "42"),
        ("agent", "group-statistic", "group roles"),
        ("none", "GRPO", "paper", "free"),
        why_not=_NO_ROLES,
    ),
    _entry(
        "Leveraging Large Language Models for Effective and Explainable Multi-Agent Credit "
        "Assignment",
        ("LLM-MCA", 2025, "2502.16863", "43"),
        ("agent step", "llm-critic", "judge roles"),
        ("llm", "other", "abstract", "judge"),
        why_not="needs a language model as judge; roles are not in a rollout yet",
    ),
    _entry(
        "QLLM: Do We Really Need a Mixing Network for Credit Assignment in Multi-Agent "
        "Reinforcement Learning?",
        ("QLLM", 2025, "2504.12961", "44"),
        ("agent", "temporal-difference", "action_value roles"),
        ("critic", "other", "abstract", "training"),
        why_not="mixes the critics of several agents by a function that a language model writes",
    ),
    _entry(
        "Who Deserves the Reward? SHARP: Shapley Credit-based Optimization for Multi-Agent System",
        ("SHARP", 2026, "2602.08335", "45"),
        ("agent", "game-theoretic", "group roles ablation"),
        ("none", "GRPO", "note", "sampling"),
        why_not=_NO_ROLES,
    ),
    _entry(
        "Scaling Multiagent Systems with Process Rewards",
        ("MAPPA", 2026, "2601.23228", "46"),
        ("turn agent", "llm-critic", "judge roles"),
        ("llm", "REINFORCE", "code", "judge"),
        why_not="needs a language model as coach; roles are not in a rollout yet",
    ),
    _entry(
        "Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems",
        ("Dr. MAS", 2026, "2602.08847", "47"),
        ("agent", "group-statistic", "group roles"),
        ("none", "GRPO", "code", "free"),
        why_not=_NO_ROLES,
    ),
    _entry(
        "MAPoRL: Multi-Agent Post-Co-Training for Collaborative Large Language Models with "
        "Reinforcement Learning",
        ("MAPoRL", 2025, "2502.18439", ""),
        ("turn agent", "process-reward", "step_scorer roles"),
        ("reward model", "PPO", "code", "forward"),
        why_not=_NO_ROLES,
    ),
    _entry(
        "Stronger-MAS: Multi-Agent Reinforcement Learning for Collaborative LLMs",
        ("AT-GRPO", 2025, "2510.11062", ""),
        ("turn agent", "group-statistic", "group branches roles"),
        ("none", "GRPO", "note", "sampling"),
        why_not=_NO_ROLES,
    ),
)
