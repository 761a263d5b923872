"""The answers of nodes to a :class:`.Question`."""

from dataclasses import dataclass, field
from functools import cached_property

from scheduler_extender.framework.equivalence import NodeAnswers
from scheduler_extender.framework.groupquestion import GroupAnswer
from scheduler_extender.framework.members import Member
from scheduler_extender.framework.question import Question
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.node.nodeinfo import Devices, NodeInfo
from topology.core.devices import NodeName
from topology.core.placement import Rejection
from topology.core.requests import GpuRequest

PASSES = Decision()


@dataclass
class Results:
    """The answers of the nodes.

    ``by_reason`` holds all nodes of the question by rejection; the nodes that pass are under None.
    """

    question: Question
    request: GpuRequest  # with peers that may come first
    asked: Snapshot  # with the node infos of this question
    by_reason: dict[Rejection | None, list[str]] = field(default_factory=dict)
    ineligible: frozenset[str] = frozenset()  # nodes to which kube-scheduler will not send the pod
    answers: list[NodeAnswers] = field(default_factory=list)  # the nodes' own answers
    # For a pod with claims of its own: the devices that they have or will get on each node, and the
    # nodes where they get no GPUs, or where their devices cannot be foreseen.
    devices: dict[str, Devices] = field(default_factory=dict)
    unknown: dict[str, Rejection] = field(default_factory=dict)
    group: GroupAnswer | None = None
    member: Member | None = None
    late: frozenset[str] = frozenset()  # nodes for which there was no time
    for_now: bool = False  # a gang has just been sent to another domain; this ends by itself

    def judged(self, name: NodeName) -> NodeInfo:
        """Return the info on which a node has answered."""
        devices, info = self.devices.get(name), self.asked.node_info(name)
        return info if devices is None else info.as_claimed(self.question.pod.uid, devices)

    def vetoed(self, name: NodeName) -> bool:
        """Check whether a node rejects the pod only because of its claim's devices."""
        own = self.node_decisions.get(name)
        assessed = None if own is None else own.assessment
        rejected = assessed is not None and assessed.rejection == self.decisions[name].rejection
        return rejected and self.judged(name).allocates_before_bind

    @property
    def passed(self) -> list[str]:
        """The nodes to which the pod may go."""
        passed = self.by_reason.get(None, [])
        return (
            [name for name in passed if name not in self.ineligible] if self.ineligible else passed
        )

    @property
    def undecided(self) -> bool:
        """Whether no node takes the pod, and a node without an answer still may."""
        if self.passed or not self.late:
            return False
        return any(
            why is not None and why.resolvable and not self.late.isdisjoint(names)
            for why, names in self.by_reason.items()
        )

    @cached_property
    def node_decisions(self) -> dict[str, Decision]:
        """Every node's own answer, without the rules of the set.

        A node that is rejected by its name has none.
        """
        found: dict[str, Decision] = {}
        for answers in self.answers:
            found |= {name: each for name, each in answers.each() if each is not None}
        return found

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """Every node's decision: its rejection, and its own assessment."""
        return {
            name: own
            if (own := self.node_decisions.get(name, PASSES)).rejection == why
            else Decision(why, own.assessment)
            for why, names in self.by_reason.items()
            for name in names
        }
