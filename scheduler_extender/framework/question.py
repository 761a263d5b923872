"""A question to nodes: about which pod, for which purpose, and under which assumptions."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest


class Purpose(Enum):
    """The purpose of a question. Each rule that depends on it says what follows."""

    FILTER = "filter"  # kube-scheduler offers nodes: it checks the selector and taints itself
    SCORE = "score"
    BIND = "bind"  # about one node, which kube-scheduler has chosen
    PREEMPT = "preempt"
    WAKE = "wake"
    EXPLAIN = "explain"  # people: `why`, `check`, the pages, the pod's Event, the metric

    @property
    def offered(self) -> bool:
        """Whether kube-scheduler names the nodes, so that all of them are eligible."""
        return self in (Purpose.FILTER, Purpose.SCORE, Purpose.BIND, Purpose.PREEMPT)


@dataclass(frozen=True, slots=True)
class Question:
    """The question whether this pod may go to these nodes.

    The pod never counts against itself: neither while it is assumed, nor with its reservation, nor
    with the devices that it has where it is bound.
    """

    pod: PodRecord
    purpose: Purpose
    # The request that replaces the pod's own, for example if a person asks for less. If it names
    # peers, no more peers than these are expected.
    request: GpuRequest | None = None
    # The pods that count as gone from a node, for example victims of a preemption.
    gone: Mapping[NodeName, frozenset[PodUid]] = field(default_factory=dict)
    scores: bool = False  # whether scores are needed: rejected nodes are not sorted out then
    ignores_group: bool = False  # whether rules about the pod's group are left out

    def on(self, info: NodeInfo) -> NodeInfo:
        """Return a node's info for this question.

        It leaves out the pod itself, the pods that count as gone, and a reservation that yields to
        the pod. At its bind the pod has the devices of its claims.
        """
        pod, pods = self.pod, info.pods
        if self.purpose is Purpose.BIND and (devices := info.devices_of(pod)):
            return info.as_claimed(pod.uid, devices).yielding_to(pod.attributes.priority, pod.gang)
        ignored = self.gone.get(info.name, frozenset())
        if pod.claim_constraints is not None:  # the devices of its claims are judged
            without = info.without(ignored) if ignored else info
            return without.yielding_to(pod.attributes.priority, pod.gang)
        itself = pod.uid in pods.bound or pod.uid in pods.assumed
        if itself or info.claimed(pod.uid) or info.is_reserved_for(pod.uid):
            ignored |= {pod.uid}
        without = info.without(ignored) if ignored else info
        return without.yielding_to(pod.attributes.priority, pod.gang)


def alike(pod: PodRecord) -> Hashable:
    """Return a key that is equal for waiting pods to which all nodes answer alike.

    A group's members are asked about with their group, so their key differs from that of other
    groups. It also differs for pods with other eligible nodes.
    """
    waits = (
        pod.reservation is not None
        or pod.attributes.nominated is not None
        or pod.claim_constraints
        or pod.has_extended_resource_claim
    )
    itself = pod.uid if waits else None
    attributes = pod.attributes
    eligible = attributes.eligible_nodes, attributes.requests
    return pod.request, pod.group_ref, eligible, attributes.priority, itself
