"""Pods that are placed one after another: how many nodes take at once."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from scheduler_extender.framework.decision import decide
from scheduler_extender.framework.outcomes import arrival
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.memo import interruptible
from topology.core.requests import GpuRequest


class PodRequest(Protocol):
    """What asks for devices."""

    @property
    def request(self) -> GpuRequest:
        """What it asks for."""
        ...

    def on(self, info: NodeInfo) -> NodeInfo:
        """A node as it is for it: without a place that yields to it."""
        ...


T = TypeVar("T", bound=PodRequest)


def packed(
    settings: Settings,
    nodes: Iterable[NodeInfo],
    wants: Mapping[T, int],
    open_to: Mapping[T, Collection[str]],
) -> int:
    """How many of the pods that are wanted are placed on these nodes, those first that ask for
    most. ``open_to`` are the nodes by name to which each may go. Raises :class:`.OutOfTimeError`
    where a deadline around it has passed."""
    now = list(nodes)
    placed = 0
    full: set[object] = set()
    for pod in sorted(wants, key=lambda pod: -pod.request.effective_count):
        left, alone = wants[pod], pod.request.alone
        for place, before in enumerate(now):
            if not left:
                break
            interruptible()
            if before.name not in open_to.get(pod, ()):
                continue
            info = pod.on(before)
            key = (alone, info.key(alone.resource))
            if key in full:
                continue
            taken = 0
            decision = decide(info, alone, settings)
            while decision.rejection is None and left:
                taken, left = taken + 1, left - 1
                info = with_arrivals(info, (arrival(alone, decision),))
                decision = decide(info, alone, settings) if left else decision
            if taken:
                now[place] = info
            else:
                full.add(key)
            placed += taken
    return placed
