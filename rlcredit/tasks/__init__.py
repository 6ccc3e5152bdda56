"""Token environments as pure functions; `TASKS` names a factory for each."""

from rlcredit.tasks.arithmetic import arithmetic
from rlcredit.tasks.bifurcation import bifurcation
from rlcredit.tasks.maze import maze
from rlcredit.tasks.repair import repair

TASKS = {
    "arithmetic": arithmetic,
    "maze": maze,
    "bifurcation": bifurcation,
    "repair": repair,
}
