"""Where kube-scheduler may have sent pods just now, on nodes with DRA.

kube-scheduler chooses the node with the best score and devices there, and asks about the next pod.
It tells the API server some hundredths of a second later, by the pod's nomination. Until then
nobody else knows which devices it has chosen, and the next pod may get others than we foresee.

This is a hint: scores alone heed it, and it is forgotten after :data:`SECONDS`.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest

SECONDS = 1.0
"""For how long a pod may be on its way without a nomination."""
MOST_PODS = 16
"""Pods that are remembered; of more the one that was asked about first is forgotten."""
MOST_NODES = 4
"""A pod with more best nodes than these is not remembered: each is too unlikely to be its own."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a pod asks for, and its best nodes."""

    request: GpuRequest
    nodes: Collection[NodeName]
    at: float


class LatelySent:
    """The pods about which prioritize was asked just now. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: OrderedDict[PodUid, Sent] = OrderedDict()

    def note(self, uid: PodUid, request: GpuRequest, best: Collection[str], now: float) -> None:
        """These nodes have the best score for a pod."""
        with self._lock:
            self._sent.pop(uid, None)
            if len(best) <= MOST_NODES:
                self._sent[uid] = Sent(request, [*map(NodeName, best)], now)
            if len(self._sent) > MOST_PODS:
                self._sent.popitem(last=False)

    def sent(self, now: float) -> list[tuple[PodUid, Sent]]:
        """The pods that may be on their way, the first that was asked about first."""
        with self._lock:
            return [(uid, each) for uid, each in self._sent.items() if each.at > now - SECONDS]
