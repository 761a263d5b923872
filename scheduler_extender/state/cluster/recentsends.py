"""The nodes to which kube-scheduler has probably just sent pods, under DRA.

kube-scheduler chooses the node with the best score and the devices on it, and then asks about the
next pod. Only some hundredths of a second later does it write the pod's nomination to the API
server. Until then no other component knows which devices it has chosen. The next pod may therefore
get other devices than we predict.

This is only a hint: it changes scores and nothing else, and it expires after :data:`SECONDS`.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest

SECONDS = 1.0  # seconds for which a pod may wait for its nomination to be written
# The largest number of remembered pods. With more, the pod that was noted first is forgotten.
MOST_PODS = 16
# The largest number of best nodes of a remembered pod. With more best nodes, each of them is too
# unlikely to be the pod's node.
MOST_NODES = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """The request of a pod, its best nodes, and when they were noted."""

    request: GpuRequest
    nodes: list[NodeName]
    at: float


@dataclass(slots=True)
class RecentSends:
    """The pods that prioritize has just scored, oldest first. Safe for many threads."""

    pods: OrderedDict[PodUid, Sent] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, uid: PodUid, request: GpuRequest, best: Iterable[NodeInfo], now: float) -> None:
        """Note the nodes that share the best score for a pod.

        Only nodes that allocate devices before the bind (DRA) are noted.
        """
        nodes = [info.name for info in best if info.allocates_before_bind]
        if not nodes and uid not in self.pods:
            return
        with self._lock:
            self.pods.pop(uid, None)
            if nodes:
                self.pods[uid] = Sent(request, nodes, now)
            if len(self.pods) > MOST_PODS:
                self.pods.popitem(last=False)

    def forget(self, uid: PodUid) -> None:
        """Forget a pod, because its bind has begun."""
        with self._lock:
            self.pods.pop(uid, None)

    def sent(self, now: float) -> list[tuple[PodUid, Sent]]:
        """Return the pods that may have been sent in the last :data:`SECONDS`."""
        with self._lock:
            return [(uid, each) for uid, each in self.pods.items() if each.at > now - SECONDS]
