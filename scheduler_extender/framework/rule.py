"""What a rule is, and a node as a rule sees it.

A rule is a class in a file of its own, and a line in :data:`.rules.RULES` or
:data:`.setrules.SET_RULES`: without both the feature is gone, for all who ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from topology.core.availability import Availability
from topology.core.placement import Assessment, Reason, Rejection
from topology.core.requests import GpuRequest

UNDECIDED = Rejection("not guaranteed: the node could not be evaluated", True, Reason.UNDECIDED)


@dataclass
class NodeEvaluation:
    """A node that is asked about a request, with what its rules have found until now."""

    info: NodeInfo
    request: GpuRequest  # with the siblings that may come first
    settings: Settings
    decide: Callable[[NodeInfo, GpuRequest, Settings], Decision]
    rejections: list[Rejection] = field(default_factory=list)
    alone: GpuRequest = field(init=False)  # what the pod asks for as if no sibling came before it
    # Of :mod:`.rules.devices`, where all is known that a verdict needs: what the node has of the
    # resource, what of it is available to the pod, and what the core says of the pod there. A rule
    # may put a weaker verdict in its place (:mod:`.rules.gangs`).
    offer: Offer | None = None
    available: Availability | None = None
    assessed: Assessment | None = None

    def __post_init__(self) -> None:
        self.alone = self.request.alone


class Rule:
    """A reason, or several of one kind, for which nodes refuse a pod: kube-scheduler's Filter.

    All that it reads of a node is in :meth:`.NodeInfo.key`, so that nodes of one key share its
    answer. So do nodes of one :meth:`.NodeInfo.choice`, as under DRA, where it is settled which
    devices the pod would get: there a rule looks only at these, and never at how many others are
    free. What depends on more, as on
    the node's name, is a :class:`.SetRule`. Rules have no state.
    """

    def check(self, node: NodeEvaluation) -> Rejection | None:
        """Why a node refuses the pod; None where this rule lets it pass."""
        raise NotImplementedError
