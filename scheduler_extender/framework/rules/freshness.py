"""While a watch is stale, what is known may be out of date: a pod with required constraints passes
nowhere, and other pods only where no promise stands.

It is asked after the rules that equal nodes share: their answers are remembered, this one is not.
"""

from scheduler_extender.framework.rules.promises import breaks_unseen
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest

OUT_OF_DATE = Rejection(
    "the extender's view of the cluster is out of date", False, Reason.OUT_OF_DATE
)


def unless_stale(decision: Decision, info: NodeInfo, request: GpuRequest) -> Decision:
    """What a node that answers so by the rules answers while a watch is stale."""
    if request.required:
        return Decision(OUT_OF_DATE)
    unseen = breaks_unseen(info, request) if decision.rejection is None else None
    return decision if unseen is None else Decision(unseen, decision.assessment)
