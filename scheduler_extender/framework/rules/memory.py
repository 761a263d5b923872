"""The memory of GPUs that pods share: what is promised to one must not run out (row 6 of
:mod:`.devices`)."""

from scheduler_extender.framework.rule import NodeEvaluation, Rule
from topology.core.placement import Rejection


class Memory(Rule):
    """See the module."""

    def check(self, node: NodeEvaluation) -> Rejection | None:
        """Why the memory of a shared GPU may run out."""
        return None if node.assessed is None else node.assessed.memory
