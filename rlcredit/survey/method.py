"""What the inventory says of a method, and the words that it may use for it."""

from __future__ import annotations

from typing import NamedTuple

GRANULARITIES = {
    "token": "every token has credit of its own",
    "segment": "a run of tokens that the method cuts out shares one number",
    "step": "so does a step of reasoning, or an action between two states",
    "turn": "so does what the policy writes until it is answered; also one call of a model",
    "trajectory": "so does a whole episode",
    "agent": "so does what one of several agents wrote",
}

# Finer than the survey's five columns (Monte Carlo, temporal difference, language model as critic,
# game-theoretic, information-theoretic). A method has the one that its credit lives by.
METHODOLOGIES = {
    "outcome": "the return of the episode, with a baseline that is no other sample of the problem",
    "group-statistic": "relative to other samples of the problem, or from the same state",
    "monte-carlo": "differences of mean returns of episodes that share a prefix",
    "temporal-difference": "differences of values of adjacent prefixes: learned, or of a tree",
    "reward-redistribution": "the one reward is split by a model of it, or by its attention",
    "process-reward": "scores of units by a trained scorer or a checker",
    "llm-critic": "a language model reads the episode and says what was good",
    "implicit-reward": "log-ratios of two policies are read as rewards",
    "information-theoretic": "entropy, or what a unit adds to the probability of the answer",
    "hindsight": "probability of the action once the end is known, over that before",
    "game-theoretic": "what a unit or agent adds to the others: Shapley, leave-one-out",
    "demonstration": "an expert's or a corrected step against the policy's own",
    "importance-weighting": "no credit: how much of a unit's update passes, by its ratio",
}

REGIMES = {
    "reasoning": "one long answer to one prompt",
    "agentic": "turns with an environment that answers",
    "multi-agent": "several agents with one return",
    "general": "any of them, preference learning included",
}

NEEDS = {
    "group": "several samples of the same problem",
    "units": "where segments, steps or turns begin and end",
    "branches": "episodes sampled anew from the middle of a row",
    "tree": "rows sampled as a tree of shared prefixes",
    "value": "a learned value of prefixes or units",
    "action_value": "a learned value of actions",
    "reference": "log-probabilities of a frozen reference policy",
    "second_model": "a second network that is trained beside the policy",
    "step_scorer": "a scorer of units or of partial text: a reward model, or a checker",
    "extra_forward": "passes of the policy over an edited context",
    "entropy": "the whole distribution that each token was drawn from",
    "attention": "attention maps",
    "state_identity": "whether two states, or what is seen of them, are the same",
    "privileged": "a gold answer, an expert's step, or hidden state",
    "judge": "a language model as judge",
    "pairs": "pairs of which one is preferred",
    "roles": "which agent wrote what",
    "ablation": "the episode run again without an agent or segment",
}

AUXILIARY_MODELS = {
    "none": "none beside the policy and a frozen reference",
    "critic": "a value or action-value network, or head",
    "reward model": "a model that scores units or partial text",
    "return model": "a network that learns to split the return",
    "second policy": "a second language model whose log-probabilities are the scores",
    "llm": "a language model that is asked",
}

BASELINE_FAMILIES = {
    "REINFORCE": "a policy gradient with a baseline, leave-one-out included",
    "PPO": "a critic, generalised advantage estimation and a clipped ratio",
    "GRPO": "group-relative advantages",
    "DPO": "a loss on preference pairs",
    "other": "none of these, or not known",
}

KNOWN_FROM = {
    "code": "read in the official implementation, or a framework's",
    "third-party": "read in somebody else's implementation or adapter",
    "paper": "read in the paper, or in a note that repeats its equations",
    "textbook": "standard",
    "note": "read in a prose summary; details may be off",
    "abstract": "the abstract alone was read, and gives no formula",
    "own-operationalisation": "the abstract or a summary alone was read; the formula here is ours",
    "memory": "general knowledge",
}

PRICES = {
    "free": "arrays that are there anyhow",
    "forward": "passes over text that is there",
    "sampling": "more episodes",
    "training": "another network, or head, is trained",
    "judge": "a language model is asked",
}


class Method(NamedTuple):
    """One method as it was published; where ours differs, `note` says so.

    `methodology`, `auxiliary_model`, `baseline_family` and `price` are our own reading; the price
    is the dearest thing that the method adds to episodes of their own and one update.
    """

    name: str
    paper: str  # its title; the name where that is not known
    year: int  # of the first version; 0 where that is not known
    arxiv: str  # "" where there is none, or none is known
    survey_number: str  # of C. Zhang, 2026, arXiv 2604.09459v2; 5a and 5b share a paper; "": others
    granularity: tuple[str, ...]  # of GRANULARITIES
    methodology: str  # of METHODOLOGIES
    regime: str  # of REGIMES; the survey's for what it numbers
    needs: tuple[str, ...]  # of NEEDS, beyond tokens, rewards and the policy's log-probabilities
    auxiliary_model: str  # of AUXILIARY_MODELS
    baseline_family: str  # of BASELINE_FAMILIES
    known_from: str  # of KNOWN_FROM: the formula, that is; how far to trust it
    price: str  # of PRICES
    rule: str  # a rule of rlcredit.advantages, `loss:NAME`, `evidence:NAME`, or ""
    why_not: str  # one sentence where there is no rule
    note: str  # what is different here


def entry(
    paper: str,
    source: tuple[str, int, str, str],
    credit: tuple[str, str, str],
    means: tuple[str, str, str, str],
    *,
    regime: str,
    rule: str = "",
    why_not: str = "",
    note: str = "",
) -> Method:
    """A method in few lines.

    Args:
      paper: its title.
      source: name, year, arXiv id, number in the survey.
      credit: granularity, methodology, needs; granularity and needs may hold several words.
      means: auxiliary model, baseline family, what it is known from, price.
    """
    name, year, arxiv, survey_number = source
    granularity, methodology, needs = credit
    auxiliary_model, baseline_family, known_from, price = means
    return Method(
        name=name,
        paper=paper,
        year=year,
        arxiv=arxiv,
        survey_number=survey_number,
        granularity=tuple(granularity.split()),
        methodology=methodology,
        regime=regime,
        needs=tuple(needs.split()),
        auxiliary_model=auxiliary_model,
        baseline_family=baseline_family,
        known_from=known_from,
        price=price,
        rule=rule,
        why_not=why_not,
        note=note,
    )
