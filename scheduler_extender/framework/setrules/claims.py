"""The claims of a pod (DRA) restrict it to nodes whose kubelet serves them.

At the bind, the pod's constraints are checked against the devices that its claims have. Until these
devices are known, the bind waits for news.
"""

from scheduler_extender.framework.claims import unproven
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.setrule import NodeCheck
from scheduler_extender.state.cluster.snapshot import Snapshot
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest

HAD_CLAIM = Rejection(
    "the pod's status names a ResourceClaim, so only a kubelet with DRA can start the pod",
    False,
    Reason.KUBELET,
)


def pre_filter(question: Question, snapshot: Snapshot) -> NodeCheck | None:
    """Return a rule that rejects device-plugin nodes to a pod whose status names a claim.

    At the pod's bind, the rule rejects a node where its claims' devices are not known.
    """
    pod = question.pod
    request = pod.request
    if question.purpose is Purpose.BIND and isinstance(request, GpuRequest):
        return lambda info: unproven(info, pod, request)
    return (
        (lambda info: None if info.may_start(pod) else HAD_CLAIM)
        if pod.has_extended_resource_claim
        else None
    )
