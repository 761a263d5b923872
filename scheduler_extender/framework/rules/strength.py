"""The weakest verdict on which a pod with required constraints passes, as the operator chose.

It is row 8 of :mod:`.devices`.
"""

from scheduler_extender.framework.rule import NodeEvaluation
from topology.core.placement import Reason, Rejection, Verdict


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why an expected placement is not enough."""
    request, assessed = node.without_peers, node.assessed
    if assessed is None or not request.required or node.rejections:
        return None
    if node.settings.require is not Verdict.GUARANTEED:
        return None
    if assessed.verdict is Verdict.GUARANTEED:
        return None
    others = " or other pods take the CPUs first" if request.exclusive.cpus else ""
    words = f"not guaranteed if a running GPU pod ends{others}: {request.constraints.text}"
    return Rejection(words, True, Reason.NOT_GUARANTEED)
