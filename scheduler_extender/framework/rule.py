"""The interface of a rule, and a node as a rule sees it.

A rule is a function in a file of its own, and its name in a list: :data:`.rules.RULES`,
:data:`.setrules.NAME_RULES` or :data:`.setrules.SET_RULES`. Without both, the feature does not
exist for any caller.
"""

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
    """The evaluation of a node for a request, with what its rules have found so far."""

    info: NodeInfo
    request: GpuRequest  # with the peers that may come first
    settings: Settings
    decide: Callable[[NodeInfo, GpuRequest, Settings], Decision]
    rejections: list[Rejection] = field(default_factory=list)
    without_peers: GpuRequest = field(init=False)  # the request, as if no peer came before
    # Results of :mod:`.rules.devices`, if everything is known that a verdict needs: the node's
    # offer of the resource, the part that is available to the pod, and the core's assessment of the
    # pod there. A rule may replace the verdict by a weaker one (:mod:`.rules.gangs`).
    offer: Offer | None = None
    available: Availability | None = None
    assessed: Assessment | None = None

    def __post_init__(self) -> None:
        self.without_peers = self.request.without_peers


# Returns why a node rejects the pod; None if this rule lets it pass. kube-scheduler's Filter. All
# properties of a node that a rule reads are in :meth:`.NodeInfo.key`, so that nodes with one key
# share its answer. Nodes with one :meth:`.NodeInfo.choice` share it, too. Such nodes exist under
# DRA, where the devices that the pod would get are known. There a rule looks only at these devices,
# and never at how many others are free. A reason that depends on more, such as the node's name, is
# in :mod:`.setrules`. Rules have no state.
Rule = Callable[[NodeEvaluation], Rejection | None]
