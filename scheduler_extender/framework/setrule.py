"""A rule about certain nodes by name, or about all nodes together."""

from collections.abc import Callable

from scheduler_extender.deadline import Deadline
from scheduler_extender.framework.question import Question
from scheduler_extender.framework.results import Results
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.facts import NodeFacts
from topology.core.placement import Rejection

ByNode = Callable[[NodeFacts], Rejection | None]
Alike = dict[Rejection | None, list[str]]
"""Nodes by what refuses them; those that pass stand under None."""


class SetRule:
    """A rule about certain nodes by name, or about all nodes together. Either method may say
    nothing.

    :meth:`by_node` is asked also by preempt and ``unblock``, which try nodes as they would be, but
    not where the places of a group are counted: only cordoned nodes have none. :meth:`of_set` is
    asked by :func:`.evaluate` alone; what preempt and ``unblock`` have to know of it stands in
    :mod:`.afterwards`.
    """

    def by_node(self, question: Question, snapshot: Snapshot) -> ByNode | None:
        """What refuses a node before it is asked; None where the rule does not concern the pod.
        Looked at once for a question: kube-scheduler's PreFilter."""
        del question, snapshot
        return None

    def of_set(self, results: Results, alike: Alike, deadline: Deadline) -> None:
        """Take away from ``alike`` those of the passing nodes to which the pod may not go for what
        all of them have answered together; where scores are asked, it is empty."""
        del results, alike, deadline
