"""A laboratory for credit assignment in reinforcement learning of token policies."""

__version__ = "0.1.0"
