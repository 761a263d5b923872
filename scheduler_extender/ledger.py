"""The ledger: reservations and reports together say what is free on a node.

There is no running balance that could drift. A node's availability is computed from what is known
about it now: its record, its pods, and the binds in flight. The rules:

- A device is used if the report says so, or if a pod is bound here whose devices the report does
  not show yet (a *reservation*: we know how many, not which).
- A reservation retires when every app and sidecar container of its pod has its devices in the
  report, or when the pod has ended or is gone; pod by pod, never by time.
- Devices in the report of a pod that is ending, has ended or is unknown may be released at any
  moment: they are not counted as left, and no promise relies on their staying away.
- A pod that runs, or was reported before, and is missing from the report holds devices that we do
  not know: just after its restart a kubelet shows nothing.
- A pod that was deleted may still be with its kubelet, which hears of it later than we do: it
  counts as ending until a report shows it no more whose agent knew of the deletion when it looked.
- A pod that ended before any report showed it may have held devices while a pod was admitted that
  is unreported still: it haunts the belief until that one is reported.
- Pods that others bound are reservations from the moment their nodeName is seen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler_extender.annotations import PLACEMENT, Malformed, containers_of, parse, render
from scheduler_extender.wire import Pod
from topology.core.belief import Availability, Holder, Pending, pending_order
from topology.core.devices import GpuResource, NodeName, PodUid, base_uuid
from topology.core.graph import NodeTopology
from topology.core.placement import Verdict
from topology.core.pools import Pool, pack, total, width_for
from topology.core.report import Allocation, Report
from topology.core.requests import NO_CONSTRAINTS, Constraints, Counts, GpuRequest, Role

ENDED = ("Succeeded", "Failed")
UNKNOWN_VERSION = -1
"""In place of a resourceVersion that cannot be compared with others."""


class ContradictionError(ValueError):
    """A report cannot be true as it stands; the message says where."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What the ledger keeps of a pod that asks for GPUs.

    ``promised`` is what was promised to it when we bound it; nothing for a plain pod, and nothing
    for one that somebody else bound. ``survives_endings`` is a promise that was called
    guaranteed, and not just expected.
    """

    uid: PodUid
    namespace: str
    name: str
    node: NodeName | None
    request: GpuRequest | Malformed
    phase: str = "Pending"
    deleting: bool = False
    called_unschedulable: bool = False
    promised: Constraints = NO_CONSTRAINTS
    survives_endings: bool = False

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ENDED

    @property
    def unschedulable(self) -> bool:
        """Whether kube-scheduler has said that it fits nowhere."""
        return (
            self.node is None and self.called_unschedulable and not self.deleting and not self.ended
        )


def pod_record(pod: Pod, managed: tuple[str, ...], *, trusted: bool = False) -> PodRecord | None:
    """The record of a pod, or None where it asks for none of the ``managed`` resources.

    ``trusted`` says that nobody but us, or the author of a cluster file, can have written the
    placement annotation: then it need not prove whose it is.
    """
    request = parse(pod, managed)
    if request is None:
        return None
    promise = _promise_of(pod, trusted=trusted)
    promised = NO_CONSTRAINTS
    if promise is not None and isinstance(request, GpuRequest) and request.required:
        promised = request.constraints
    return PodRecord(
        uid=PodUid(pod.metadata.uid),
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=NodeName(pod.spec.node_name) if pod.spec.node_name else None,
        request=request,
        phase=pod.status.phase,
        deleting=pod.metadata.deletion_timestamp is not None,
        called_unschedulable=any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in pod.status.conditions or []
        ),
        promised=promised,
        survives_endings=promised != NO_CONSTRAINTS and promise is Verdict.GUARANTEED,
    )


class _Placement(msgspec.Struct):
    """What we read of the placement annotation."""

    verdict: str
    node: str = ""
    uid: str = ""


_read_placement = msgspec.json.Decoder(_Placement).decode


def _promise_of(pod: Pod, *, trusted: bool) -> Verdict | None:
    """The verdict of the promise that we gave the pod when we bound it; None without one.

    Anybody may write the annotation, in a template for one. Only one that names this very pod, by
    UID, and the node that the pod is on can be ours: both are written by one Binding, and nobody
    knows a pod's UID before it exists.
    """
    written = (pod.metadata.annotations or {}).get(PLACEMENT)
    if written is None or not pod.spec.node_name:
        return None
    try:
        placement = _read_placement(written)
    except (msgspec.DecodeError, RecursionError):
        return None
    ours = placement.uid == pod.metadata.uid and placement.node == pod.spec.node_name
    if not ours and not trusted:
        return None
    promises = {v.value: v for v in Verdict if v.holds}
    return promises.get(placement.verdict)


def manifest_of(pod: PodRecord) -> dict[str, Any]:
    """A Pod manifest that :func:`pod_record` reads as this record, as far as we keep pods."""
    request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
    annotations: dict[str, str] = {}
    spec: dict[str, Any] = {"containers": []}
    if request is not None:
        annotations = render(request)
        spec = containers_of(request)
        if not request.only_gpu_plugin:
            first = (spec["containers"] or spec["initContainers"])[0]
            first["resources"]["limits"]["example.com/another-device"] = "1"
    if pod.promised != NO_CONSTRAINTS:
        verdict = Verdict.GUARANTEED if pod.survives_endings else Verdict.EXPECTED
        placement = {"verdict": verdict.value, "node": pod.node, "uid": pod.uid}
        annotations[PLACEMENT] = json.dumps(placement)
    if pod.node is not None:
        spec["nodeName"] = pod.node
    metadata: dict[str, Any] = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    if annotations:
        metadata["annotations"] = annotations
    status: dict[str, Any] = {"phase": pod.phase}
    if pod.called_unschedulable:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status["conditions"] = [unscheduled]
    if pod.deleting:
        metadata["deletionTimestamp"] = "2000-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


def availability(
    topology: NodeTopology,
    report: Report | None,
    pods: Iterable[PodRecord],
    resource: str,
    *,
    all_pods_known: bool = True,
    reported: Container[PodUid] = (),
) -> Availability:
    """What is free on a node for ``resource``; see :func:`balance`."""
    return balance(
        topology, report, pods, resource, all_pods_known=all_pods_known, reported=reported
    ).availability


@dataclass(frozen=True, slots=True)
class Ghost:
    """A pod that ended, or is gone, before any report showed it.

    ``witnesses`` are the pods that were unreported then: it may have been there when they were
    admitted. With ``many`` it stands for more like it than anybody can follow.
    """

    pod: PodRecord
    witnesses: frozenset[PodUid]
    many: bool = False


@dataclass(frozen=True, slots=True)
class Departed:
    """A pod that is gone from the API server before its kubelet was seen to let go of it.

    ``version`` is a resourceVersion at which it was gone, ``sequence`` that of the last report
    then.
    """

    pod: PodRecord
    version: int
    sequence: int

    def confirmed_by(self, report: Report) -> bool:
        """Whether the report's agent surely knew of the deletion when it asked the kubelet.

        Where it does not say what it knew, or nothing that can be compared, the second later report
        will do: the first may have been on its way already, and an agent looks again only once it
        has written what it saw.
        """
        knew = None if self.version < 0 else report.knew_pods_at(self.version)
        return report.sequence >= self.sequence + 2 if knew is None else knew


@dataclass(frozen=True, slots=True)
class Balance:
    """A node's accounts over one resource, and the entries they add up: by pod, what it still
    waits for, and what the report shows of it."""

    availability: Availability
    unreported: dict[PodUid, Pending]
    shown: dict[PodUid, Pool]


def balance(
    topology: NodeTopology,
    report: Report | None,
    pods: Iterable[PodRecord],
    resource: str,
    *,
    all_pods_known: bool = True,
    reported: Container[PodUid] = (),
    ghosts: Iterable[Ghost] = (),
) -> Balance:
    """What is free on a node for ``resource``, given its report and the pods bound to it.

    ``pods`` are those with this node, binds in flight included. With ``all_pods_known`` a holder
    that is not among them has ended, or we see it late: it may release its devices any moment.
    Otherwise (a hand-written file names few pods) it is taken to be running. ``reported`` are pods
    whose devices some earlier report of this boot has shown. Raises
    :class:`ContradictionError` where the report gives one device to two pods.
    """
    report = report or Report()
    served = topology.resource(resource) or GpuResource(resource)
    if served.strategy == "none" and served.replicas == 1:
        _check_whole(topology, report)
    books = _Books(topology, report, resource, served.replicas, reported)
    held = books.by_pod()
    shown = {uid: books.count(found.devices) for uid, found in held.items()}
    for pod in pods:
        books.enter(pod, held.pop(pod.uid, None))
    for ghost in ghosts:
        books.haunt(ghost)
    for other in held.values():
        (books.releasing if all_pods_known else books.running).append(Holder(books.pool(other)))
    return Balance(books.availability(), books.unreported, shown)


@dataclass(slots=True)
class _Held:
    """What the report shows of one pod."""

    devices: list[str] = field(default_factory=list)
    by_container: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def count(self, resource: str) -> int:
        return sum(n for (served, _), n in self.by_container.items() if served == resource)

    def whole(self, request: GpuRequest) -> bool:
        return all(
            self.by_container.get((request.resource, c.name), 0) >= c.count
            for c in request.containers
            if c.role is not Role.INIT
        )


class _Books:
    """One node's accounts over one resource while they are being added up."""

    def __init__(
        self,
        topology: NodeTopology,
        report: Report,
        resource: str,
        replicas: int,
        reported: Container[PodUid],
    ) -> None:
        self._topology = topology
        self._report = report
        self._resource = resource
        self._replicas = replicas
        self._reported = reported
        self._width = width_for(replicas)
        self.running: list[Holder] = []
        self.releasing: list[Holder] = []
        self.unreported: dict[PodUid, Pending] = {}
        self._taken: set[str] = set()
        self.shown: Collection[PodUid] = ()

    def by_pod(self) -> dict[PodUid, _Held]:
        """The report's allocations, pod by pod."""
        holder: dict[str, Allocation] = {}
        found: dict[PodUid, _Held] = {}
        for allocation in self._report.allocations:
            # A pod whose UID the agent could not find is still told apart by its name.
            uid = allocation.pod_uid or PodUid(f"{allocation.namespace}/{allocation.pod}")
            held = found.setdefault(uid, _Held())
            for i, device in enumerate(allocation.device_ids):
                first = holder.setdefault(device, allocation)
                if device in allocation.device_ids[:i]:
                    raise ContradictionError(f"status.allocations: {device} stands twice in one")
                if first is not allocation:
                    raise ContradictionError(
                        f"status.allocations: {device} is held by {first.namespace}/{first.pod} "
                        f"and by {allocation.namespace}/{allocation.pod}, one may hold it"
                    )
                held.by_container[allocation.resource, allocation.container] += 1
            held.devices += allocation.device_ids
        self._taken = set(holder)
        self.shown = found.keys()
        return dict(found)

    def enter(self, pod: PodRecord, shown: _Held | None) -> None:
        """Enter a pod of this node, with what the report shows of it."""
        request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
        if request is None or pod.ended:
            if shown is not None:
                hidden = 0 if request is None else self._hidden(request, shown)
                self.releasing.append(Holder(self.pool(shown), hidden))
            return
        if shown is None:
            if request.resource != self._resource:
                return
            if pod.phase == "Running" or pod.uid in self._reported:
                # Admitted for sure, with devices that we are not told: a kubelet shows nothing
                # for a moment after its restart.
                unknown = Holder(0, request.effective_count)
                (self.releasing if pod.deleting else self.running).append(unknown)
            else:
                # Its init containers may have devices already, and no report would show them.
                begun = any(role is Role.INIT for role, _ in request.counts)
                self.unreported[pod.uid] = Pending(
                    request.counts,
                    pod.promised,
                    pod.survives_endings,
                    request.only_gpu_plugin,
                    opaque=begun,
                    ending=pod.deleting,
                )
            return
        if shown.whole(request):
            holder = Holder(self.pool(shown), self._hidden(request, shown))
            (self.releasing if pod.deleting else self.running).append(holder)
        else:
            self.unreported[pod.uid] = self._started(pod, request, shown)

    def haunt(self, ghost: Ghost) -> None:
        """Enter a pod that ended unseen, while one of its witnesses is unreported."""
        request = ghost.pod.request
        waiting = {uid for uid, pod in self.unreported.items() if not pod.departed}
        if (
            isinstance(request, GpuRequest)
            and request.resource == self._resource
            and ghost.pod.uid not in self.shown
            and not waiting.isdisjoint(ghost.witnesses)
        ):
            self.unreported[ghost.pod.uid] = Pending(
                request.counts, only_gpu_plugin=request.only_gpu_plugin, departed=True
            )

    def _hidden(self, request: GpuRequest, shown: _Held) -> int:
        """How many devices it holds that no report shows: its init containers' unused ones."""
        return max(0, request.effective_count - shown.count(request.resource))

    def _started(self, pod: PodRecord, request: GpuRequest, shown: _Held) -> Pending:
        """A pod in the middle of its admission: containers get their devices one by one."""
        devices = shown.count(request.resource)
        got = {c.name: shown.by_container[request.resource, c.name] for c in request.containers}
        rest = [c for c in request.containers if c.role is not Role.INIT and got[c.name] < c.count]
        facts = self._topology.allocator
        # One hint for the whole pod was merged from what was free when its admission began.
        pinned = facts.topology_manager_scope == "pod" and facts.topology_manager_policy != "none"
        opaque = pinned or any(
            c.role is Role.INIT or 0 < got[c.name] < c.count for c in request.containers
        )
        counts: Counts = tuple((c.role, c.count) for c in rest)
        if opaque:
            # What its init containers hold shows nowhere, and may be used or not.
            missing = max(0, request.count - devices)
            held = max(missing, request.effective_count - devices)
            counts = ((Role.INIT, held), (Role.APP, missing))
        return Pending(
            counts,
            pod.promised,
            pod.survives_endings,
            request.only_gpu_plugin,
            started=True,
            shown=self.pool(shown),
            opaque=opaque,
            ending=pod.deleting,
        )

    def pool(self, held: _Held) -> Pool:
        """What comes free when a pod lets go: its devices that the kubelet would hand out again."""
        return self.count(d for d in held.devices if self._allocatable(d))

    def availability(self) -> Availability:
        """What is free, and what may change it."""
        report = self._report
        everything = pack([self._replicas] * len(self._topology.gpus), self._width)
        taken = self.count(self._taken)
        if report.allocatable is None:
            free = everything - taken
        else:
            free = self.count(report.allocatable - self._taken)
        hiding = any(holder.hidden for holder in (*self.releasing, *self.running))
        gone = total(everything, self._width) - total(taken, self._width) - total(free, self._width)
        sick = [self._topology.position_of_uuid.get(h.uuid) for h in report.health if not h.healthy]
        return Availability(
            free=free,
            releasing=tuple(sorted(h for h in self.releasing if h != Holder(0))),
            running=tuple(sorted(h for h in self.running if h != Holder(0))),
            pending=pending_order(self.unreported.values()),
            sick=sum(1 << p for p in {p for p in sick if p is not None}),
            width=self._width,
            gone=max(0, gone) if hiding else 0,
        )

    def _allocatable(self, device: str) -> bool:
        return self._report.allocatable is None or device in self._report.allocatable

    def count(self, devices: Iterable[str]) -> Pool:
        """Device ids as a pool; one that the node does not have (any more) counts nothing."""
        position_of = self._topology.position_of_uuid
        found = [position_of.get(base_uuid(device)) for device in devices]
        if self._width == 1:
            return sum(1 << p for p in {p for p in found if p is not None})
        counts = [0] * len(self._topology.gpus)
        for position in found:
            if position is not None:
                counts[position] = min(counts[position] + 1, self._replicas)
        return pack(counts, self._width)


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
