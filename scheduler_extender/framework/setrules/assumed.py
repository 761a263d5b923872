"""An assumed pod goes to no other node, because its bind may still be written."""

from scheduler_extender.framework.question import Question
from scheduler_extender.framework.setrule import NodeCheck
from scheduler_extender.state.cluster.snapshot import Snapshot
from topology.core.placement import Reason, Rejection

ASSUMED = Rejection(
    "an earlier bind of the pod to another node may still be written", False, Reason.IN_PROGRESS
)


def pre_filter(question: Question, snapshot: Snapshot) -> NodeCheck | None:
    """Return a rule that rejects every node but that of the pod's bind."""
    assumed = snapshot.assumed.get(question.pod.uid)
    if assumed is None:
        return None
    return lambda info: None if info.name == assumed.node else ASSUMED
