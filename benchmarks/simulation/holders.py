"""Who holds GPUs already when a simulation begins, and what no kubelet hands out.

A cluster file says it in two ways: reports show devices with the pods that hold them, and pods are
there that no report shows yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks.simulation.clusters import ClusterError, Node
from topology.core.devices import GpuUuid, PodUid, base_uuid
from topology.core.requests import ContainerRequest, GpuRequest, Role
from topology.emulation import EmulatedKubelet, Refused

# A device as the emulated kubelet counts them: the GPU's position, and which share of it.
Replica: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds devices by a report, container by container."""

    uid: PodUid
    namespace: str
    name: str
    containers: dict[str, list[Replica]] = field(default_factory=dict)

    @property
    def shown(self) -> int:
        """How many devices the report shows."""
        return sum(len(devices) for devices in self.containers.values())

    def request(self, resource: str) -> GpuRequest:
        """A request that would have given it what it holds."""
        held = tuple(ContainerRequest(c, len(d)) for c, d in self.containers.items())
        return GpuRequest(resource, held)


def withhold(node: Node, kubelet: EmulatedKubelet) -> int:
    """Keep back the GPUs that the node's kubelet does not hand out; how many these are."""
    if node.report.allocatable is None:
        return 0
    at = node.topology.position_of_uuid
    kept = {at.get(base_uuid(device)) for device in node.report.allocatable}
    gone = [p for p in range(len(node.topology.gpus)) if p not in kept]
    kubelet.withhold(gone)
    return len(gone)


def restore(node: Node, resource: str, kubelet: EmulatedKubelet) -> None:
    """Give the node's pods what they hold, and admit those that no report shows yet.

    Raises :class:`~benchmarks.simulation.clusters.ClusterError` where they hold more than there is.
    """
    requests = {p.uid: p.request for p in node.pods if isinstance(p.request, GpuRequest)}
    holders = _holders(node, resource)
    for holder in holders.values():
        given = requests.get(holder.uid) or holder.request(resource)
        kubelet.restore(holder.uid, holder.namespace, holder.name, given, holder.containers)
    for holder in holders.values():
        if holder.uid in requests:
            _hide(holder, requests[holder.uid], kubelet)
    for pod in node.pods:
        request = requests.get(pod.uid)
        if request is not None and request.resource == resource and pod.uid not in holders:
            try:
                kubelet.admit(pod.uid, pod.namespace, pod.name, request)
            except Refused as refusal:
                raise ClusterError(
                    f"{node.topology.name}: its pods hold more GPUs than it has: {refusal}"
                ) from refusal


def _holders(node: Node, resource: str) -> dict[PodUid, Holder]:
    """The pods that the node's report shows with devices of a resource."""
    at = node.topology.position_of_uuid
    # An agent that could not find a pod's UID tells its name.
    uids = {(pod.namespace, pod.name): pod.uid for pod in node.pods}
    found: dict[PodUid, Holder] = {}
    for a in node.report.allocations:
        if a.resource == resource:
            nameless = uids.get((a.namespace, a.pod), PodUid(f"{a.namespace}/{a.pod}"))
            uid = a.pod_uid or nameless
            holder = found.setdefault(uid, Holder(uid, a.namespace, a.pod))
            # The node may have lost a GPU that a pod still holds.
            devices = (_replica(at, device) for device in a.device_ids)
            known = [device for device in devices if device is not None]
            holder.containers.setdefault(a.container, []).extend(known)
    return found


def _replica(at: Mapping[GpuUuid, int], device: str) -> Replica | None:
    """A device's GPU and share; None where the node has no such GPU (any more)."""
    position = at.get(base_uuid(device))
    share = device.partition("::")[2]
    return None if position is None else (position, int(share) if share.isdigit() else 0)


def _hide(holder: Holder, request: GpuRequest, kubelet: EmulatedKubelet) -> None:
    """Give a pod what its init containers hold, which no report shows."""
    init = [c.name for c in request.containers if c.role is Role.INIT]
    if init and request.effective_count > holder.shown:
        more = kubelet.free()[: request.effective_count - holder.shown]
        given = {**holder.containers, init[0]: more}
        kubelet.restore(holder.uid, holder.namespace, holder.name, request, given)
