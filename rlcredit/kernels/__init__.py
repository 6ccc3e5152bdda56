"""The inner loops that are worth a kernel, each behind one function.

Recursions in time are reached through `rlcredit.recurrence`.
"""

from rlcredit.kernels.beside_reference import token_log_prob_beside_reference
from rlcredit.kernels.policy_loss import policy_loss
from rlcredit.kernels.token_log_prob import token_log_prob

__all__ = ["policy_loss", "token_log_prob", "token_log_prob_beside_reference"]
