"""A rule about certain nodes by name, or about all nodes together."""

from collections.abc import Callable

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Question
from scheduler_extender.framework.results import Results
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import Rejection

ByNode = Callable[[NodeInfo], Rejection | None]
Alike = dict[Rejection | None, list[str]]
"""Nodes by what refuses them; those that pass stand under None."""
OfSet = Callable[[Results, Alike, Deadline], None]
"""Takes away those of the passing nodes to which the pod may not go for what all of them have
answered together; where scores are asked there are none."""


class SetRule:
    """A rule about certain nodes by name, or about all nodes together. Either method may say
    nothing; it is called once for a question, as kube-scheduler's PreFilter.

    Preempt and ``unblock``, which try nodes as they would be, ask both, too. Where the places of a
    group are counted :meth:`pre_filter` is not asked: only cordoned nodes have none.
    """

    def pre_filter(self, question: Question, snapshot: Snapshot) -> ByNode | None:
        """What refuses a node before it is asked; None where the rule does not concern the pod."""
        del question, snapshot
        return None

    def of_set(self, question: Question, member: Member | None) -> OfSet | None:
        """What refuses nodes for all answers together; None where the rule does not concern the
        pod, which may be the ``member`` of a group."""
        del question, member
        return None
