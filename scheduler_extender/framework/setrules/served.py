"""A node without GPUs takes no pod. kube-scheduler offers none, but people ask about all nodes."""

from scheduler_extender.framework.question import Question
from scheduler_extender.framework.setrule import NodeCheck
from scheduler_extender.state.cluster.snapshot import Snapshot
from topology.core.placement import NOT_SERVED


def pre_filter(question: Question, snapshot: Snapshot) -> NodeCheck | None:
    """Return a rule that rejects nodes without GPUs."""
    if question.purpose.offered:
        return None
    return lambda info: NOT_SERVED if info.serves_nothing else None
