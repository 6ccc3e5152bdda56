"""Slow references of the rules of turns, log-ratios and entropy: float64 loops."""

import numpy as np
from reference import gae, grpo, like, returns, rloo, rows


def pieces(unit, row, positions):
    """The positions of each unit of a row, in order."""
    numbers = sorted({int(unit[row][t]) for t in positions})
    return [[t for t in positions if unit[row][t] == number] for number in numbers]


def ending(rollout, row, value):
    """The value after the last chosen token."""
    return 0.0 if rollout.terminated[row] else float(value[row][rollout.length[row]])


def turn_ppo(rollout, *, unit, value, discount=1.0, lambda_=1.0):
    advantage, target = like(rollout), like(rollout)
    for row, positions in rows(rollout):
        own = pieces(unit, row, positions)
        first = [float(value[row][at[0]]) for at in own] + [ending(rollout, row, value)]
        running = 0.0
        for u in reversed(range(len(own))):
            earned = sum(float(rollout.reward[row][t]) for t in own[u])
            running = earned + discount * first[u + 1] - first[u] + discount * lambda_ * running
            advantage[row][own[u]] = running
            target[row][own[u]] = running + first[u]
    return advantage, target


def bilevel_gae(rollout, *, unit, value, discount=1.0, lambda_=1.0, turn_discount=0.95):
    advantage = like(rollout)
    for row, positions in rows(rollout):
        own = pieces(unit, row, positions)
        last = [float(value[row][at[-1]]) for at in own] + [ending(rollout, row, value)]
        running = 0.0
        for u in reversed(range(len(own))):
            earned = sum(float(rollout.reward[row][t]) for t in own[u])
            delta = earned + turn_discount * last[u + 1] - last[u]
            running = delta + turn_discount * lambda_ * running
            inside = 0.0
            for i, t in reversed(list(enumerate(own[u]))):
                if i == len(own[u]) - 1:
                    inside = running + last[u] - float(value[row][t])
                else:
                    step = discount * float(value[row][own[u][i + 1]]) - float(value[row][t])
                    inside = step + discount * lambda_ * inside
                advantage[row][t] = inside
    return advantage


def poad(rollout, *, unit, value, discount=0.99, lambda_=0.95):
    advantage = like(rollout)
    for row, positions in rows(rollout):
        ends = {at[-1] for at in pieces(unit, row, positions)}
        following, running = ending(rollout, row, value), 0.0
        for t in reversed(positions):
            kept = discount if t in ends else 1.0
            own = float(value[row][t])
            delta = float(rollout.reward[row][t]) + kept * following - own
            running = delta + kept * lambda_ * running
            advantage[row][t], following = running, own
    return advantage


def log_ratios(rollout, ref_log_prob):
    ratio = like(rollout)
    for row, positions in rows(rollout):
        for t in positions:
            ratio[row][t] = float(rollout.log_prob[row][t]) - float(ref_log_prob[row][t])
    return ratio


def paid(rollout, ref_log_prob, kl_coef):
    reward = np.where(rollout.mask, rollout.reward, 0) - kl_coef * log_ratios(rollout, ref_log_prob)
    return rollout._replace(reward=reward)


def ppo_kl(rollout, *, value, ref_log_prob, kl_coef=0.01, discount=1.0, lambda_=0.95):
    own = paid(rollout, ref_log_prob, kl_coef)
    return gae(own, value=value, discount=discount, lambda_=lambda_)


def rloo_kl(rollout, *, ref_log_prob, kl_coef=0.01):
    return rloo(paid(rollout, ref_log_prob, kl_coef))


def prl(rollout, *, ref_log_prob, eta=100.0, eps=1e-6):
    advantage, ratio = grpo(rollout, eps=eps), log_ratios(rollout, ref_log_prob)
    for row, positions in rows(rollout):
        for i, t in enumerate(positions):
            advantage[row][t] -= sum(ratio[row][j] for j in positions[i:]) / eta
    return advantage


def spro(rollout, *, ref_log_prob, beta=0.05, eps=1e-6):
    advantage, ratio = grpo(rollout, eps=eps), log_ratios(rollout, ref_log_prob)
    every = dict(rows(rollout))

    def so_far(row, number):
        return beta * sum(ratio[row][j] for j in every[row][: number + 1])

    for row, positions in every.items():
        for number, t in enumerate(positions):
            alive = [r for r in every if r[0] == row[0] and len(every[r]) > number]
            mean = np.mean([so_far(r, number) for r in alive])
            advantage[row][t] += so_far(row, number) - mean
    return advantage


def r_to_q(rollout, *, ref_log_prob, beta=0.05):
    advantage, total = like(rollout), returns(rollout)
    ratio = log_ratios(rollout, ref_log_prob)
    for row, positions in rows(rollout):
        mean = np.mean([r for other, r in total.items() if other[0] == row[0]])
        for t in positions:
            advantage[row][t] = total[row] - mean + beta * ratio[row][t]
    return advantage


def gtpo(rollout, *, entropy, beta=0.1, eps=1e-6):
    advantage = grpo(rollout, eps=eps)
    for row, positions in rows(rollout):
        group = [(r, t) for r, at in rows(rollout) if r[0] == row[0] for t in at]
        mean = np.mean([float(entropy[r][t]) for r, t in group])
        for t in positions:
            advantage[row][t] *= max(0, 1 + beta * (float(entropy[row][t]) / mean - 1))
    return advantage


def top_entropy(rollout, *, entropy, share=0.2, eps=1e-6):
    advantage = grpo(rollout, eps=eps)
    every = sorted((float(entropy[r][t]) for r, at in rows(rollout) for t in at), reverse=True)
    kept = int(np.ceil(np.float32(share) * np.float32(len(every))))
    for row, positions in rows(rollout):
        for t in positions:
            if float(entropy[row][t]) < every[max(kept - 1, 0)]:
                advantage[row][t] = 0
    return advantage


def hicra(rollout, *, unit, alpha=0.2, eps=1e-6):
    advantage = grpo(rollout, eps=eps)
    for row, positions in rows(rollout):
        for at in pieces(unit, row, positions):
            advantage[row][at[0]] += alpha * abs(advantage[row][at[0]])
    return advantage


ADVANTAGES = {
    "turn_ppo": turn_ppo,
    "bilevel_gae": bilevel_gae,
    "poad": poad,
    "ppo_kl": ppo_kl,
    "rloo_kl": rloo_kl,
    "prl": prl,
    "spro": spro,
    "r_to_q": r_to_q,
    "gtpo": gtpo,
    "top_entropy": top_entropy,
    "hicra": hicra,
}
SETTINGS = {
    "turn_ppo": [{"discount": 0.9, "lambda_": 0.8}],
    "bilevel_gae": [{"discount": 0.9, "lambda_": 0.8, "turn_discount": 0.7}],
    "poad": [{"discount": 0.8, "lambda_": 0.6}],
    "ppo_kl": [{"kl_coef": 0.5, "discount": 0.9}],
    "rloo_kl": [{"kl_coef": 0.5}],
    "prl": [{"eta": 2.0, "eps": 0.1}],
    "spro": [{"beta": 0.7}],
    "r_to_q": [{"beta": 0.7}],
    "gtpo": [{"beta": 2.0}],
    "top_entropy": [{"share": 0.5}],
    "hicra": [{"alpha": 0.7}],
}
