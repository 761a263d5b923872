"""The memory of shared GPUs: memory that a pod was promised must not run out.

It is row 6 of :mod:`.devices`.
"""

from scheduler_extender.framework.rule import NodeEvaluation
from topology.core.placement import Rejection


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why the memory of a shared GPU may run out."""
    return None if node.assessed is None else node.assessed.memory
