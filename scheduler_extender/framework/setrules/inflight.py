"""A pod whose bind is in flight goes to no other node: the bind may still be written."""

from scheduler_extender.framework.question import Question
from scheduler_extender.framework.setrule import ByNode, SetRule
from scheduler_extender.state.cluster.snapshot import Snapshot
from topology.core.placement import Reason, Rejection

IN_FLIGHT = Rejection(
    "a bind of the pod to another node may still be written", False, Reason.IN_PROGRESS
)


class InFlight(SetRule):
    """See the module."""

    def by_node(self, question: Question, snapshot: Snapshot) -> ByNode | None:
        """Refuses every node but that of the pod's bind."""
        flying = snapshot.in_flight.get(question.pod.uid)
        if flying is None:
            return None
        return lambda facts: None if facts.name == flying.node else IN_FLIGHT
