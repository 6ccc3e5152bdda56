"""The inner loops that are worth a kernel, each behind one function."""

from rlcredit.kernels.token_log_prob import token_log_prob

__all__ = ["token_log_prob"]
