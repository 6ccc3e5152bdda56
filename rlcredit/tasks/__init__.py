"""Token environments as pure functions; `TASKS` names a factory for each."""

from rlcredit.tasks.arithmetic import arithmetic

TASKS = {
    "arithmetic": arithmetic,
}
