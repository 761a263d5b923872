"""The two kinds of rules that depend on a node's name, or on all nodes together."""

from collections.abc import Callable

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Question
from scheduler_extender.framework.results import Results
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import Rejection

NodeCheck = Callable[[NodeInfo], Rejection | None]
# Returns what rejects a node before it is asked; None if it does not concern the pod. It is called
# once for a question, like kube-scheduler's PreFilter, also by preempt and ``unblock``, which try
# nodes as they would be, but not when the capacity for a group is counted.
NameRule = Callable[[Question, Snapshot], NodeCheck | None]
# Nodes by their rejection; the nodes that pass are under None.
ByRejection = dict[Rejection | None, list[str]]
# Removes passing nodes to which the pod may not go in view of all answers together. There are no
# such nodes if scores are asked.
OfSet = Callable[[Results, ByRejection, Deadline], None]
# Returns what rejects nodes in view of all answers; None if it does not concern the pod. The pod
# may be the member of a group.
SetRule = Callable[[Question, Member | None], OfSet | None]
