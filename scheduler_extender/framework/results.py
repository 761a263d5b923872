"""What nodes answer to a :class:`.Question`."""

from __future__ import annotations

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
    """What the nodes answer.

    ``by_reason`` has all that were asked, by what refuses them; those that pass stand under None.
    """

    question: Question
    request: GpuRequest  # as it was asked, with siblings that may come first
    asked: Snapshot  # with the facts for this question
    by_reason: dict[Rejection | None, list[str]] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()  # of these, where kube-scheduler will not send the pod
    answers: list[NodeAnswers] = field(default_factory=list)  # the nodes' own
    # Where the pod has claims of its own: what they have or will get, and the nodes where they get
    # no GPUs, or it cannot be said which.
    devices: dict[str, Devices] = field(default_factory=dict)
    unknown: dict[str, Rejection] = field(default_factory=dict)
    group: GroupAnswer | None = None
    member: Member | None = None
    late: frozenset[str] = frozenset()  # nodes for which there was no time
    for_now: bool = False  # a gang was sent to another domain just now: that ends by itself

    def judged(self, name: NodeName) -> NodeInfo:
        """The facts on which a node has answered."""
        devices, info = self.devices.get(name), self.asked.node_info(name)
        return info if devices is None else info.as_claimed(self.question.pod.uid, devices)

    def vetoed(self, name: NodeName) -> bool:
        """Whether a node refuses the pod for the devices of its claim, and not for others' sake."""
        own = self.own.get(name)
        assessed = None if own is None else own.assessment
        refused = assessed is not None and assessed.rejection == self.decisions[name].rejection
        return refused and self.judged(name).allocates_before_bind

    @property
    def passed(self) -> list[str]:
        """The nodes to which the pod may go."""
        passed = self.by_reason.get(None, [])
        return [name for name in passed if name not in self.closed] if self.closed else passed

    @property
    def undecided(self) -> bool:
        """Whether no node takes the pod, and one of those without an answer still may."""
        if self.passed or not self.late:
            return False
        return any(
            why is not None and why.resolvable and not self.late.isdisjoint(names)
            for why, names in self.by_reason.items()
        )

    @cached_property
    def own(self) -> dict[str, Decision]:
        """Every node's own answer, which knows no rule of the set; none for a node that was refused
        for its name."""
        found: dict[str, Decision] = {}
        for answers in self.answers:
            found |= {name: each for name, each in answers.each() if each is not None}
        return found

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """Every node's decision: what refuses it, and its own assessment."""
        return {
            name: own
            if (own := self.own.get(name, PASSES)).rejection == why
            else Decision(why, own.assessment)
            for why, names in self.by_reason.items()
            for name in names
        }
