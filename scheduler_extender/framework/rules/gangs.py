"""The peers of a gang's member, which may come before it in any order.

A pod with peers passes only if it passes with all peers that may come first. Its verdict is the
weakest that holds then.
"""

from dataclasses import replace

from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.state.node.arrivals import with_peers
from topology.core.placement import Reason, Rejection, Verdict

PEERS = Rejection("other pods of the gang may take the GPUs first", True, Reason.GROUP)
_BEST_FIRST = list(Verdict)


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why peers that come first could spoil the node for the pod."""
    if not node.request.pods_before or node.rejections:
        return None
    for later in with_peers(node.info, node.request):
        among = node.decide(later, node.without_peers, node.settings)
        if among.rejection is not None:
            return PEERS
        if node.assessed is not None and among.assessment is not None:
            verdicts = node.assessed.verdict, among.assessment.verdict
            weaker = max(verdicts, key=_BEST_FIRST.index)
            node.assessed = replace(node.assessed, verdict=weaker)
    return None
