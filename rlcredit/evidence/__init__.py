"""What can be measured about a rollout: one provider a file.

A provider is `(context, rollout, key) -> (array, price)` and documents its array's shape. Rules and
losses ask for evidence by name, as a keyword-only argument without a default.
"""

from rlcredit.evidence.answer_log_prob import answer_log_prob
from rlcredit.evidence.branch_value import branch_value
from rlcredit.evidence.coalition_value import coalition_value
from rlcredit.evidence.collision import collision
from rlcredit.evidence.context import Context, Probing
from rlcredit.evidence.edge import edge
from rlcredit.evidence.entropy import entropy
from rlcredit.evidence.exact_advantage import exact_advantage
from rlcredit.evidence.exact_hindsight import exact_hindsight
from rlcredit.evidence.exact_value import exact_value
from rlcredit.evidence.fingerprint import fingerprint
from rlcredit.evidence.greedy_return import greedy_return
from rlcredit.evidence.hindsight_log_prob import hindsight_log_prob
from rlcredit.evidence.node import node
from rlcredit.evidence.node_value import node_value
from rlcredit.evidence.omega_label import omega_label
from rlcredit.evidence.prefix_score import prefix_score
from rlcredit.evidence.prover_value import prover_value
from rlcredit.evidence.ref_log_prob import ref_log_prob
from rlcredit.evidence.shepherd_label import shepherd_label
from rlcredit.evidence.step_score import step_score
from rlcredit.evidence.unit import unit
from rlcredit.evidence.value import value

__all__ = ["EVIDENCE", "Context", "Probing"]

EVIDENCE = {
    "value": value,
    "ref_log_prob": ref_log_prob,
    "entropy": entropy,
    "collision": collision,
    "greedy_return": greedy_return,
    "unit": unit,
    "node": node,
    "edge": edge,
    "node_value": node_value,
    "fingerprint": fingerprint,
    "branch_value": branch_value,
    "prover_value": prover_value,
    "shepherd_label": shepherd_label,
    "omega_label": omega_label,
    "step_score": step_score,
    "prefix_score": prefix_score,
    "coalition_value": coalition_value,
    "answer_log_prob": answer_log_prob,
    "hindsight_log_prob": hindsight_log_prob,
    "exact_hindsight": exact_hindsight,
    "exact_value": exact_value,
    "exact_advantage": exact_advantage,
}
