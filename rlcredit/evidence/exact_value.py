"""The exact value of every prefix under the live policy, by enumeration."""

from __future__ import annotations

from rlcredit.evidence.context import Context
from rlcredit.evidence.exact_rows import exact_rows
from rlcredit.types import Array, Price, Rollout


def exact_value(context: Context, rollout: Rollout, key: Array) -> tuple[Array, Price]:
    """[N, K, T + 1] float32: E[return from t on | tokens[:t] and what the task answered].

    The whole tree of each problem is scored in one step, so this is for small tasks.

    Raises: InputError if a problem has more than 2**17 episodes, naming how many.
    """
    del key
    truth, price = exact_rows(context, rollout)
    return truth.value, price
