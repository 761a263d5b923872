"""The rejection while a watch is stale: what is known may be out of date.

A pod with required constraints passes nowhere. Other pods pass only where they can break no
promise. It is checked after the rules, whose answers an equivalence class shares and the
cache keeps. This answer is not cached.
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
    """Return a node's answer while a watch is stale, given its answer by the other rules."""
    if request.required:
        return Decision(OUT_OF_DATE)
    unseen = breaks_unseen(info, request) if decision.rejection is None else None
    return decision if unseen is None else Decision(unseen, decision.assessment)
