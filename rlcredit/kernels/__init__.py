"""The inner loops that are worth a kernel, each behind one function.

Recursions in time are reached through `rlcredit.recurrence`, the policy loss in `policy_loss`.
"""

from rlcredit.kernels.beside_reference import token_log_prob_beside_reference
from rlcredit.kernels.token_log_prob import token_log_prob

__all__ = ["token_log_prob", "token_log_prob_beside_reference"]
