"""The promises to pods on a node: no newcomer may break one (row 7 of :mod:`.devices`)."""

from scheduler_extender.framework.rule import NodeEvaluation
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.placement import IN_PROGRESS, Reason, Rejection, endangers
from topology.core.requests import GpuRequest

PROMISED = Rejection(
    "the node's state is unknown, and a pod there was promised GPU memory or whole GPUs",
    True,
    Reason.UNDECIDED,
)


def check(node: NodeEvaluation) -> Rejection | None:
    """Return why a promise could break. Not checked for a pod that is already rejected."""
    offer, request = node.offer, node.without_peers
    if node.rejections:
        return None
    if offer is None or node.available is None:
        return None if request.required else breaks_unseen(node.info, request)
    return IN_PROGRESS if endangers(offer.kubelet, node.available, request) else None


def breaks_unseen(info: NodeInfo, request: GpuRequest) -> Rejection | None:
    """Return why a pod without requirements may not go to a node of which something is unknown.

    The reason is that it could break a promise to a pod there. None if there is no such promise.
    """
    if info.promises:
        return IN_PROGRESS
    return PROMISED if info.shares_promised(request.resource) else None
