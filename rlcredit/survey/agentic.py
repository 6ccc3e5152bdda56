"""Methods for turns with an environment: the survey's numbers 16 to 41, and others."""

from __future__ import annotations

from functools import partial

from rlcredit.survey.method import entry

_entry = partial(entry, regime="agentic")

METHODS = (
    _entry(
        "AgentPRM: Process Reward Models for LLM Agents via Step-Wise Promise and Progress",
        ("AgentPRM (Xi)", 2025, "2511.08325", "16"),
        ("turn", "temporal-difference", "units value action_value"),
        ("critic", "PPO", "note", "training"),
        why_not="trains an action-value critic",
    ),
    _entry(
        "Process Reward Models for LLM Agents: Practical Framework and Directions",
        ("AgentPRM (Choudhury)", 2025, "2502.10325", "16b"),
        ("turn", "monte-carlo", "units action_value state_identity"),
        ("reward model", "PPO", "code", "training"),
        why_not="trains an action-value model on means over the states that were met",
    ),
    _entry(
        "SWEET-RL: Training Multi-Turn LLM Agents on Collaborative Reasoning Tasks",
        ("SWEET-RL", 2025, "2503.15478", "17"),
        ("turn", "implicit-reward", "units reference second_model privileged pairs"),
        ("second policy", "DPO", "code", "training"),
        why_not="trains a second language model that sees the answer, on preference pairs",
    ),
    _entry(
        "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Reward Design",
        ("MT-GRPO", 2025, "2505.11821", "18"),
        ("turn", "group-statistic", "group units"),
        ("none", "GRPO", "code", "free"),
        rule="mt_grpo",
    ),
    _entry(
        "Turn-PPO: Turn-Level Advantage Estimation with PPO for Improved Multi-Turn RL",
        ("Turn-PPO", 2025, "2512.17008", "19"),
        ("turn", "temporal-difference", "units value"),
        ("critic", "PPO", "note", "training"),
        rule="turn_ppo",
    ),
    _entry(
        "Stabilizing Off-Policy Training for Long-Horizon LLM Agent via Turn-Level Importance "
        "Sampling and Clipping-Triggered Normalization",
        ("SORL", 2025, "2511.20718", "20"),
        ("turn", "importance-weighting", "units"),
        ("none", "PPO", "note", "free"),
        rule="loss:sorl",
    ),
    _entry(
        "Process-Supervised Reinforcement Learning for Interactive Multimodal Tool-Use Agents",
        ("TARL", 2025, "2509.14480", "21"),
        ("trajectory", "llm-critic", "group units judge"),
        ("llm", "GRPO", "note", "judge"),
        why_not="needs a language model as judge of turns, and sums them up in one number again",
    ),
    _entry(
        "Implicit Turn-Wise Policy Optimization for Proactive User-LLM Interaction",
        ("ITPO", 2026, "2603.23550", "22"),
        ("turn", "implicit-reward", "group units reference second_model"),
        ("second policy", "REINFORCE", "code", "training"),
        why_not="trains a second language model",
    ),
    _entry(
        "Hindsight Credit Assignment for Long-Horizon LLM Agents",
        ("HCAPO", 2026, "2603.08754", "23"),
        ("turn", "hindsight", "group units extra_forward"),
        ("none", "GRPO", "third-party", "forward"),
        rule="hcapo",
    ),
    _entry(
        "Contextual Counterfactual Credit Assignment for Multi-Agent Reinforcement Learning in "
        "LLM Collaboration",
        ("C3", 2026, "2603.06859", "24"),
        ("turn agent", "game-theoretic", "tree roles"),
        ("none", "REINFORCE", "code", "sampling"),
        rule="c3",
        note="siblings after the same prefix, whoever wrote it: roles are not in a rollout",
    ),
    _entry(
        "Counterfactual Credit Policy Optimization for Multi-Agent Collaboration",
        ("CCPO", 2026, "2603.21563", "25"),
        ("agent", "game-theoretic", "group roles ablation"),
        ("none", "GRPO", "code", "sampling"),
        why_not="multi-agent: roles are not in a rollout yet",
    ),
    _entry(
        "CriticSearch: Fine-Grained Credit Assignment for Search Agents via a Retrospective Critic",
        ("CriticSearch", 2025, "2511.12159", "26"),
        ("turn", "llm-critic", "units privileged judge"),
        ("llm", "other", "abstract", "judge"),
        why_not="needs a language model as judge, which is shown the answer",
    ),
    _entry(
        "Group-in-Group Policy Optimization for LLM Agent Training",
        ("GiGPO", 2025, "2505.10978", "27"),
        ("step", "group-statistic", "group units state_identity"),
        ("none", "GRPO", "code", "free"),
        rule="gigpo",
    ),
    _entry(
        "Reinforcing Language Agents via Policy Optimization with Action Decomposition",
        ("POAD", 2024, "2405.15821", "28"),
        ("token turn", "temporal-difference", "units value"),
        ("critic", "PPO", "code", "training"),
        rule="poad",
    ),
    _entry(
        "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL",
        ("ArCHer", 2024, "2402.19446", "29"),
        ("turn token", "temporal-difference", "units value action_value"),
        ("critic", "REINFORCE", "code", "training"),
        why_not="trains twin action-value critics from a replay buffer",
    ),
    _entry(
        "PilotRL: Training Language Model Agents via Global Planning-Guided Progressive "
        "Reinforcement Learning",
        ("PilotRL", 2025, "2508.00344", "30"),
        ("trajectory", "llm-critic", "units judge"),
        ("llm", "other", "paper", "judge"),
        why_not="needs a language model as judge, and a policy of planner and executor",
    ),
    _entry(
        "CARL: Focusing Agentic Reinforcement Learning on Critical Actions",
        ("CARL", 2025, "2512.04949", "31"),
        ("step", "monte-carlo", "tree entropy"),
        ("none", "other", "third-party", "sampling"),
        rule="carl",
        note="the credit; the setting `cut` has forks at surprising tokens",
    ),
    _entry(
        "Information Gain-based Policy Optimization: A Simple and Effective Approach for "
        "Multi-Turn LLM Agents",
        ("IGPO", 2025, "2510.14967", "32"),
        ("turn", "information-theoretic", "group units extra_forward privileged"),
        ("none", "GRPO", "code", "forward"),
        rule="igpo",
    ),
    _entry(
        "Agentic Reinforcement Learning with Implicit Step Rewards",
        ("iStar", 2025, "2509.19199", "33"),
        ("step", "implicit-reward", "group units second_model pairs"),
        ("second policy", "GRPO", "code", "training"),
        why_not="trains a second language model",
    ),
    _entry(
        "From Novice to Expert: LLM Agent Policy Optimization via Step-wise Reinforcement Learning",
        ("StepAgent", 2024, "2411.03817", "34"),
        ("step", "demonstration", "units privileged pairs"),
        ("reward model", "DPO", "abstract", "training"),
        why_not="learns from an expert's steps, by pairs or a discriminator, not by an advantage",
    ),
    _entry(
        "Agent Lightning: Train ANY AI Agents with Reinforcement Learning",
        ("Agent Lightning", 2025, "2508.03680", "35"),
        ("turn", "group-statistic", "group units"),
        ("none", "GRPO", "code", "free"),
        rule="agent_lightning",
    ),
    _entry(
        "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning",
        ("RAGEN", 2025, "2504.20073", "36"),
        ("turn token", "temporal-difference", "units value"),
        ("critic", "PPO", "code", "training"),
        rule="bilevel_gae",
        note="all problems, where StarPO-S keeps those of large deviation",
    ),
    _entry(
        "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
        ("SPA-RL", 2025, "2505.20732", "37"),
        ("turn", "reward-redistribution", "units second_model"),
        ("return model", "PPO", "code", "training"),
        why_not="trains a second network to split the return",
    ),
    _entry(
        "Latent Reward: LLM-Empowered Credit Assignment in Episodic Reinforcement Learning",
        ("LaRe", 2024, "2412.11120", "38"),
        ("step", "reward-redistribution", "units second_model"),
        ("return model", "other", "code", "training"),
        why_not="trains a second network to split the return, on features that an LLM wrote",
    ),
    _entry(
        "SCRIBE: Structured Mid-Level Supervision for Tool-Using Language Models",
        ("SCRIBE", 2026, "2601.03555", "39"),
        ("step", "llm-critic", "units judge"),
        ("llm", "other", "abstract", "judge"),
        why_not="needs a language model as judge of each step by a rubric",
    ),
    _entry(
        "Enhancing Agentic RL with Progressive Reward Shaping and Value-based Sampling Policy "
        "Optimization",
        ("PRS and VSPO", 2025, "2512.07478", "40"),
        ("trajectory", "process-reward", "group step_scorer"),
        ("none", "GRPO", "note", "free"),
        why_not="a reward in stages and a choice of problems, which are no advantage",
    ),
    _entry(
        "Adaptive Segment-Level Reward: Bridging the Gap Between Action and Reward Space in "
        "Alignment",
        ("Adaptive segment-level reward", 2024, "2411.00809", "41"),
        ("segment", "process-reward", "units step_scorer"),
        ("reward model", "PPO", "abstract", "forward"),
        why_not="only its abstract was read, which gives no formula for the segments",
    ),
    _entry(
        "Tree Search for LLM Agent Reinforcement Learning",
        ("Tree-GRPO", 2025, "2509.21240", ""),
        ("step", "group-statistic", "group tree"),
        ("none", "GRPO", "code", "sampling"),
        rule="tree_grpo",
    ),
    _entry(
        "Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks",
        ("HGPO", 2026, "2602.22817", ""),
        ("step", "group-statistic", "group units state_identity"),
        ("none", "GRPO", "code", "free"),
        rule="hgpo",
    ),
    _entry(
        "Stratified GRPO: Handling Structural Heterogeneity in Reinforcement Learning of LLM "
        "Search Agents",
        ("Stratified GRPO", 2025, "2510.06214", ""),
        ("trajectory", "group-statistic", "group units"),
        ("none", "GRPO", "third-party", "free"),
        rule="stratified_grpo",
    ),
    _entry(
        "SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph",
        ("SALT", 2025, "2510.20022", ""),
        ("step", "group-statistic", "group units state_identity"),
        ("none", "GRPO", "own-operationalisation", "free"),
        rule="salt",
    ),
    _entry(
        "AT²PO: Agentic Turn-based Policy Optimization via Tree Search",
        ("AT²PO", 2026, "2601.04767", ""),
        ("turn", "monte-carlo", "units tree entropy"),
        ("none", "other", "note", "sampling"),
        why_not="its credit is that of `spo_tree`; forks at uncertain turns are not written",
    ),
    _entry(
        "Intrinsic Credit Assignment for Long Horizon Interaction",
        ("ΔBelief-RL", 2026, "2602.12342", ""),
        ("turn", "information-theoretic", "units extra_forward privileged"),
        ("none", "GRPO", "code", "forward"),
        rule="delta_belief",
    ),
    _entry(
        "HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for Large "
        "Language Model Agents",
        ("HiPER", 2026, "2602.16165", ""),
        ("turn token", "temporal-difference", "units value"),
        ("critic", "PPO", "note", "training"),
        why_not="needs a policy that says when it changes its subgoal",
    ),
    _entry(
        "Granularity-Adaptive Credit Assignment for Long-Horizon LLM Agent Reinforcement Learning",
        ("GACA", 2026, "2609.12424", ""),
        ("step", "group-statistic", "group units state_identity"),
        ("none", "GRPO", "note", "free"),
        rule="gaca",
    ),
    _entry(
        "Verifiable Process Rewards for Agentic Reasoning",
        ("VPR", 2026, "2605.10325", ""),
        ("turn", "process-reward", "units privileged"),
        ("none", "other", "abstract", "free"),
        why_not="only its abstract was read, which gives no formula",
    ),
    _entry(
        "VICT: Verifier-Instrumented Credit Tracing for Long-Horizon LLM Agent Reinforcement "
        "Learning",
        ("VICT", 2026, "2608.28128", ""),
        ("turn", "process-reward", "units privileged"),
        ("none", "other", "note", "free"),
        why_not="needs a verifier that says which actions each part of its verdict rests on",
    ),
    _entry(
        "Memory-R2: Fair Credit Assignment for Long-Horizon Memory-Augmented LLM Agents",
        ("LoGo-GRPO", 2026, "2605.21768", ""),
        ("turn", "group-statistic", "group branches"),
        ("none", "GRPO", "abstract", "sampling"),
        why_not="only its abstract was read, and no task here writes a memory",
    ),
    _entry(
        "Verified Critical Step Optimization for LLM Agents",
        ("CSO", 2026, "2602.03412", ""),
        ("step", "monte-carlo", "branches pairs"),
        ("none", "DPO", "note", "sampling"),
        why_not="learns from preference pairs, which is no advantage",
    ),
)
