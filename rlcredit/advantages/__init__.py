"""Credit rules: one pure function a file, `rule(rollout, *, evidence, hyperparameter=default)`.

A keyword-only argument without a default is evidence, by its name in `rlcredit.evidence`; one with
a default is a hyperparameter. A rule returns raw credit [N, K, T], exactly 0 off the mask, or a
pair (advantage, critic target). To add one: a file, an import and an entry here.
"""

from rlcredit.advantages.agent_lightning import agent_lightning
from rlcredit.advantages.bilevel_gae import bilevel_gae
from rlcredit.advantages.c3 import c3
from rlcredit.advantages.capo import capo
from rlcredit.advantages.carl import carl
from rlcredit.advantages.delta_belief import delta_belief
from rlcredit.advantages.dr_grpo import dr_grpo
from rlcredit.advantages.exact import exact
from rlcredit.advantages.finepo import finepo
from rlcredit.advantages.gaca import gaca
from rlcredit.advantages.gae import gae
from rlcredit.advantages.gdpo import gdpo
from rlcredit.advantages.gigpo import gigpo
from rlcredit.advantages.grpo import grpo
from rlcredit.advantages.grpo_passk import grpo_passk
from rlcredit.advantages.gtpo import gtpo
from rlcredit.advantages.hca import hca
from rlcredit.advantages.hcapo import hcapo
from rlcredit.advantages.hgpo import hgpo
from rlcredit.advantages.hicra import hicra
from rlcredit.advantages.igpo import igpo
from rlcredit.advantages.maxrl import maxrl
from rlcredit.advantages.mig import mig
from rlcredit.advantages.mt_grpo import mt_grpo
from rlcredit.advantages.opo import opo
from rlcredit.advantages.optimal_token_baseline import optimal_token_baseline
from rlcredit.advantages.pav import pav
from rlcredit.advantages.poad import poad
from rlcredit.advantages.ppo_kl import ppo_kl
from rlcredit.advantages.prl import prl
from rlcredit.advantages.pure import pure
from rlcredit.advantages.r_to_q import r_to_q
from rlcredit.advantages.red import red
from rlcredit.advantages.reinforce import reinforce
from rlcredit.advantages.reinforce_baseline import reinforce_baseline
from rlcredit.advantages.reinforce_pp import reinforce_pp
from rlcredit.advantages.remax import remax
from rlcredit.advantages.rloo import rloo
from rlcredit.advantages.rloo_kl import rloo_kl
from rlcredit.advantages.salt import salt
from rlcredit.advantages.scar import scar
from rlcredit.advantages.spo_chain import spo_chain
from rlcredit.advantages.spo_tree import spo_tree
from rlcredit.advantages.spro import spro
from rlcredit.advantages.stratified_grpo import stratified_grpo
from rlcredit.advantages.td_lambda import td_lambda
from rlcredit.advantages.tempo import tempo
from rlcredit.advantages.top_entropy import top_entropy
from rlcredit.advantages.tree_grpo import tree_grpo
from rlcredit.advantages.treerl import treerl
from rlcredit.advantages.treerpo import treerpo
from rlcredit.advantages.turn_loo import turn_loo
from rlcredit.advantages.turn_ppo import turn_ppo
from rlcredit.advantages.vineppo import vineppo

ADVANTAGES = {
    "reinforce": reinforce,
    "reinforce_baseline": reinforce_baseline,
    "reinforce_pp": reinforce_pp,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "remax": remax,
    "opo": opo,
    "grpo_passk": grpo_passk,
    "maxrl": maxrl,
    "gdpo": gdpo,
    "stratified_grpo": stratified_grpo,
    "agent_lightning": agent_lightning,
    "mt_grpo": mt_grpo,
    "optimal_token_baseline": optimal_token_baseline,
    "gae": gae,
    "td_lambda": td_lambda,
    "ppo_kl": ppo_kl,
    "rloo_kl": rloo_kl,
    "turn_ppo": turn_ppo,
    "bilevel_gae": bilevel_gae,
    "poad": poad,
    "turn_loo": turn_loo,
    "gigpo": gigpo,
    "hgpo": hgpo,
    "salt": salt,
    "gaca": gaca,
    "tempo": tempo,
    "vineppo": vineppo,
    "spo_chain": spo_chain,
    "pav": pav,
    "spo_tree": spo_tree,
    "treerl": treerl,
    "treerpo": treerpo,
    "tree_grpo": tree_grpo,
    "carl": carl,
    "c3": c3,
    "prl": prl,
    "spro": spro,
    "r_to_q": r_to_q,
    "gtpo": gtpo,
    "top_entropy": top_entropy,
    "hicra": hicra,
    "igpo": igpo,
    "mig": mig,
    "delta_belief": delta_belief,
    "hca": hca,
    "hcapo": hcapo,
    "pure": pure,
    "finepo": finepo,
    "capo": capo,
    "red": red,
    "scar": scar,
    "exact": exact,
}
