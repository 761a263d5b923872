"""What is asked of nodes: about which pod, for whom, and as if what had happened."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


class Purpose(Enum):
    """For whom a question is asked. What follows from it stands with the rule that it changes."""

    FILTER = "filter"  # kube-scheduler offers nodes: the selector and taints are its own matter
    SCORE = "score"
    BIND = "bind"  # of one node, which kube-scheduler has chosen
    PREEMPT = "preempt"
    WAKE = "wake"
    EXPLAIN = "explain"  # people: `why`, `check`, the pages, the pod's Event, the metric

    @property
    def offered(self) -> bool:
        """Whether kube-scheduler names the nodes, so that all of them are open to the pod."""
        return self in (Purpose.FILTER, Purpose.SCORE, Purpose.BIND, Purpose.PREEMPT)


@dataclass(frozen=True, slots=True)
class Question:
    """May this pod go to these nodes?

    The pod itself never counts against itself: not its bind in flight, not a place that is reserved
    for it, not the devices that it has where it is bound.
    """

    pod: PodRecord
    purpose: Purpose
    request: GpuRequest | None = None
    """What is asked for in place of the pod's own request, as where people ask for less. Where it
    names siblings, no more of them than these are expected."""
    gone: Mapping[NodeName, frozenset[PodUid]] = field(default_factory=dict)
    """The pods that are taken to have left a node, as victims of a preemption."""
    scores: bool = False  # whether it is asked how well: what refuses nodes is not sorted out then
    alone: bool = False  # whether the pod's group is left out

    @property
    def cached(self) -> bool:
        """Whether the answers are remembered: what people ask is not asked again soon, nor is a
        bind."""
        return self.purpose not in (Purpose.EXPLAIN, Purpose.BIND)

    def on(self, info: NodeInfo) -> NodeInfo:
        """A node's facts for this question: without the pod itself and those that are gone, and
        without a reservation that yields to the pod. At its bind the pod has the devices of its
        claims."""
        pod, pods = self.pod, info.pods
        if self.purpose is Purpose.BIND and (devices := info.devices_of(pod)):
            return info.as_claimed(pod.uid, devices).yielding_to(pod.attributes.priority, pod.gang)
        left = self.gone.get(info.name, frozenset())
        if pod.of_claims is not None:  # what its claims have is judged
            without = info.without(left) if left else info
            return without.yielding_to(pod.attributes.priority, pod.gang)
        itself = pod.uid in pods.bound or pod.uid in pods.assumed
        if itself or info.claimed(pod.uid) or info.is_reserved_for(pod.uid):
            left |= {pod.uid}
        without = info.without(left) if left else info
        return without.yielding_to(pod.attributes.priority, pod.gang)


def alike(pod: PodRecord) -> Hashable:
    """Equal for waiting pods to which all nodes answer alike.

    A group's members are asked about with their group, so they stand apart from other groups', and
    so do pods that may be sent to other nodes.
    """
    waits = (
        pod.reservation is not None
        or pod.attributes.nominated is not None
        or pod.of_claims
        or pod.by_claim
    )
    itself = pod.uid if waits else None
    attributes = pod.attributes
    open_to = attributes.eligible_nodes, attributes.requests
    return pod.request, pod.group_ref, open_to, attributes.priority, itself
