"""The rejections of ``--refusals possible``.

If some nodes surely take the pod, nodes whose kubelet may refuse it do not pass.

They need the answers of all nodes, so they come after the rules.
"""

from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.answers.decision import Decision, Refusals, Settings
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest

MAY_REFUSE = Rejection(
    "this node's kubelet may refuse the pod, and another node's will not", True, Reason.KUBELET
)


def unless_others_are_sure(
    settings: Settings, request: GpuRequest, decisions: dict[ClassId, Decision]
) -> dict[ClassId, Decision]:
    """Return the decisions of all nodes; they are unchanged if the rule does not apply.

    It does not apply to pods with required constraints, since these pass no such node anyway.
    """
    if settings.refusals is not Refusals.POSSIBLE or request.required:
        return decisions
    passing = {s: d for s, d in decisions.items() if d.rejection is None}
    risky = {s for s, d in passing.items() if d.assessment and d.assessment.hazards}
    if len(risky) == len(passing):
        return decisions
    return {
        class_id: Decision(MAY_REFUSE, decision.assessment) if class_id in risky else decision
        for class_id, decision in decisions.items()
    }
