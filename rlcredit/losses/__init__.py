"""Losses on arrays: `loss(log_prob, old_log_prob, advantage, weight, *, ...) -> (scalar, metrics)`.

All are minimised. As in a credit rule, a keyword-only argument without a default is evidence, by
its name in `rlcredit.evidence`; one with a default is a hyperparameter. `weight` comes from a
reducer.
"""

from rlcredit.losses.cispo import cispo
from rlcredit.losses.grpo import grpo
from rlcredit.losses.gspo import gspo
from rlcredit.losses.kl import kl_in_reward, kl_loss
from rlcredit.losses.policy_gradient import policy_gradient
from rlcredit.losses.ppo import ppo
from rlcredit.losses.reducers import constant_length, prompt_mean, sequence_mean, token_mean
from rlcredit.losses.sorl import sorl
from rlcredit.losses.value import value_loss

__all__ = ["LOSSES", "REDUCERS", "kl_in_reward", "kl_loss", "value_loss"]

LOSSES = {
    "policy_gradient": policy_gradient,
    "ppo": ppo,
    "grpo": grpo,
    "gspo": gspo,
    "cispo": cispo,
    "sorl": sorl,
}

REDUCERS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "prompt_mean": prompt_mean,
    "constant_length": constant_length,
}
