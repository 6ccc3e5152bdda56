"""Slow references of the losses and reducers: loops in float64, from the published formulas.

A loss is called with (log_prob, frozen, old_log_prob, advantage, weight). `frozen` is log_prob once
more, for the part that is not differentiated: a finite difference moves log_prob alone.
"""

import numpy as np
from reference import chosen


def over_tokens(weight, token_loss):
    """Sum of weight * token_loss(place) over the places of non-zero weight."""
    places = zip(*np.nonzero(weight), strict=True)
    return sum(float(weight[place]) * token_loss(place) for place in places)


def clipped_surrogate(ratio, advantage, clip_low, clip_high, dual_clip=np.inf):
    nearest = min(max(ratio, 1 - clip_low), 1 + clip_high)
    loss = max(-ratio * advantage, -nearest * advantage)
    return min(loss, -dual_clip * advantage) if advantage < 0 else loss


def policy_gradient(log_prob, frozen, old_log_prob, advantage, weight):
    del frozen, old_log_prob
    return over_tokens(weight, lambda at: -float(advantage[at]) * float(log_prob[at]))


def ppo(
    log_prob, frozen, old_log_prob, advantage, weight,
    *, clip_low=0.2, clip_high=0.2, dual_clip=np.inf,
):  # fmt: skip
    del frozen

    def token_loss(at):
        ratio = np.exp(float(log_prob[at]) - float(old_log_prob[at]))
        return clipped_surrogate(ratio, float(advantage[at]), clip_low, clip_high, dual_clip)

    return over_tokens(weight, token_loss)


def grpo_loss(
    log_prob, frozen, old_log_prob, advantage, weight,
    *, ref_log_prob, beta=0.04, clip_low=0.2, clip_high=0.2,
):  # fmt: skip
    clip = {"clip_low": clip_low, "clip_high": clip_high}
    surrogate = ppo(log_prob, frozen, old_log_prob, advantage, weight, **clip)
    return surrogate + beta * kl_loss(log_prob, ref_log_prob, weight, "k3")


def gspo(
    log_prob, frozen, old_log_prob, advantage, weight, *, clip_low=3e-4, clip_high=4e-4
):  # fmt: skip
    del frozen

    def token_loss(at):
        row = at[:-1]
        tokens = chosen(weight[row] > 0)
        gaps = [float(log_prob[row][t]) - float(old_log_prob[row][t]) for t in tokens]
        ratio = np.exp(sum(gaps) / len(gaps))
        return clipped_surrogate(ratio, float(advantage[at]), clip_low, clip_high)

    return over_tokens(weight, token_loss)


def sorl(
    log_prob, frozen, old_log_prob, advantage, weight, *, unit, clip_low=0.2, clip_high=0.2
):  # fmt: skip
    del frozen

    def token_loss(at):
        row = at[:-1]
        own = [t for t in chosen(weight[row] > 0) if unit[row][t] == unit[at]]
        gaps = [float(log_prob[row][t]) - float(old_log_prob[row][t]) for t in own]
        ratio = np.exp(sum(gaps) / len(gaps))
        return clipped_surrogate(ratio, float(advantage[at]), clip_low, clip_high)

    return over_tokens(weight, token_loss)


def cispo(log_prob, frozen, old_log_prob, advantage, weight, *, clip_low=1.0, clip_high=0.2):
    def token_loss(at):
        ratio = np.exp(float(frozen[at]) - float(old_log_prob[at]))
        bounded = min(max(ratio, 1 - clip_low), 1 + clip_high)
        return -bounded * float(advantage[at]) * float(log_prob[at])

    return over_tokens(weight, token_loss)


LOSSES = {
    "policy_gradient": policy_gradient,
    "ppo": ppo,
    "grpo": grpo_loss,
    "gspo": gspo,
    "cispo": cispo,
    "sorl": sorl,
}

ESTIMATORS = {
    "k1": lambda p, q: np.log(p / q),
    "k2": lambda p, q: np.log(p / q) ** 2 / 2,
    "k3": lambda p, q: q / p - 1 - np.log(q / p),
}


def kl_loss(log_prob, ref_log_prob, weight, estimator):
    def token_loss(at):
        return ESTIMATORS[estimator](np.exp(float(log_prob[at])), np.exp(float(ref_log_prob[at])))

    return over_tokens(weight, token_loss)


def kl_in_reward(reward, log_prob, ref_log_prob, mask, *, coefficient, estimator):
    paid = np.zeros(reward.shape)
    for at in zip(*np.nonzero(mask), strict=True):
        p, q = np.exp(float(log_prob[at])), np.exp(float(ref_log_prob[at]))
        paid[at] = float(reward[at]) - coefficient * ESTIMATORS[estimator](p, q)
    return paid


def value_loss(value, target, old_value, weight, *, clip=np.inf):
    def token_loss(at):
        v, goal, old = (float(a[at]) for a in (value, target, old_value))
        near = min(max(v, old - clip), old + clip)
        return 0.5 * max((v - goal) ** 2, (near - goal) ** 2)

    return over_tokens(weight, token_loss)


def weigh(mask, weight_of):
    """weight_of((n, k), chosen positions of the row) at every chosen token."""
    weight = np.zeros(mask.shape)
    for row in np.ndindex(mask.shape[:2]):
        for t in chosen(mask[row]):
            weight[row][t] = weight_of(row, chosen(mask[row]))
    return weight


def token_mean(mask):
    return weigh(mask, lambda row, tokens: 1 / mask.sum())


def sequence_mean(mask):
    episodes = sum(1 for row in np.ndindex(mask.shape[:2]) if chosen(mask[row]))
    return weigh(mask, lambda row, tokens: 1 / (episodes * len(tokens)))


def prompt_mean(mask):
    problems = sum(1 for group in mask if group.any())
    return weigh(mask, lambda row, tokens: 1 / (problems * mask[row[0]].sum()))


def constant_length(mask):
    episodes = sum(1 for row in np.ndindex(mask.shape[:2]) if chosen(mask[row]))
    return weigh(mask, lambda row, tokens: 1 / (episodes * mask.shape[-1]))


REDUCERS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "prompt_mean": prompt_mean,
    "constant_length": constant_length,
}
