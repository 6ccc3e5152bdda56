"""Slow references of the rules of group statistics, prefix groups and state groups; see
`reference`.
"""

import itertools

import numpy as np
from reference import grpo, like, returns, rows, standard_score, units


def group_of(total, row):
    """Values of the samples of the row's problem."""
    return [value for other, value in total.items() if other[0] == row[0]]


def per_episode(rollout, credit):
    """credit(row) at every chosen token."""
    advantage = like(rollout)
    for row, positions in rows(rollout):
        advantage[row][positions] = credit(row)
    return advantage


def opo(rollout):
    total = returns(rollout)
    length = {row: len(positions) for row, positions in rows(rollout)}

    def credit(row):
        baseline = np.average(group_of(total, row), weights=group_of(length, row))
        return total[row] - baseline

    return per_episode(rollout, credit)


def grpo_passk(rollout):
    total = returns(rollout)

    def credit(row):
        group = sorted(group_of(total, row))
        best = len(group) > 1 and total[row] == group[-1]
        return group[-1] - group[-2] if best else 0.0

    return per_episode(rollout, credit)


def maxrl(rollout, *, eps=1e-6):
    total = returns(rollout)

    def credit(row):
        mean = np.mean(group_of(total, row))
        return (total[row] - mean) / (mean + eps) if mean > 0 else 0.0

    return per_episode(rollout, credit)


def gdpo(rollout, *, eps=1e-6):
    channels = [returns(rollout)]
    if rollout.feedback is not None:
        for f in range(rollout.feedback.shape[-1]):
            column = rollout.feedback[..., f]
            channels.append({r: sum(float(column[r][t]) for t in at) for r, at in rows(rollout)})

    def credit(row):
        return sum(standard_score(c[row], group_of(c, row), eps) for c in channels)

    return per_episode(rollout, credit)


def stratified_grpo(rollout, *, alpha=0.8, eps=1e-6):
    total, overall = returns(rollout), grpo(rollout, eps=eps)
    turns = {row: len(units(rollout.turn[row], positions)) for row, positions in rows(rollout)}
    advantage = like(rollout)
    for row, positions in rows(rollout):
        stratum = [total[o] for o in total if o[0] == row[0] and turns[o] == turns[row]]
        inside = standard_score(total[row], stratum, eps)
        advantage[row][positions] = alpha * inside + (1 - alpha) * overall[row][positions]
    return advantage


def agent_lightning(rollout, *, eps=1e-6):
    total, calls = returns(rollout), {}
    for row, positions in rows(rollout):
        calls.setdefault(row[0], []).extend(total[row] for _ in units(rollout.turn[row], positions))
    return per_episode(rollout, lambda row: standard_score(total[row], calls[row[0]], eps))


def mt_grpo(rollout, *, turn_coef=1.0, eps=1e-6):
    advantage, before, final, turns = like(rollout), {}, {}, {}
    for row, positions in rows(rollout):
        turns[row] = units(rollout.turn[row], positions)
        earned = [sum(float(rollout.reward[row][t]) for t in turn) for turn in turns[row]]
        before[row], final[row] = sum(earned[:-1]), earned[-1]
    for row, pieces in turns.items():
        outcome = standard_score(final[row], group_of(final, row), eps)
        early = standard_score(before[row], group_of(before, row), eps)
        for turn in pieces[:-1]:
            advantage[row][turn] = outcome + turn_coef * early
        advantage[row][pieces[-1]] = outcome
    return advantage


def optimal_token_baseline(rollout, *, collision):
    advantage, alive = like(rollout), {}
    for row, positions in rows(rollout):
        weight = 0.0
        for u, t in enumerate(positions):
            probability = np.exp(float(rollout.log_prob[row][t]))
            weight += max(1 - 2 * probability + float(collision[row][t]), 0.0)
            to_go = sum(float(rollout.reward[row][later]) for later in positions[u:])
            alive.setdefault((row[0], u), []).append((row, t, weight, to_go))
    for members in alive.values():
        weights, values = ([member[i] for member in members] for i in (2, 3))
        baseline = np.average(values, weights=weights if sum(weights) > 0 else None)
        for row, t, _, to_go in members:
            advantage[row][t] = to_go - baseline
    return advantage


def tempo(rollout, *, node, edge, eps=1e-6):
    advantage, total = like(rollout), returns(rollout)
    through = {}
    for row, positions in rows(rollout):
        for t in positions:
            for kind, name in (("node", node), ("edge", edge)):
                through.setdefault((row[0], kind, int(name[row][t])), []).append(total[row])
    for row, positions in rows(rollout):
        group = group_of(total, row)
        for t in positions:
            before = np.mean(through[row[0], "node", int(node[row][t])])
            after = np.mean(through[row[0], "edge", int(edge[row][t])])
            own = total[row] - np.mean(group) + after - before
            advantage[row][t] = own / (np.std(group) + eps)
    return advantage


def episodes_of_steps(rollout, fingerprint, discount=1.0):
    """{row: (its steps, the state at the start of each, the return to go of each)}"""
    found = {}
    for row, positions in rows(rollout):
        steps = units(rollout.step[row], positions)
        earned = [sum(float(rollout.reward[row][t]) for t in step) for step in steps]
        to_go = [
            sum(discount**j * reward for j, reward in enumerate(earned[u:]))
            for u in range(len(steps))
        ]
        found[row] = steps, [int(fingerprint[row][step[0]]) for step in steps], to_go
    return found


def hgpo(rollout, *, fingerprint, history=2, alpha=1.0, discount=1.0, eps=1e-6):
    advantage, same = like(rollout), {}
    found = episodes_of_steps(rollout, fingerprint, discount)

    def contexts(row, u):
        states = found[row][1]
        return {
            k: (row[0], *states[u + 1 - k : u + 1]) for k in range(1, history + 1) if k <= u + 1
        }

    for row, (steps, _, to_go) in found.items():
        for u in range(len(steps)):
            for context in contexts(row, u).values():
                same.setdefault(context, []).append(to_go[u])
    for row, (steps, _, to_go) in found.items():
        for u, step in enumerate(steps):
            levels = [(k, same[c]) for k, c in contexts(row, u).items() if len(same[c]) > 1]
            if levels:
                weights = [(k + 1) ** alpha for k, _ in levels]
                scores = [standard_score(to_go[u], group, eps) for _, group in levels]
                advantage[row][step] = np.average(scores, weights=weights)
    return advantage


def salt(rollout, *, fingerprint, eps=1e-6):
    advantage, own, through = like(rollout), grpo(rollout, eps=eps), {}
    found = episodes_of_steps(rollout, fingerprint)
    edges = {row: list(itertools.pairwise(states)) for row, (_, states, _) in found.items()}
    for row, path in edges.items():
        for edge in set(path):
            through.setdefault((row[0], edge), []).append(own[row][found[row][0][0][0]])
    for row, (steps, _, _) in found.items():
        for step, edge in zip(steps, [*edges[row], None], strict=True):
            advantage[row][step] = (
                own[row][step] if edge is None else np.mean(through[row[0], edge])
            )
    return advantage


def gaca(rollout, *, fingerprint, discount=1.0, eps=1e-6):
    advantage, own = like(rollout), grpo(rollout, eps=eps)
    found = episodes_of_steps(rollout, fingerprint, discount)
    for row, (steps, states, to_go) in found.items():
        for u, step in enumerate(steps):
            same = [
                theirs
                for other, (_, places, values) in found.items()
                if other[0] == row[0]
                for place, theirs in zip(places, values, strict=True)
                if place == states[u]
            ]
            surprise = np.mean([-float(rollout.log_prob[row][t]) for t in step])
            lambda_ = 1 - np.exp(-surprise)
            of_step = standard_score(to_go[u], same, eps)
            advantage[row][step] = (1 - lambda_) * own[row][step] + lambda_ * of_step
    return advantage


ADVANTAGES = {
    "opo": opo,
    "grpo_passk": grpo_passk,
    "maxrl": maxrl,
    "gdpo": gdpo,
    "stratified_grpo": stratified_grpo,
    "agent_lightning": agent_lightning,
    "mt_grpo": mt_grpo,
    "optimal_token_baseline": optimal_token_baseline,
    "tempo": tempo,
    "hgpo": hgpo,
    "salt": salt,
    "gaca": gaca,
}

SETTINGS = {
    "maxrl": [{"eps": 0.1}],
    "gdpo": [{"eps": 0.1}],
    "stratified_grpo": [{"alpha": 0.3, "eps": 0.1}],
    "agent_lightning": [{"eps": 0.1}],
    "mt_grpo": [{"turn_coef": 0.5, "eps": 0.1}],
    "tempo": [{"eps": 0.1}],
    "hgpo": [{"history": 1}, {"history": 4, "alpha": 0.5, "discount": 0.9, "eps": 0.1}],
    "salt": [{"eps": 0.1}],
    "gaca": [{"discount": 0.9, "eps": 0.1}],
}
