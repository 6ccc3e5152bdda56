"""Methods for any policy of tokens: the usual baselines, losses, and what came of preferences."""

from __future__ import annotations

from functools import partial

from rlcredit.survey.method import entry

_entry = partial(entry, regime="general")

METHODS = (
    _entry(
        "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
        ("REINFORCE", 1992, "", ""),
        ("trajectory", "outcome", ""),
        ("none", "REINFORCE", "textbook", "free"),
        rule="reinforce",
    ),
    _entry(
        "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
        ("PPO with GAE", 2015, "1506.02438", ""),
        ("token", "temporal-difference", "value"),
        ("critic", "PPO", "code", "training"),
        rule="gae",
    ),
    _entry(
        "Training language models to follow instructions with human feedback",
        ("PPO with KL in the reward", 2022, "2203.02155", ""),
        ("token", "temporal-difference", "value reference"),
        ("critic", "PPO", "textbook", "training"),
        rule="ppo_kl",
    ),
    _entry(
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        ("GRPO", 2024, "2402.03300", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "code", "free"),
        rule="grpo",
        note="the outcome form; its KL penalty is in the loss `grpo`",
    ),
    _entry(
        "Understanding R1-Zero-Like Training: A Critical Perspective",
        ("Dr. GRPO", 2025, "2503.20783", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "code", "free"),
        rule="dr_grpo",
        note="its loss has the reducer `constant_length`",
    ),
    _entry(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        ("DAPO", 2025, "2503.14476", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "code", "free"),
        rule="grpo",
        note="with the setting `drop_equal`, which samples no more problems, the loss `ppo` with "
        "`clip_high`, and `token_mean`; no penalty for length",
    ),
    _entry(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback "
        "in LLMs",
        ("RLOO", 2024, "2402.14740", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "REINFORCE", "code", "free"),
        rule="rloo",
    ),
    _entry(
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback "
        "in LLMs",
        ("RLOO with KL in the reward", 2024, "2402.14740", ""),
        ("trajectory", "group-statistic", "group reference"),
        ("none", "REINFORCE", "code", "forward"),
        rule="rloo_kl",
    ),
    _entry(
        "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning "
        "Large Language Models",
        ("ReMax", 2023, "2310.10505", ""),
        ("trajectory", "outcome", ""),
        ("none", "REINFORCE", "code", "sampling"),
        rule="remax",
    ),
    _entry(
        "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models",
        ("REINFORCE++", 2025, "2501.03262", ""),
        ("token", "outcome", "reference"),
        ("none", "REINFORCE", "code", "forward"),
        rule="reinforce_pp",
        note="its whitening over the batch is the setting `whiten`",
    ),
    _entry(
        "On-Policy RL with Optimal Reward Baseline",
        ("OPO", 2025, "2505.23585", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "REINFORCE", "code", "free"),
        rule="opo",
    ),
    _entry(
        "The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL",
        ("Optimal token baseline", 2026, "2602.07078", ""),
        ("token", "group-statistic", "group entropy"),
        ("none", "REINFORCE", "code", "forward"),
        rule="optimal_token_baseline",
    ),
    _entry(
        "Optimizing Language Models for Inference Time Objectives using Reinforcement Learning",
        ("GRPO-pass@k", 2025, "2503.19595", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "code", "free"),
        rule="grpo_passk",
    ),
    _entry(
        "Maximum Likelihood Reinforcement Learning",
        ("MaxRL", 2026, "2602.02710", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "third-party", "free"),
        rule="maxrl",
    ),
    _entry(
        "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL "
        "Optimization",
        ("GDPO", 2026, "2601.05242", ""),
        ("trajectory", "group-statistic", "group"),
        ("none", "GRPO", "code", "free"),
        rule="gdpo",
        note="its whitening over the batch is the setting `whiten`",
    ),
    _entry(
        "Group Sequence Policy Optimization",
        ("GSPO", 2025, "2507.18071", ""),
        ("trajectory", "importance-weighting", ""),
        ("none", "GRPO", "code", "free"),
        rule="loss:gspo",
    ),
    _entry(
        "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
        ("CISPO", 2025, "2506.13585", ""),
        ("token", "importance-weighting", ""),
        ("none", "GRPO", "code", "free"),
        rule="loss:cispo",
    ),
    _entry(
        "Geometric-Mean Policy Optimization",
        ("GMPO", 2025, "2507.20673", ""),
        ("trajectory", "importance-weighting", ""),
        ("none", "GRPO", "code", "free"),
        why_not="a loss, not written yet",
    ),
    _entry(
        "Soft Adaptive Policy Optimization",
        ("SAPO", 2025, "2511.20347", ""),
        ("token", "importance-weighting", ""),
        ("none", "GRPO", "code", "free"),
        why_not="a loss, not written yet",
    ),
    _entry(
        "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
        ("Clip-Cov and KL-Cov", 2025, "2505.22617", ""),
        ("token", "importance-weighting", ""),
        ("none", "GRPO", "code", "free"),
        why_not="two losses, not written yet",
    ),
    _entry(
        "DPO Meets PPO: Reinforced Token Optimization for RLHF",
        ("RTO", 2024, "2404.18922", ""),
        ("token", "implicit-reward", "value reference second_model pairs"),
        ("second policy", "PPO", "code", "training"),
        why_not="trains a second language model, on preference pairs",
    ),
    _entry(
        "Dense Reward for Free in Reinforcement Learning from Human Feedback",
        ("ABC", 2024, "2402.00782", ""),
        ("token", "reward-redistribution", "attention"),
        ("reward model", "PPO", "code", "training"),
        why_not="needs the attention maps of a trained reward model",
    ),
    _entry(
        "P2T",
        ("P2T", 0, "", ""),
        ("token", "reward-redistribution", "step_scorer"),
        ("reward model", "other", "third-party", "training"),
        why_not="needs the gradients of a trained reward model",
    ),
    _entry(
        "Discriminative Policy Optimization for Token-Level Reward Models",
        ("Q-RM", 2025, "2505.23363", ""),
        ("token", "process-reward", "step_scorer pairs"),
        ("reward model", "PPO", "code", "training"),
        why_not="trains a reward model of tokens",
    ),
    _entry(
        "TLCR: Token-Level Continuous Reward for Fine-grained Reinforcement Learning from Human "
        "Feedback",
        ("TLCR", 2024, "2407.16574", ""),
        ("token", "process-reward", "step_scorer"),
        ("reward model", "PPO", "memory", "training"),
        why_not="trains a discriminator of tokens",
    ),
    _entry(
        "RUDDER: Return Decomposition for Delayed Rewards",
        ("RUDDER", 2018, "1806.07857", ""),
        ("step", "reward-redistribution", "second_model"),
        ("return model", "other", "note", "training"),
        why_not="trains a second network to predict the return",
    ),
    _entry(
        "Hindsight Credit Assignment",
        ("HCA", 2019, "1912.02503", ""),
        ("step", "hindsight", "second_model"),
        ("return model", "other", "memory", "training"),
        rule="hca",
        note="the probability in hindsight is exact, by enumeration, where the source learns it",
    ),
)
