"""Slow references of the rules of information gain and hindsight: float64 loops."""

import numpy as np
from reference import grpo, like, returns, rows
from reference_turns import pieces


def outcome(rollout):
    """{row: R less the mean of its group}"""
    total = returns(rollout)
    groups = {n: np.mean([r for (m, _), r in total.items() if m == n]) for n, _ in total}
    return {row: r - groups[row[0]] for row, r in total.items()}


def marks(rollout, unit, answer_log_prob):
    """{row: (its units, the log-probability before each)}"""
    every = {row: pieces(unit, row, positions) for row, positions in rows(rollout)}
    return {
        row: (own, [float(answer_log_prob[row][at[0]]) for at in own]) for row, own in every.items()
    }


def igpo(rollout, *, unit, answer_log_prob, discount=1.0, eps=1e-6):
    advantage, total = like(rollout), returns(rollout)
    every = marks(rollout, unit, answer_log_prob)
    gains = {row: np.diff(np.exp(mark)) for row, (_, mark) in every.items()}
    for row, (own, _) in every.items():
        group = np.concatenate([g for other, g in gains.items() if other[0] == row[0]])
        returned = [r for other, r in total.items() if other[0] == row[0]]
        z = [(g - np.mean(group)) / (np.std(group) + eps) for g in gains[row]]
        z.append((total[row] - np.mean(returned)) / (np.std(returned) + eps))
        for u, at in enumerate(own):
            advantage[row][at] = sum(discount**j * later for j, later in enumerate(z[u:]))
    return advantage


def mig(rollout, *, unit, answer_log_prob, coef=1.0):
    advantage, relative = like(rollout), outcome(rollout)
    for row, (own, mark) in marks(rollout, unit, answer_log_prob).items():
        for u, at in enumerate(own):
            last = u == len(own) - 1
            gain = 0 if last else max(0, mark[u + 1] - max(mark[: u + 1]))
            advantage[row][at] = relative[row] + coef * gain
    return advantage


def delta_belief(rollout, *, unit, answer_log_prob, coef=1.0, clip=np.inf):
    advantage, relative = like(rollout), outcome(rollout)
    for row, (own, mark) in marks(rollout, unit, answer_log_prob).items():
        for u, at in enumerate(own):
            gain = 0 if u == len(own) - 1 else np.clip(mark[u + 1] - mark[u], -clip, clip)
            advantage[row][at] = relative[row] + coef * gain
    return advantage


def hca(rollout, *, exact_hindsight):
    advantage = like(rollout)
    for row, positions in rows(rollout):
        for i, t in enumerate(positions):
            to_go = sum(float(rollout.reward[row][j]) for j in positions[i:])
            ratio = np.exp(float(rollout.log_prob[row][t]) - float(exact_hindsight[row][t]))
            advantage[row][t] = (1 - ratio) * to_go
    return advantage


def hcapo(
    rollout, *, unit, hindsight_log_prob, omega=1.0, temperature=5.0, low=0.8, high=1.2,
    discount=0.95, eps=1e-6,
):  # fmt: skip
    advantage, total = grpo(rollout, eps=eps), returns(rollout)
    quality = {}
    for row, positions in rows(rollout):
        own = pieces(unit, row, positions)
        means = [np.mean([float(hindsight_log_prob[row][t]) for t in at]) for at in own]
        likely = [np.exp(mean / temperature) for mean in means]
        for u, at in enumerate(own):
            weight = np.clip(likely[u] / np.mean(likely), low, high)
            quality[row, tuple(at)] = weight * discount ** (len(own) - 1 - u) * total[row]
    for (row, at), own in quality.items():
        group = [q for (other, _), q in quality.items() if other[0] == row[0]]
        score = (own - np.mean(group)) / (np.std(group) + eps)
        advantage[row][list(at)] += omega * (max(score, 0) if total[row] > 0 else score)
    return advantage


ADVANTAGES = {
    "igpo": igpo,
    "mig": mig,
    "delta_belief": delta_belief,
    "hca": hca,
    "hcapo": hcapo,
}
SETTINGS = {
    "igpo": [{"discount": 0.8, "eps": 0.1}],
    "mig": [{"coef": 0.3}],
    "delta_belief": [{"coef": 0.3, "clip": 0.5}],
    "hcapo": [{"omega": 0.5, "temperature": 1.0, "low": 0.5, "high": 1.5, "eps": 0.1}],
}
