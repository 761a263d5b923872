"""Pods that are placed one after another: how many of them fit on these nodes at once."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.framework.outcomes import arrival
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest


class PodRequest(Protocol):
    """A request for devices of a node."""

    @property
    def request(self) -> GpuRequest:
        """The request."""
        ...

    def on(self, info: NodeInfo) -> NodeInfo:
        """Return a node as this request sees it, without a reservation that yields to the pod."""
        ...


T = TypeVar("T", bound=PodRequest)


def packed(
    settings: Settings,
    nodes: Iterable[NodeInfo],
    wants: Mapping[T, int],
    eligible: Mapping[T, Collection[str]],
) -> int:
    """Return how many of the wanted pods fit on these nodes, the largest requests first.

    ``eligible`` holds, for each pod, the names of the nodes to which it may go. Raises
    :class:`.OutOfTimeError` if an outer deadline has passed.
    """
    now = list(nodes)
    placed = 0
    full: set[object] = set()
    for pod in sorted(wants, key=lambda pod: -pod.request.effective_count):
        left, without_peers = wants[pod], pod.request.without_peers
        for position, before in enumerate(now):
            if not left:
                break
            interruptible()
            if before.name not in eligible.get(pod, ()):
                continue
            info = pod.on(before)
            key = (without_peers, info.key(without_peers.resource))
            if key in full:
                continue
            taken = 0
            decision = decide(info, without_peers, settings)
            while decision.rejection is None and left:
                taken, left = taken + 1, left - 1
                info = with_arrivals(info, (arrival(without_peers, decision),))
                decision = decide(info, without_peers, settings) if left else decision
            if taken:
                now[position] = info
            else:
                full.add(key)
            placed += taken
    return placed
