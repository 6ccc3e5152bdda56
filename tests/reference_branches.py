"""Slow references of the rules of branches and trees: float64 loops over paths and their forks."""

import numpy as np
from reference import chosen, like, returns, rows

from rlcredit.testing.rollouts import random_rollout


def hand_made():
    """A prompt of one token; row 1 leaves row 0 at 3, row 2 leaves row 1 at 4, row 3 is apart.

    Returns 1, 2, 4 and 8. From the end: the fork at 4 is worth (2 + 4) / 2 = 3, the one at 3
    (1 + 3) / 2 = 2, the prompt (2 + 8) / 2 = 5.
    """
    mask = np.array([[[0, 1, 1, 1, 1]] * 3 + [[0, 1, 1, 0, 0]]], bool)
    reward = np.zeros(mask.shape, np.float32)
    reward[0, :3, 4], reward[0, 3, 2] = [1, 2, 4], 8
    return random_rollout(np.random.default_rng(0), *mask.shape)._replace(
        mask=mask,
        reward=reward,
        length=np.array([[5, 5, 5, 3]], np.int32),
        parent=np.array([[0, 0, 1, 3]], np.int32),
        branch_at=np.array([[0, 3, 4, 0]], np.int32),
    )


def owner(rollout, n, k, t):
    """The row that sampled position t of row k."""
    while t < rollout.branch_at[n, k]:
        k = int(rollout.parent[n, k])
    return k


def path(rollout, n, k):
    """The chosen tokens of a row as (owner, position)."""
    return [(owner(rollout, n, k, t), t) for t in chosen(rollout.mask[n, k])]


def segments(rollout):
    """((n, k), [(start, [positions]), ...]): a row's tokens between the forks of its tree.

    `start` is the path before the first token of the segment: what all siblings share.
    """
    paths = {row: path(rollout, *row) for row, _ in rows(rollout)}
    for (n, k), own in paths.items():
        others = [other for (m, _), other in paths.items() if m == n]
        pieces = []
        for i, (_, t) in enumerate(own):
            ways = {other[i] for other in others if other[:i] == own[:i] and len(other) > i}
            if i == 0 or len(ways) > 1:
                pieces.append((tuple(own[:i]), []))
            pieces[-1][1].append(t)
        yield (n, k), pieces


def over_units(rollout, unit, value):
    """((n, k), positions, value before, value after) of every unit."""
    total = returns(rollout)
    for row, positions in rows(rollout):
        numbers = sorted({int(unit[row][t]) for t in positions})
        own = [[t for t in positions if unit[row][t] == number] for number in numbers]
        before = [float(value[row][at[0]]) for at in own]
        after = [*before[1:], total[row]]
        yield from zip([row] * len(own), own, before, after, strict=True)


def vineppo(rollout, *, unit, branch_value):
    advantage = like(rollout)
    for row, positions, before, after in over_units(rollout, unit, branch_value):
        for t in positions:
            advantage[row][t] = after - before
    return advantage


def spo_chain(rollout, *, unit, branch_value, threshold=0.9):
    advantage = vineppo(rollout, unit=unit, branch_value=branch_value)
    for row, positions in rows(rollout):
        sure = [t for t in positions if np.exp(float(rollout.log_prob[row][t])) >= threshold]
        for t in sure if len(sure) < len(positions) else []:
            advantage[row][t] = 0
    return advantage


def pav(rollout, *, unit, prover_value, coef=1.0, best_of=1):
    advantage, total = like(rollout), returns(rollout)
    for row, positions, before, after in over_units(rollout, unit, prover_value):
        mean = np.mean([r for (n, _), r in total.items() if n == row[0]])
        for t in positions:
            progress = (1 - before) ** best_of - (1 - after) ** best_of
            advantage[row][t] = total[row] - mean + coef * progress
    return advantage


def edges_of(rollout, value):
    """((n, k), start, first edge, positions, value of the start, value of the child)."""
    total = returns(rollout)
    for (n, k), pieces in segments(rollout):
        before = [float(value[n, k, at[0]]) for _, at in pieces]
        after = [*before[1:], total[n, k]]
        for (start, at), v, w in zip(pieces, before, after, strict=True):
            yield (n, k), start, (owner(rollout, n, k, at[0]), at[0]), at, v, w


def spo_tree(rollout, *, node_value):
    advantage = like(rollout)
    for row, _, _, positions, parent, child in edges_of(rollout, node_value):
        advantage[row][positions] = child - parent
    return advantage


def carl(rollout, *, node_value):
    advantage = like(rollout)
    edges = list(edges_of(rollout, node_value))
    for row, start, _, positions, parent, child in edges:
        siblings = {e for r, s, e, *_ in edges if r[0] == row[0] and s == start}
        advantage[row][positions] = child - parent if len(siblings) > 1 else 0
    return advantage


def treerpo(rollout, *, node_value, eps=1e-6):
    """The value of an edge that rows share is taken from the first of them."""
    advantage = like(rollout)
    edges = list(edges_of(rollout, node_value))
    for row, start, _, positions, _, child in edges:
        siblings = {}
        for r, s, e, _, _, value in edges:
            if r[0] == row[0] and s == start:
                siblings.setdefault(e, value)
        spread = list(siblings.values())
        if len(spread) > 1:
            advantage[row][positions] = (child - np.mean(spread)) / (np.std(spread) + eps)
    return advantage


def treerl(rollout, *, node_value):
    advantage = like(rollout)
    paths = {row: path(rollout, *row) for row, _ in rows(rollout)}
    for row, _, edge, positions, parent, child in edges_of(rollout, node_value):
        root = float(node_value[row][chosen(rollout.mask[row])[0]])
        leaves = sum(edge in other for (n, _), other in paths.items() if n == row[0])
        advantage[row][positions] = (2 * child - root - parent) / np.sqrt(leaves)
    return advantage


def c3(rollout):
    advantage, total = like(rollout), returns(rollout)
    paths = {row: path(rollout, *row) for row, _ in rows(rollout)}
    edges = list(edges_of(rollout, like(rollout)))

    def signal(n, edge):
        return np.mean(
            [total[row] for row, other in paths.items() if row[0] == n and edge in other]
        )

    for row, start, edge, positions, _, _ in edges:
        siblings = {e for r, s, e, *_ in edges if r[0] == row[0] and s == start} - {edge}
        if siblings:
            others = np.mean([signal(row[0], e) for e in siblings])
            advantage[row][positions] = signal(row[0], edge) - others
    return advantage


def tree_grpo(rollout, *, eps=1e-6):
    advantage, total = like(rollout), returns(rollout)
    paths = {row: path(rollout, *row) for row, _ in rows(rollout)}
    roots = {row: owner(rollout, *row, 0) for row in paths}

    def score(own, group):
        return (own - np.mean(group)) / (np.std(group) + eps)

    def of_row(row):
        problem = [r for other, r in total.items() if other[0] == row[0]]
        tree = [
            r for other, r in total.items() if other[0] == row[0] and roots[other] == roots[row]
        ]
        return score(total[row], tree) + score(total[row], problem)

    for row, own in paths.items():
        for edge in own:
            sharing = [o for o, other in paths.items() if o[0] == row[0] and edge in other]
            advantage[row][edge[1]] = np.mean([of_row(o) for o in sharing])
    return advantage


ADVANTAGES = {
    "vineppo": vineppo,
    "spo_chain": spo_chain,
    "spo_tree": spo_tree,
    "treerl": treerl,
    "treerpo": treerpo,
    "tree_grpo": tree_grpo,
    "carl": carl,
    "c3": c3,
    "pav": pav,
}
SETTINGS = {
    "spo_chain": [{"threshold": 0.4}],
    "treerpo": [{"eps": 0.1}],
    "tree_grpo": [{"eps": 0.1}],
    "pav": [{"coef": 0.5, "best_of": 3}],
}
