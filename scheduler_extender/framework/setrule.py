"""A rule about certain nodes by name, or about all nodes together."""

from collections.abc import Callable

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Question
from scheduler_extender.framework.results import Results
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import Rejection

NodeCheck = Callable[[NodeInfo], Rejection | None]
ByRejection = dict[Rejection | None, list[str]]
"""Nodes by their rejection; the nodes that pass are under None."""
OfSet = Callable[[Results, ByRejection, Deadline], None]
"""Removes passing nodes to which the pod may not go in view of all answers together.

There are no such nodes if scores are asked.
"""


class SetRule:
    """A rule about certain nodes by name, or about all nodes together.

    Either method may return None. Each is called once for a question, like kube-scheduler's
    PreFilter. Preempt and ``unblock``, which try nodes as they would be, call both, too.
    :meth:`pre_filter` is not called when the capacity for a group is counted.
    """

    def pre_filter(self, question: Question, snapshot: Snapshot) -> NodeCheck | None:
        """Return what rejects a node before it is asked; None if it does not concern the pod."""
        del question, snapshot
        return None

    def of_set(self, question: Question, member: Member | None) -> OfSet | None:
        """Return what rejects nodes in view of all answers; None if it does not concern the pod.

        The pod may be the ``member`` of a group.
        """
        del question, member
        return None
