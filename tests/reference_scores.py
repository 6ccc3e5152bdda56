"""Slow references of the rules of step scores and of game theory; see `reference`."""

import itertools

import numpy as np
from reference import dr_grpo, like, returns, rloo, rows

from rlcredit.coalitions import orders


def by_unit(unit, row, positions):
    """The chosen positions of a row in lists, one a unit."""
    numbers = sorted({int(unit[row][t]) for t in positions})
    return [[t for t in positions if unit[row][t] == number] for number in numbers]


def weights(scores, temperature, form):
    """Of the scores of one episode."""
    if form == "hard":
        return [float(u == scores.index(min(scores))) for u in range(len(scores))]
    powers = [np.exp(-(score - min(scores)) / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def pure(rollout, *, unit, step_score, temperature=0.1, form="soft"):
    advantage, outcome, earned = like(rollout), rloo(rollout), {}
    for row, positions in rows(rollout):
        pieces = by_unit(unit, row, positions)
        scores = [float(step_score[row][piece[0]]) for piece in pieces]
        shares = weights(scores, temperature, form)
        earned[row] = pieces, [w * p for w, p in zip(shares, scores, strict=True)]
    for row, (pieces, reward) in earned.items():
        others = [
            sum(theirs) / len(theirs)
            for other, (_, theirs) in earned.items()
            if other[0] == row[0] and other != row
        ]
        level = np.mean(others) if others else 0
        for u, piece in enumerate(pieces):
            own = sum(later - level for later in reward[u:])
            advantage[row][piece] = own + outcome[row][piece]
    return advantage


def finepo(rollout, *, step_score, alpha=1.0, beta=2.0, eps=1e-6):
    advantage, outcome = like(rollout), dr_grpo(rollout)
    for row, positions in rows(rollout):
        scores = [float(step_score[row][t]) for t in positions]
        better = [score - np.mean(scores) for score in scores]
        scale = max(better) + eps  # at least one is 0 or more
        for t, delta in zip(positions, better, strict=True):
            whole = outcome[row][t]
            credit = whole + alpha * abs(whole) / scale * delta
            low, high = sorted((0.0, beta * whole))
            advantage[row][t] = min(max(credit, low), high)
    return advantage


def capo(rollout, *, step_score, whole=2.0, process=1.0, eps=1e-6):
    advantage, total, reward = like(rollout), returns(rollout), {}
    for row, positions in rows(rollout):
        for t in positions:
            wrong = float(step_score[row][t]) < 0
            reward[row, t] = whole * total[row] - (process if wrong else 0)
    for (row, t), own in reward.items():
        group = [other for (peer, _), other in reward.items() if peer[0] == row[0]]
        advantage[row][t] = (own - np.mean(group)) / (np.std(group) + eps)
    return advantage


def red(rollout, *, prefix_score, ref_log_prob, mix=1.0, beta=0.0):
    advantage, total = like(rollout), returns(rollout)
    for row, positions in rows(rollout):
        scores = [float(prefix_score[row][t]) for t in positions] + [total[row]]
        for i, t in enumerate(positions):
            shaped = scores[i + 1] - scores[i]
            k1 = float(rollout.log_prob[row][t]) - float(ref_log_prob[row][t])
            given = float(rollout.reward[row][t])
            advantage[row][t] = mix * shaped + (1 - mix) * given - beta * k1
    return advantage


def shapley(value, players):
    """{player: Shapley value} by all orders of joining; value: of a set of players."""
    share = dict.fromkeys(range(players), 0.0)
    every = list(itertools.permutations(range(players)))
    for order in every:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            share[player] += (value(before | {player}) - value(before)) / len(every)
    return share


def shares(game):
    """{player: share} of the evidence about one row, in either form."""
    if game.ndim == 1:
        players = int(np.log2(len(game)))
        return shapley(lambda there: float(game[sum(2**u for u in there)]), players)
    count, joining = game.shape
    share = dict.fromkeys(range(joining - 1), 0.0)
    for values, order in zip(game, orders(joining - 1, count), strict=True):
        for place, player in enumerate(order):
            share[player] += (float(values[place + 1]) - float(values[place])) / count
    return share


def scar(rollout, *, unit, coalition_value, alpha=1.0):
    advantage, total = like(rollout), returns(rollout)
    for row, positions in rows(rollout):
        share = shares(np.asarray(coalition_value[row]))
        for t in positions:
            advantage[row][t] = alpha * share[min(int(unit[row][t]), len(share) - 1)]
        advantage[row][positions[-1]] += (1 - alpha) * total[row]
    return advantage


ADVANTAGES = {
    "pure": pure,
    "finepo": finepo,
    "capo": capo,
    "red": red,
    "scar": scar,
}

SETTINGS = {
    "pure": [{"temperature": 1.0}, {"form": "hard"}],
    "finepo": [{"alpha": 0.3, "beta": 1.2}],
    "capo": [{"whole": 1.0, "process": 3.0, "eps": 0.1}],
    "red": [{"mix": 0.4, "beta": 0.1}],
    "scar": [{"alpha": 0.3}],
}
