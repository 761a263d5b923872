"""The memory of shared GPUs: memory that a pod was promised must not run out.

It is row 6 of :mod:`.devices`.
"""

from scheduler_extender.framework.rule import NodeEvaluation, Rule
from topology.core.placement import Rejection


class Memory(Rule):
    """The rule of shared GPUs' memory; see the module."""

    def check(self, node: NodeEvaluation) -> Rejection | None:
        """Return why the memory of a shared GPU may run out."""
        return None if node.assessed is None else node.assessed.memory
