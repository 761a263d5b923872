"""Where kube-scheduler may have sent pods just now, on nodes with DRA.

kube-scheduler chooses the node with the best score and devices there, and asks about the next pod.
It tells the API server some hundredths of a second later, by the pod's nomination. Until then
nobody else knows which devices it has chosen, and the next pod may get others than we foresee.

This is a hint: scores alone heed it, and it is forgotten after :data:`SECONDS`.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_extender.state.node.nodeinfo import NodeInfo
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
    nodes: list[NodeName]
    at: float


@dataclass(slots=True)
class RecentSends:
    """The pods about which prioritize was asked just now, the first that was asked about first.
    Safe for many threads."""

    pods: OrderedDict[PodUid, Sent] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, uid: PodUid, request: GpuRequest, best: Iterable[NodeInfo], now: float) -> None:
        """These nodes are the few that have the best score for a pod."""
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
        """The pod is on its way no more."""
        with self._lock:
            self.pods.pop(uid, None)

    def sent(self, now: float) -> list[tuple[PodUid, Sent]]:
        """The pods that may be on their way."""
        with self._lock:
            return [(uid, each) for uid, each in self.pods.items() if each.at > now - SECONDS]
