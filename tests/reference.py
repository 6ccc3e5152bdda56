"""Slow references of the credit rules: loops in float64, written from the published formulas.

One function for each rule, under its name in the table. What lies off the mask is never read.
"""

import itertools

import numpy as np


def chosen(mask_row):
    """Positions of the chosen tokens of one row."""
    return [t for t, here in enumerate(mask_row) if here]


def rows(rollout):
    """((n, k), positions of its chosen tokens) of every episode that has any."""
    for row in np.ndindex(rollout.mask.shape[:2]):
        if positions := chosen(rollout.mask[row]):
            yield row, positions


def like(rollout):
    return np.zeros(rollout.mask.shape)


def returns(rollout):
    """{(n, k): undiscounted return} of the episodes with a chosen token."""
    return {row: sum(float(rollout.reward[row][t]) for t in at) for row, at in rows(rollout)}


def outcome(rollout, credit):
    """The same credit(own return, returns of the group) at every chosen token."""
    advantage, total = like(rollout), returns(rollout)
    for (n, k), positions in rows(rollout):
        group = [total[row] for row in total if row[0] == n]
        for t in positions:
            advantage[n, k, t] = credit(total[n, k], group)
    return advantage


def grpo(rollout, *, eps=1e-6):
    return outcome(rollout, lambda own, group: (own - np.mean(group)) / (np.std(group) + eps))


def dr_grpo(rollout):
    return outcome(rollout, lambda own, group: own - np.mean(group))


def rloo(rollout):
    def credit(own, group):
        others = (sum(group) - own) / (len(group) - 1) if len(group) > 1 else own
        return own - others

    return outcome(rollout, credit)


def reinforce_baseline(rollout):
    everyone = list(returns(rollout).values())
    return outcome(rollout, lambda own, group: own - np.mean(everyone))


def remax(rollout, *, greedy_return):
    advantage, total = like(rollout), returns(rollout)
    for (n, k), positions in rows(rollout):
        for t in positions:
            advantage[n, k, t] = total[n, k] - float(greedy_return[n])
    return advantage


def reinforce(rollout, *, discount=1.0):
    advantage = like(rollout)
    for row, positions in rows(rollout):
        for i, t in enumerate(positions):
            later = enumerate(positions[i:])
            advantage[row][t] = sum(discount**j * float(rollout.reward[row][k]) for j, k in later)
    return advantage


def reinforce_pp(rollout, *, ref_log_prob, kl_coef=0.01, discount=1.0):
    reward = like(rollout)
    for row, positions in rows(rollout):
        for t in positions:
            k1 = float(rollout.log_prob[row][t]) - float(ref_log_prob[row][t])
            reward[row][t] = float(rollout.reward[row][t]) - kl_coef * k1
    return reinforce(rollout._replace(reward=reward), discount=discount)


def values_on_path(rollout, value, row, positions):
    """Value before each chosen token, and after the last: 0 where terminated."""
    final = 0.0 if rollout.terminated[row] else float(value[row][rollout.length[row]])
    return [float(value[row][t]) for t in positions] + [final]


def gae(rollout, *, value, discount=1.0, lambda_=1.0):
    advantage = like(rollout)
    for row, positions in rows(rollout):
        v = values_on_path(rollout, value, row, positions)
        reward = [float(rollout.reward[row][t]) for t in positions]
        delta = [r + discount * v[i + 1] - v[i] for i, r in enumerate(reward)]
        for i, t in enumerate(positions):
            tail = enumerate(delta[i:])
            advantage[row][t] = sum((discount * lambda_) ** j * d for j, d in tail)
    return advantage


def lambda_return(reward, v, i, discount, lambda_):
    """The mixture over n of the n-step returns from i; the longest takes the remaining weight."""
    most = len(reward) - i
    total = 0.0
    for n in range(1, most + 1):
        n_step = sum(discount**j * reward[i + j] for j in range(n)) + discount**n * v[i + n]
        total += lambda_ ** (n - 1) * (1 if n == most else 1 - lambda_) * n_step
    return total


def td_lambda(rollout, *, value, discount=1.0, lambda_=0.95, actor_lambda=1.0):
    advantage, target = like(rollout), like(rollout)
    for row, positions in rows(rollout):
        v = values_on_path(rollout, value, row, positions)
        reward = [float(rollout.reward[row][t]) for t in positions]
        for i, t in enumerate(positions):
            advantage[row][t] = lambda_return(reward, v, i, discount, actor_lambda) - v[i]
            target[row][t] = lambda_return(reward, v, i, discount, lambda_)
    return advantage, target


def units(number_row, positions):
    """The chosen tokens of a row in lists, one for each step or turn."""
    return [list(unit) for _, unit in itertools.groupby(positions, lambda t: int(number_row[t]))]


def standard_score(own, group, eps):
    return (own - np.mean(group)) / (np.std(group) + eps)


def gigpo(rollout, *, fingerprint, omega=1.0, discount=1.0, statistics="steps", eps=1e-6):
    advantage, total = like(rollout), returns(rollout)
    steps, to_go = {}, {}
    for row, positions in rows(rollout):
        steps[row] = units(rollout.step[row], positions)
        earned = [sum(float(rollout.reward[row][t]) for t in step) for step in steps[row]]
        for u, step in enumerate(steps[row]):
            later = enumerate(earned[u:])
            state = (row[0], int(fingerprint[row][step[0]]))
            to_go[row, u] = state, sum(discount**j * reward for j, reward in later)
    for row in steps:
        group = [
            total[other]
            for other in steps
            if other[0] == row[0]
            for _ in (steps[other] if statistics == "steps" else [0])
        ]
        for u, step in enumerate(steps[row]):
            state, own = to_go[row, u]
            same = [other for where, other in to_go.values() if where == state]
            of_episode = standard_score(total[row], group, eps)
            advantage[row][step] = of_episode + omega * standard_score(own, same, eps)
    return advantage


def turn_loo(rollout):
    advantage, to_go = like(rollout), {}
    for row, positions in rows(rollout):
        for turn in units(rollout.turn[row], positions):
            later = [t for t in positions if t >= turn[0]]
            number = int(rollout.turn[row][turn[0]])
            to_go[row, number] = turn, sum(float(rollout.reward[row][t]) for t in later)
    for (row, number), (turn, own) in to_go.items():
        others = [
            other
            for (peer, here), (_, other) in to_go.items()
            if peer[0] == row[0] and peer != row and here == number
        ]
        advantage[row][turn] = own - np.mean(others) if others else own
    return advantage


def exact(rollout, *, exact_advantage):
    advantage = np.zeros(rollout.mask.shape)
    for place in zip(*np.nonzero(rollout.mask), strict=True):
        advantage[place] = float(exact_advantage[place])
    return advantage


ADVANTAGES = {
    "reinforce": reinforce,
    "reinforce_baseline": reinforce_baseline,
    "reinforce_pp": reinforce_pp,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "gae": gae,
    "td_lambda": td_lambda,
    "remax": remax,
    "gigpo": gigpo,
    "turn_loo": turn_loo,
    "exact": exact,
}


def whiten(x, mask, *, eps=1e-8):
    selected = [float(v) for v in x[mask]]
    mean = sum(selected) / max(len(selected), 1)
    deviation = np.sqrt(sum((v - mean) ** 2 for v in selected) / max(len(selected), 1))
    whitened = np.zeros(x.shape)
    for place in zip(*np.nonzero(mask), strict=True):
        whitened[place] = (float(x[place]) - mean) / (deviation + eps)
    return whitened
