"""Methods for one long answer: the survey's numbers 1 to 15, and others."""

from __future__ import annotations

from functools import partial

from rlcredit.survey.method import entry

_entry = partial(entry, regime="reasoning")

METHODS = (
    _entry(
        "VinePPO: Refining Credit Assignment in RL Training of LLMs",
        ("VinePPO", 2024, "2410.01679", "1"),
        ("step", "monte-carlo", "units branches"),
        ("none", "PPO", "code", "sampling"),
        rule="vineppo",
    ),
    _entry(
        "RED: Unleashing Token-Level Rewards from Holistic Feedback via Reward Redistribution",
        ("RED", 2024, "2411.08302", "2"),
        ("token", "reward-redistribution", "step_scorer reference"),
        ("reward model", "PPO", "third-party", "forward"),
        rule="red",
    ),
    _entry(
        "T-REG: Preference Optimization with Token-Level Reward Regularization",
        ("T-REG", 2024, "2412.02685", "3"),
        ("token", "implicit-reward", "reference extra_forward pairs"),
        ("none", "DPO", "paper", "forward"),
        why_not="learns from preference pairs, by prompts that a toy policy cannot read",
    ),
    _entry(
        "From r to Q*: Your Language Model is Secretly a Q-Function",
        ("From r to Q*", 2024, "2404.12358", "4"),
        ("token", "implicit-reward", "reference pairs"),
        ("none", "DPO", "memory", "forward"),
        rule="r_to_q",
        note="its identity as a token reward; no preference pairs",
    ),
    _entry(
        "Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large "
        "Language Models",
        ("SPO-chain", 2025, "2505.23564", "5a"),
        ("segment", "monte-carlo", "units branches"),
        ("none", "PPO", "code", "sampling"),
        rule="spo_chain",
    ),
    _entry(
        "Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large "
        "Language Models",
        ("SPO-tree", 2025, "2505.23564", "5b"),
        ("segment", "monte-carlo", "tree"),
        ("none", "PPO", "code", "sampling"),
        rule="spo_tree",
    ),
    _entry(
        "SCAR: Shapley Credit Assignment for More Efficient RLHF",
        ("SCAR", 2025, "2505.20417", "6"),
        ("segment token", "game-theoretic", "units step_scorer"),
        ("reward model", "PPO", "paper", "forward"),
        rule="scar",
        note="what is left out is sampled anew, where the source blanks it for a reward model",
    ),
    _entry(
        "Exploiting Tree Structure for Credit Assignment in RL Training of LLMs",
        ("TEMPO", 2025, "2509.18314", "7"),
        ("token", "temporal-difference", "group"),
        ("none", "GRPO", "code", "free"),
        rule="tempo",
    ),
    _entry(
        "Stop Summation: Min-Form Credit Assignment Is All Process Reward Model Needs for "
        "Reasoning",
        ("PURE", 2025, "2504.15275", "8"),
        ("step", "process-reward", "group units step_scorer"),
        ("reward model", "REINFORCE", "code", "training"),
        rule="pure",
    ),
    _entry(
        "Self-Guided Process Reward Optimization with Masked Step Advantage for Process "
        "Reinforcement Learning",
        ("SPRO", 2025, "2507.01551", "9"),
        ("token step", "implicit-reward", "group reference"),
        ("none", "GRPO", "third-party", "forward"),
        rule="spro",
    ),
    _entry(
        "CAPO: Towards Enhancing LLM Reasoning through Generative Credit Assignment",
        ("CAPO", 2025, "2508.02298", "10"),
        ("step", "llm-critic", "group units judge"),
        ("llm", "GRPO", "third-party", "judge"),
        rule="capo",
        note="the task's checker, with noise, in place of the judge",
    ),
    _entry(
        "Pinpointing Crucial Steps: Attribution-based Credit Assignment for Verifiable "
        "Reinforcement Learning",
        ("ACPO", 2025, "2510.08899", "11"),
        ("step", "information-theoretic", "units extra_forward"),
        ("none", "GRPO", "abstract", "forward"),
        why_not="only its abstract was read, which gives no formula for the attribution",
    ),
    _entry(
        "Emergent Hierarchical Reasoning in LLMs through Reinforcement Learning",
        ("HICRA", 2025, "2509.03646", "12"),
        ("token", "information-theoretic", "group units"),
        ("none", "GRPO", "third-party", "free"),
        rule="hicra",
        note="the first token of each unit plans, where the source marks phrases",
    ),
    _entry(
        "PRL: Process Reward Learning Improves LLMs' Reasoning Ability and Broadens the "
        "Reasoning Boundary",
        ("PRL", 2026, "2601.10201", "13"),
        ("token step", "implicit-reward", "group reference"),
        ("none", "GRPO", "code", "forward"),
        rule="prl",
    ),
    _entry(
        "InT: Self-Proposed Interventions Enable Credit Assignment in LLM Reasoning",
        ("InT", 2026, "2601.14209", "14"),
        ("step", "demonstration", "branches privileged judge"),
        ("llm", "other", "paper", "judge"),
        why_not="imitates corrected steps, which is no advantage, and needs a judge to find them",
    ),
    _entry(
        "SketchVL: Policy Optimization via Fine-Grained Credit Assignment for Chart "
        "Understanding and More",
        ("FinePO", 2026, "2601.05688", "15"),
        ("step", "process-reward", "group units step_scorer"),
        ("reward model", "GRPO", "paper", "training"),
        rule="finepo",
        note="without the prior over kinds of visual actions",
    ),
    _entry(
        "Process Reinforcement through Implicit Rewards",
        ("PRIME", 2025, "2502.01456", ""),
        ("token", "implicit-reward", "group reference second_model"),
        ("second policy", "REINFORCE", "code", "training"),
        why_not="trains a second language model",
    ),
    _entry(
        "Exploring the Limit of Outcome Reward for Learning Mathematical Reasoning",
        ("OREAL", 2025, "2502.06781", ""),
        ("token", "process-reward", "step_scorer"),
        ("reward model", "other", "code", "training"),
        why_not="trains a reward model of tokens",
    ),
    _entry(
        "Rewarding Progress: Scaling Automated Process Verifiers for LLM Reasoning",
        ("PAV", 2024, "2410.08146", ""),
        ("step", "monte-carlo", "units branches"),
        ("reward model", "REINFORCE", "memory", "training"),
        rule="pav",
        note="the prover's values are sampled, where the source trains a verifier on them",
    ),
    _entry(
        "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human Annotations",
        ("Math-Shepherd", 2023, "2312.08935", ""),
        ("step", "monte-carlo", "units branches"),
        ("reward model", "PPO", "memory", "training"),
        rule="evidence:shepherd_label",
        note="its labels; no reward model is trained on them",
    ),
    _entry(
        "Improve Mathematical Reasoning in Language Models by Automated Process Supervision",
        ("OmegaPRM", 2024, "2406.06592", ""),
        ("step", "monte-carlo", "units branches"),
        ("reward model", "other", "memory", "training"),
        rule="evidence:omega_label",
        note="its labels; no reward model is trained on them",
    ),
    _entry(
        "TreeRL: LLM Reinforcement Learning with On-Policy Tree Search",
        ("TreeRL", 2025, "2506.11902", ""),
        ("segment", "monte-carlo", "tree entropy"),
        ("none", "REINFORCE", "code", "sampling"),
        rule="treerl",
        note="the credit; where a row forks is the setting `cut`",
    ),
    _entry(
        "TreeRPO: Tree Relative Policy Optimization",
        ("TreeRPO", 2025, "2506.05183", ""),
        ("step", "group-statistic", "tree"),
        ("none", "GRPO", "memory", "sampling"),
        rule="treerpo",
    ),
    _entry(
        "GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
        ("GTPO", 2025, "2508.04349", ""),
        ("token", "information-theoretic", "group entropy"),
        ("none", "GRPO", "third-party", "forward"),
        rule="gtpo",
    ),
    _entry(
        "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement "
        "Learning for LLM Reasoning",
        ("80/20", 2025, "2506.01939", ""),
        ("token", "information-theoretic", "group entropy"),
        ("none", "GRPO", "code", "forward"),
        rule="top_entropy",
    ),
    _entry(
        "Step Potential Advantage Estimation: Harnessing Intermediate Confidence and Correctness "
        "for Efficient Mathematical Reasoning",
        ("SPAE", 2026, "2601.03823", ""),
        ("step", "information-theoretic", "group units extra_forward privileged"),
        ("none", "GRPO", "note", "forward"),
        why_not="needs short probes for an answer and its confidence, which nothing here measures",
    ),
    _entry(
        "Discovering Process-Outcome Credit in Multi-Step LLM Reasoning",
        ("MIG", 2026, "2602.01034", ""),
        ("step", "information-theoretic", "units extra_forward privileged"),
        ("none", "GRPO", "note", "forward"),
        rule="mig",
    ),
    _entry(
        "Credit Assignment with Resets in Language Model Reasoning",
        ("SRPO", 2026, "2605.25507", ""),
        ("step", "monte-carlo", "branches"),
        ("none", "other", "abstract", "sampling"),
        why_not="only its abstract was read; it says where to sample again, not what the credit is",
    ),
)
