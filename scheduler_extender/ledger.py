"""The ledger: reservations and reports together say what is free on a node.

There is no running balance that could drift. A node's availability is computed from what is known
about it now: its record, its pods, and the binds in flight. The rules:

- A device is used if the report says so, or if a pod is bound here whose devices the report does
  not show yet (a *reservation*: we know how many, not which).
- A reservation retires when every app and sidecar container of its pod has its devices in the
  report, or when the pod has ended or is gone; pod by pod, never by time.
- Devices in the report of a pod that is ending, has ended or is unknown may be released at any
  moment: they are not counted as left, and no promise relies on their staying away.
- Pods that others bound are reservations from the moment their nodeName is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_extender.annotations import PLACEMENT, Malformed, parse
from scheduler_extender.wire import Pod
from topology.belief import Availability, Pending
from topology.devices import Mask, NodeName, PodUid, base_uuid
from topology.graph import NodeTopology
from topology.placement import pending_order
from topology.report import Allocation, Report
from topology.requests import NO_CONSTRAINTS, Constraints, GpuRequest, Role

ENDED = ("Succeeded", "Failed")


class ContradictionError(ValueError):
    """A report cannot be true as it stands; the message says where."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What the ledger keeps of a pod that asks for GPUs.

    ``promised`` is what was promised to it when we bound it; nothing for a plain pod, and nothing
    for one that somebody else bound.
    """

    uid: PodUid
    namespace: str
    name: str
    node: NodeName | None
    request: GpuRequest | Malformed
    phase: str = "Pending"
    deleting: bool = False
    unschedulable: bool = False
    promised: Constraints = NO_CONSTRAINTS

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ENDED

    @property
    def waiting(self) -> bool:
        """Whether kube-scheduler has said that it fits nowhere."""
        return self.node is None and self.unschedulable and not self.deleting and not self.ended


def pod_record(pod: Pod, managed: tuple[str, ...]) -> PodRecord | None:
    """The record of a pod, or None where it asks for none of the ``managed`` resources."""
    request = parse(pod, managed)
    if request is None:
        return None
    placed = PLACEMENT in (pod.metadata.annotations or {})
    promised = NO_CONSTRAINTS
    if placed and isinstance(request, GpuRequest) and request.required:
        promised = request.constraints
    return PodRecord(
        uid=PodUid(pod.metadata.uid),
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=NodeName(pod.spec.node_name) if pod.spec.node_name else None,
        request=request,
        phase=pod.status.phase,
        deleting=pod.metadata.deletion_timestamp is not None,
        unschedulable=any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in pod.status.conditions or []
        ),
        promised=promised,
    )


def availability(
    topology: NodeTopology,
    report: Report | None,
    pods: Iterable[PodRecord],
    resource: str,
    *,
    all_pods_known: bool = True,
) -> Availability:
    """What is free on a node for ``resource``, given its report and the pods bound to it.

    ``pods`` are those with this node, binds in flight included. With ``all_pods_known`` a holder
    that is not among them has ended, or we see it late: it may release its devices any moment.
    Otherwise (a hand-written file names few pods) it is taken to be running. Raises
    :class:`ContradictionError` where the report gives one device to two pods.
    """
    report = report or Report()
    held = _held_by_pod(topology, report)
    running: list[Mask] = []
    releasing: list[Mask] = []
    pending: list[Pending] = []
    unseen = 0
    for pod in pods:
        shown = held.pop(pod.uid, None)
        request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
        if request is None or pod.ended:
            if shown is not None:
                releasing.append(shown.mask)
            continue
        if shown is None:
            if request.resource == resource:
                count, effective = request.count, request.effective_count
                pending.append(Pending(count, effective, pod.promised))
            continue
        (releasing if pod.deleting else running).append(shown.mask)
        devices = shown.devices[request.resource]
        missing = request.count - devices
        if shown.whole(request):
            unseen += max(0, request.effective_count - devices)
        elif missing > 0:
            # Half admitted: containers get their devices one after the other.
            pending.append(Pending(missing, request.effective_count - devices))
    (releasing if all_pods_known else running).extend(other.mask for other in held.values())
    served = topology.resource(resource)
    if served is None or (served.strategy == "none" and served.replicas == 1):
        _check_whole(topology, report)
    free = _allocatable(topology, report)
    for mask in (*running, *releasing):
        free &= ~mask
    sick = _mask(topology, [h.uuid for h in report.health if not h.healthy])
    if served is not None and served.replicas > 1:
        return _shared(topology, report, served.replicas, pending, unseen, sick)
    return Availability(
        free=free,
        releasing=tuple(sorted(m for m in releasing if m)),
        running=tuple(sorted(m for m in running if m)),
        pending=pending_order(pending),
        unseen=unseen,
        sick=sick,
    )


@dataclass(slots=True)
class _Held:
    """What the report shows of one pod."""

    mask: Mask
    devices: dict[str, int]
    by_container: dict[tuple[str, str], int]

    def whole(self, request: GpuRequest) -> bool:
        return all(
            self.by_container.get((request.resource, c.name), 0) >= c.count
            for c in request.containers
            if c.role is not Role.INIT
        )


def _held_by_pod(topology: NodeTopology, report: Report) -> dict[PodUid, _Held]:
    holder: dict[str, Allocation] = {}
    found: dict[PodUid, _Held] = {}
    for allocation in report.allocations:
        # A pod whose UID the agent could not find is still told apart by its name.
        uid = allocation.pod_uid or PodUid(f"{allocation.namespace}/{allocation.pod}")
        held = found.setdefault(uid, _Held(0, defaultdict(int), defaultdict(int)))
        for i, device in enumerate(allocation.device_ids):
            first = holder.setdefault(device, allocation)
            if device in allocation.device_ids[:i]:
                raise ContradictionError(f"status.allocations: {device} stands twice in one")
            if first is not allocation:
                raise ContradictionError(
                    f"status.allocations: {device} is held by {first.namespace}/{first.pod} "
                    f"and by {allocation.namespace}/{allocation.pod}, one may hold it"
                )
            held.devices[allocation.resource] += 1
            held.by_container[allocation.resource, allocation.container] += 1
        held.mask |= _mask(topology, allocation.device_ids)
    return found


def _mask(topology: NodeTopology, device_ids: Iterable[str]) -> Mask:
    """The GPUs behind device ids; one that the node does not have (any more) is nobody's bit."""
    mask = 0
    for device in device_ids:
        position = topology.position_of_uuid.get(base_uuid(device))
        if position is not None:
            mask |= 1 << position
    return mask


def _check_whole(topology: NodeTopology, report: Report) -> None:
    """A kubelet that hands out whole GPUs hands out those we know, and no shares of them."""
    for device in report.allocatable or ():
        if base_uuid(device) not in topology.position_of_uuid or "::" in device:
            raise ContradictionError(
                f"status.allocatable: {device} is not among the devices of the node"
            )
    for allocation in report.allocations:
        for device in allocation.device_ids:
            if "::" in device:
                raise ContradictionError(
                    f"status.allocations: {device} is a share, but resources say whole GPUs"
                )


def _allocatable(topology: NodeTopology, report: Report) -> Mask:
    if report.allocatable is None:
        return (1 << len(topology.gpus)) - 1
    return _mask(topology, report.allocatable)


def _shared(
    topology: NodeTopology,
    report: Report,
    replicas: int,
    pending: list[Pending],
    unseen: int,
    sick: Mask,
) -> Availability:
    """Where one GPU is advertised several times, which replica is free promises nothing.

    Every allocatable GPU may be in an outcome; only the number of devices left is counted.
    """
    mask = _allocatable(topology, report)
    taken = sum(len(a.device_ids) for a in report.allocations)
    return Availability(
        free=mask,
        pending=pending_order(pending),
        unseen=unseen + taken,
        sick=sick,
        units=tuple(replicas if mask >> p & 1 else 0 for p in range(len(topology.gpus))),
    )
