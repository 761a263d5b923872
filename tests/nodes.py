"""Hand-built nodes and pods that say what they are for."""

from itertools import combinations
from typing import Any

import msgspec

from scheduler_extender.annotations import MANAGED
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.wire import Pod
from topology.core.admission import DeviceManager
from topology.core.availability import Availability, Unacknowledged
from topology.core.devices import (
    MIB,
    Bytes,
    DeviceId,
    Gpu,
    GpuUuid,
    Mask,
    Nic,
    NodeName,
    PodUid,
    positions,
)
from topology.core.devicesets import DeviceSet
from topology.core.graph import NodeTopology
from topology.core.guaranteedcapacity import guaranteed_placements
from topology.core.links import GBps, Link, LinkKind, Via
from topology.core.placement import Assessment
from topology.core.report import Allocation, Report
from topology.core.requests import NO_CONSTRAINTS, Constraints, Counts, GpuRequest, Role
from topology.core.scoring import RequestMix, Score, classes_of, placement_cost

GIB = 1024 * MIB


def gpus(n: int, product: str = "NVIDIA A100-SXM4-40GB", memory: int = 40 * GIB) -> tuple[Gpu, ...]:
    """GPUs 0 … n-1, the first half on NUMA node 0."""
    return tuple(
        Gpu(i, GpuUuid(f"GPU-{i}"), product, Bytes(memory), numa_node=int(i >= n / 2))
        for i in range(n)
    )


def subsets(mask: Mask, size: int) -> list[Mask]:
    """Every subset of a mask with ``size`` members."""
    return list(map(sum, combinations([1 << p for p in positions(mask)], size)))


def score_of(
    kubelet: DeviceManager,
    availability: Availability,
    request: GpuRequest,
    assessed: Assessment,
    mix: RequestMix,
) -> Score:
    """The score of a placement of the request on a node, before scores are normalized."""
    return placement_cost(kubelet, availability, request, assessed, classes_of(mix)).weighed(mix)


def guaranteed_capacity(kubelet: DeviceManager, free: DeviceSet, mix: RequestMix) -> float:
    """The number of GPUs for which guaranteed placements still fit, over the classes of a mix."""
    return sum(
        weight * wanted.count * guaranteed_placements(kubelet, free, wanted)
        for wanted, weight in mix
    )


def switched(n: int = 4, name: str = "switched") -> NodeTopology:
    """Every pair is joined through an NVSwitch: any set will do."""
    links = tuple(
        Link(a, b, LinkKind.NODE, 12, Via.SWITCH, GBps(25))
        for a in range(n)
        for b in range(a + 1, n)
    )
    return NodeTopology(NodeName(name), gpus(n), links)


def bridged(n: int = 4, name: str = "bridged") -> NodeTopology:
    """Neighbours 0-1, 2-3 … are bridged by NVLink, everything else crosses PCIe."""
    links = tuple(
        Link(a, b, LinkKind.PHB if a // 2 == b // 2 else LinkKind.SYS, 4 * (a // 2 == b // 2))
        for a in range(n)
        for b in range(a + 1, n)
    )
    return NodeTopology(NodeName(name), gpus(n), links)


def pcie(n: int = 4, name: str = "pcie") -> NodeTopology:
    """No NVLink at all."""
    links = tuple(Link(a, b, LinkKind.NODE) for a in range(n) for b in range(a + 1, n))
    return NodeTopology(NodeName(name), gpus(n, "NVIDIA L40S", 46068 * MIB), links)


def line(name: str = "line") -> NodeTopology:
    """Three GPUs in a row, 0-1-2: connected, no ring, not pairwise."""
    links = (
        Link(0, 1, LinkKind.SYS, 2, Via.DIRECT, GBps(25)),
        Link(0, 2, LinkKind.SYS),
        Link(1, 2, LinkKind.SYS, 1, Via.DIRECT, GBps(25)),
    )
    nics = (Nic("mlx5_0", ((0, LinkKind.PIX), (1, LinkKind.NODE))),)
    return NodeTopology(NodeName(name), gpus(3), links, nics)


def pod(
    count: int | str | None = 2,
    annotations: dict[str, str] | None = None,
    *,
    name: str = "train",
    uid: str = "uid-1",
    node: str | None = None,
    containers: list[dict[str, Any]] | None = None,
    init: list[dict[str, Any]] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A Pod as kube-scheduler sends it; ``annotations`` come without our prefix."""
    limits = {} if count is None else {"limits": {"nvidia.com/gpu": str(count)}}
    spec: dict[str, Any] = {
        "containers": containers or [{"name": "main", "resources": limits}],
    }
    if init:
        spec["initContainers"] = init
    if node:
        spec["nodeName"] = node
    ours = {f"gpu-topology.io/{k}": v for k, v in (annotations or {}).items()}
    metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": ours}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}}


def record_of(manifest: Any) -> PodRecord:
    """What the extender keeps of a pod that asks for GPUs."""
    found = pod_record(msgspec.convert(manifest, Pod), MANAGED)
    assert found is not None
    return found


def waiting(request: GpuRequest, uid: str = "") -> PodRecord:
    """A pod that waits and asks for this, of which nothing else is known."""
    return PodRecord(PodUid(uid), "default", uid, None, request)


def container(name: str, count: int, **more: Any) -> dict[str, Any]:
    """A container that asks for ``count`` GPUs."""
    return {"name": name, "resources": {"limits": {"nvidia.com/gpu": count}}, **more}


def unacknowledged(
    count: int,
    promised: Constraints = NO_CONSTRAINTS,
    *,
    survives_endings: bool = False,
    init: int = 0,
) -> Unacknowledged:
    """A bound pod with one container, maybe after an init container, that no report shows yet."""
    counts: Counts = ((Role.INIT, init),) if init else ()
    return Unacknowledged((*counts, (Role.APP, count)), promised, survives_endings)


def offered(info: NodeInfo, resource: str = "nvidia.com/gpu") -> Offer:
    """What a node offers, by its last report."""
    offer = info.last_offer(resource)
    assert isinstance(offer, Offer), offer
    return offer


def last_report(info: NodeInfo) -> Report:
    """The last report of a node that has one."""
    assert info.report is not None
    return info.report


def shown(uid: str, *gpus: int, name: str = "main") -> Allocation:
    """What a report shows of a pod's container that has these GPUs of :func:`gpus`."""
    ids = tuple(DeviceId(f"GPU-{i}") for i in gpus)
    return Allocation(PodUid(uid), "default", uid, name, "nvidia.com/gpu", ids)
