"""Credit rules: one pure function a file, `rule(rollout, *, evidence, hyperparameter=default)`.

A keyword-only argument without a default is evidence, by its name in `rlcredit.evidence`; one with
a default is a hyperparameter. A rule returns raw credit [N, K, T], exactly 0 off the mask, or a
pair (advantage, critic target). To add one: a file, an import and an entry here.
"""

from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.exact import exact
from rlcredit.advantages.gae import gae
from rlcredit.advantages.gigpo import gigpo
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.reinforce import reinforce
from rlcredit.advantages.reinforce_baseline import reinforce_baseline
from rlcredit.advantages.reinforce_pp import reinforce_pp
from rlcredit.advantages.remax import remax
from rlcredit.advantages.rloo import rloo
from rlcredit.advantages.td_lambda import td_lambda
from rlcredit.advantages.turn_loo import turn_loo

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
