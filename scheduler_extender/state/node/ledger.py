"""The ledger: assumed pods and reports together say what is available on a node.

There is no running balance that could drift. A node's availability is computed from its current
state: its record, its bound pods, and its assumed pods. The rules:

1. A device is used if the report says so. A device is also used by a pod that is bound here, or
   assumed, and whose devices the report does not show yet. Such a pod is *unacknowledged*: its
   entry says how many devices, not which. A pod that another scheduler bound has an entry as soon
   as its nodeName is seen. Only under DRA does a pod have devices before its claim names them: if
   kube-scheduler has nominated it to the node, it has the first free ones.
2. The entry goes when every app and sidecar container of its pod has its devices in the report, or
   when the pod has ended or is gone. This happens pod by pod, and never after a time.
3. Devices in the report of a pod that is terminating, has ended or is unknown may be released at
   any time. They are not counted as left, and no promise relies on them staying in use.
4. A pod that runs, or was reported before, and is missing from the report holds devices that we do
   not know: a kubelet shows nothing just after its restart.
5. A kubelet hears of a deletion later than we do, and may still run the deleted pod. Such a pod is
   *unconfirmed*. It counts as terminating until a report no longer shows it and that report's agent
   knew of the deletion when it looked.
6. A pod that ended before any report showed it has *terminated*. It may have held devices while the
   kubelet admitted another pod, which is still unacknowledged. It is part of the possible free
   states until that other pod is reported.

The free CPUs and memory that pods of a node may get exclusively (``numa_free``) follow the same
rules. For them the report names pods by their names, not by their UIDs. It also names pods without
GPUs, of which we know nothing else:

1. Some pod holds what the report shows. It may release that at any time if it is terminating, has
   ended, or is unknown although the report shows its GPUs.
2. A pod that is bound and not shown yet takes its CPUs from any NUMA node. So do the hidden parts
   of a pod (init containers), and a running pod that is missing from the report.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from scheduler_extender.annotations import Malformed
from scheduler_extender.state.node.devicepools import DevicePools, device_pools
from scheduler_extender.state.node.occupants import Occupants, Terminated
from scheduler_extender.state.pods.record import PodName, PodRecord
from topology.core.allocators import ALLOCATORS
from topology.core.availability import (
    ALL_MEMORY,
    NO_HOLDER,
    Availability,
    Holder,
    Unacknowledged,
    coming,
    memory_of,
    unacknowledged_order,
)
from topology.core.devices import GpuResource, Mask, PodUid, base_uuid
from topology.core.devicesets import DeviceSet
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, served_devices
from topology.core.numa import Holding, MemoryBlock
from topology.core.numaresources import FreeNumaResources, added_up
from topology.core.report import Allocation, Report
from topology.core.requests import Counts, Exclusive, GpuRequest, Role

NO_HOLDER_KNOWN = Occupants()


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is available of one resource on a node, and the entries that add up to it."""

    availability: Availability
    unacknowledged: Mapping[PodUid, Unacknowledged]  # what each pod still needs devices for
    shown: Mapping[PodUid, DeviceSet]  # by pod, the devices in the report, or those chosen for it


def ledger(
    topology: NodeTopology,
    report: Report,
    pods: Iterable[PodRecord],
    resource: str,
    occupants: Occupants = NO_HOLDER_KNOWN,
    victims: Container[PodUid] = (),
) -> Ledger:
    """Return the ledger of a node over ``resource``, given its report and its pods.

    ``pods`` are the pods with this node, assumed ones included. ``occupants`` say which pods have
    terminated, and of which pods an earlier report of this boot has shown the devices.

    ``occupants.complete`` decides about a holder that is not among ``pods``. If the occupants are
    complete, the holder has ended or we see it late: it may release its devices at any time.
    Otherwise it counts as running, because a hand-written file names only some pods.

    The ``victims`` are gone before the requesting pod comes
    (:class:`~topology.core.availability.Availability`).
    """
    served = topology.resource(resource) or GpuResource(resource)
    devices = device_pools(topology, report, served)
    entries = _Entries(
        topology, report, served, tuple(pods), occupants.acknowledged, victims, devices
    )
    held = entries.by_pod()
    shown = {uid: each.shown for uid, each in held.items()}
    for pod in entries.pods:
        entries.enter(pod, held.pop(pod.uid, None))
    for gone in occupants.terminated.values():
        entries.enter_terminated(gone)
    # A claim lasts for any holder, even for a pod that asks for none of our resources.
    late = occupants.complete and not ALLOCATORS[topology.allocator.policy].serves_claims
    unknown = entries.releasing if late else entries.running
    for uid, other in held.items():
        (entries.victims if uid in victims else unknown).append(Holder(other.returning))
    return Ledger(entries.availability(), entries.unacknowledged, shown | entries.chosen)


@dataclass(slots=True)
class _Held:
    """What the report shows of one pod."""

    devices: list[str]
    by_container: dict[tuple[str, str], int]  # by resource and container
    shown: DeviceSet = 0  # its devices
    returning: DeviceSet = 0  # those that become free when the pod releases them

    def take(self, allocation: Allocation) -> None:
        """Add what the report shows of one more container."""
        at, ids = (allocation.resource, allocation.container), allocation.device_ids
        self.devices += ids
        self.by_container[at] = self.by_container.get(at, 0) + len(ids)

    def count(self, resource: str) -> int:
        return sum([n for (served, _), n in self.by_container.items() if served == resource])

    def whole(self, request: GpuRequest) -> bool:
        resource, shown = request.resource, self.by_container
        if (resource, "") in shown:  # a claim's allocation names no container
            return shown[resource, ""] >= request.count
        lasting = [c for c in request.containers if c.role is not Role.INIT]
        return all(shown.get((resource, c.name), 0) >= c.count for c in lasting)


@dataclass(slots=True)
class _Entries:
    """The entries of one node's ledger while they are added up."""

    topology: NodeTopology
    report: Report
    served: GpuResource
    pods: tuple[PodRecord, ...]
    acknowledged: Container[PodUid]
    terminates: Container[PodUid]
    devices: DevicePools
    running: list[Holder] = field(default_factory=list)
    releasing: list[Holder] = field(default_factory=list)
    victims: list[Holder] = field(default_factory=list)
    unacknowledged: dict[PodUid, Unacknowledged] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    shown: Collection[PodUid] = ()
    chosen: dict[PodUid, DeviceSet] = field(default_factory=dict)  # for nominated pods

    def by_pod(self) -> dict[PodUid, _Held]:
        """Return the report's allocations by pod.

        The agent may not have known the UID of a pod. The allocation then belongs to the only one
        of ``pods`` that has this name and is not shown by its UID. If there is no such pod, or more
        than one, the name stands for the UID.
        """
        by_uid: dict[PodUid, _Held] = {}
        named: Mapping[tuple[str, str], PodUid] | None = None
        for allocation in self.report.allocations:
            uid = allocation.pod_uid
            if not uid:
                named = self._without_uid() if named is None else named
                name = (allocation.namespace, allocation.pod)
                uid = named.get(name) or PodUid("/".join(name))
            held = by_uid.get(uid)
            if held is None:
                held = by_uid[uid] = _Held([], {})
            held.take(allocation)
        for held in by_uid.values():
            held.shown, held.returning = self.devices.shown_and_returning(held.devices)
            self.taken.update(held.devices)
        self.shown = by_uid.keys()
        return dict(by_uid)

    def _without_uid(self) -> Mapping[tuple[str, str], PodUid]:
        """Return by name the pods that are not shown by their UID; empty if two have that name."""
        with_uid = {a.pod_uid for a in self.report.allocations if a.pod_uid}
        named: dict[tuple[str, str], PodUid] = {}
        for pod in self.pods:
            if pod.uid not in with_uid:
                name = (pod.namespace, pod.name)
                named[name] = PodUid("") if name in named else pod.uid
        return named

    def enter(self, pod: PodRecord, shown: _Held | None) -> None:
        """Enter a pod of this node, with what the report shows of it."""
        request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
        if (
            pod.has_extended_resource_claim
            and not ALLOCATORS[self.topology.allocator.policy].serves_claims
        ):
            return  # it holds no device of the plugin that now serves the node
        if request is None or pod.ended:
            if shown is not None:
                hidden = 0 if request is None else self._hidden(request, shown)
                self._hold(pod, self._holder(self._memory(request), shown, hidden), going=True)
        elif shown is None:
            self._enter_not_shown(pod, request)
        elif request.resource != self.served.name or shown.whole(request):
            hidden = self._hidden(request, shown)
            self._hold(pod, self._holder(self._memory(request, pod), shown, hidden))
        else:
            self.unacknowledged[pod.uid] = self._started(pod, request, shown)

    def _hold(self, pod: PodRecord, holder: Holder, *, going: bool = False) -> None:
        if pod.uid in self.terminates:
            self.victims.append(holder)
        else:
            (self.releasing if going or pod.terminating else self.running).append(holder)

    def _enter_not_shown(self, pod: PodRecord, request: GpuRequest) -> None:
        """Enter a living pod that is missing from the report."""
        if request.resource != self.served.name or not request.effective_count:
            return
        if pod.phase == "Running" or pod.uid in self.acknowledged:
            # The kubelet has certainly admitted it, with devices that we do not know: a kubelet
            # shows nothing just after its restart.
            held = request.effective_count
            self._hold(pod, self._holder(self._memory(request, pod), None, held))
            return
        if (
            ALLOCATORS[self.topology.allocator.policy].allocates_before_bind
            and pod.attributes.nominated == self.topology.name
        ):
            devices = self._first_free(request.effective_count)
            self.taken.update(devices)
            self.chosen[pod.uid], returning = self.devices.shown_and_returning(devices)
            self._hold(pod, Holder(returning))
            return
        self.unacknowledged[pod.uid] = self._coming(pod, request)

    def _first_free(self, count: int) -> list[str]:
        """Return the first ``count`` free GPUs in the order in which the node publishes them."""
        uuids = {gpu.index: gpu.uuid for gpu in self.topology.gpus}
        free, bits = self.devices.free(self.taken), self.topology.bit_of_uuid
        published = (uuids[index] for index in self.topology.allocator.published)
        return list(islice((uuid for uuid in published if free & bits[uuid]), count))

    def _coming(self, pod: PodRecord, request: GpuRequest) -> Unacknowledged:
        """Return the entry of a pod that is not wholly reported, with what it was promised."""
        return replace(
            coming(request, self.served.replicas),
            promised=pod.promised,
            survives_endings=pod.survives_endings,
            terminating=pod.terminating,
            terminated=pod.uid in self.terminates,
        )

    def enter_terminated(self, gone: Terminated) -> None:
        """Enter a terminated pod while a pod that was unacknowledged beside it still is."""
        request = gone.pod.request
        if (
            isinstance(request, GpuRequest)
            and request.resource == self.served.name
            and gone.pod.uid not in self.shown
            and any(self._is_unacknowledged(uid) for uid in gone.beside)
        ):
            newcomer = coming(request, self.served.replicas)
            self.unacknowledged[gone.pod.uid] = replace(newcomer, terminated=True)

    def _is_unacknowledged(self, uid: PodUid) -> bool:
        entry = self.unacknowledged.get(uid)
        return entry is not None and (not entry.terminated or uid in self.terminates)

    def _hidden(self, request: GpuRequest, shown: _Held) -> int:
        """Return how many devices a pod holds that no report shows.

        These are devices of its init containers that no other container uses.
        """
        if request.resource != self.served.name:
            return 0
        return max(0, request.effective_count - shown.count(request.resource))

    def _memory(self, request: GpuRequest | None, running: PodRecord | None = None) -> int:
        """Return the memory that a pod says it uses on each of its GPUs (:func:`.memory_of`).

        A ``running`` pod that was promised GPUs of its own uses all of their memory.
        """
        shared = self.served.replicas > 1
        if shared and running is not None and running.promised.exclusive_gpus:
            return ALL_MEMORY
        return 0 if request is None else memory_of(request, self.served.replicas)

    def _holder(self, memory: int, shown: _Held | None, hidden: int) -> Holder:
        """Return a pod as a holder of devices, with its memory if it says how much it uses."""
        there, returning = (shown.shown, shown.returning) if shown is not None else (0, 0)
        if not memory or not (there or hidden):
            return Holder(returning, hidden)
        return Holder(returning, hidden, memory, there - returning)

    def _started(self, pod: PodRecord, request: GpuRequest, shown: _Held) -> Unacknowledged:
        """Return the entry of a pod in the middle of its admission.

        Its containers get their devices one by one.

        1. If the report shows whole containers and nothing else is in doubt, the pod still needs
           what its other containers ask for, in their order.
        2. Otherwise nothing predicts which devices they get, and the pod is *opaque*. There are
           three cases. The pod has init containers, whose devices no report shows and later
           containers may use again. Or the report shows part of a container. Or one NUMA hint for
           the whole pod was merged from what was free when its admission began. Then only sums are
           known: how many devices its app containers still lack, and how many more devices it may
           hold than the report shows. They are entered as one init container that holds all of
           these, and one app container that takes the lacking ones out of them.
        """
        devices = shown.count(request.resource)
        got = {
            c.name: shown.by_container.get((request.resource, c.name), 0)
            for c in request.containers
        }
        config = self.topology.allocator
        one_hint = (
            config.topology_manager_scope == "pod" and config.topology_manager_policy != "none"
        )
        opaque = one_hint or any(
            c.role is Role.INIT or 0 < got[c.name] < c.count for c in request.containers
        )
        if opaque:
            lacking = max(0, request.count - devices)
            held = max(lacking, request.effective_count - devices)
            counts: Counts = ((Role.INIT, held), (Role.APP, lacking))
        else:
            counts = tuple((c.role, c.count) for c in request.containers if got[c.name] < c.count)
        entry = self._coming(pod, request)
        return replace(entry, counts=counts, started=True, shown=shown.returning, opaque=opaque)

    def availability(self) -> Availability:
        """Return what is free, and what may change it."""
        devices, taken = self.devices, self.taken
        hiding = any(h.hidden for h in (*self.releasing, *self.running, *self.victims))
        return Availability(
            free=devices.free(taken),
            releasing=_in_order(self.releasing),
            running=_in_order(self.running),
            unacknowledged=unacknowledged_order(self.unacknowledged.values()),
            sick=_sick(self),
            width=devices.width,
            gone=devices.gone(taken) if hiding else 0,
            withheld=devices.withheld(taken),
            numa_free=numa_free(self.topology, self.report, self.pods, self.unacknowledged),
            beside=_beside(self),
            victims=_in_order(self.victims),
        )


def _sick(entries: _Entries) -> Mask:
    """Return the sick GPUs. A fault of a GPU counts for all of its MIG instances."""
    sick = 0
    for gpu in entries.report.health:
        if not gpu.healthy:
            sick |= entries.topology.bit_of_uuid.get(gpu.uuid, 0)
    if sick and entries.served.strategy == MIG:
        return served_devices(entries.topology, entries.served).on(sick)
    return sick


def _beside(entries: _Entries) -> Mask:
    """Return the positions whose GPU has MIG instances of another profile in use."""
    if entries.served.strategy != MIG:
        return 0
    ours = served_devices(entries.topology, entries.served)
    held = {base_uuid(device) for device in entries.taken} - ours.position_of.keys()
    if not held:
        return 0
    used = sum(
        1 << p
        for p, gpu in enumerate(entries.topology.gpus)
        if any(part.uuid in held for part in gpu.mig_instances)
    )
    return ours.on(used)


def _in_order(holders: list[Holder]) -> tuple[Holder, ...]:
    return tuple(sorted([h for h in holders if h != NO_HOLDER])) if holders else ()


def numa_free(
    topology: NodeTopology,
    report: Report,
    pods: Iterable[PodRecord],
    unacknowledged: Collection[str],
) -> FreeNumaResources | None:
    """Return the free CPUs and memory of a node by NUMA node.

    Return None if the record does not say what the kubelet's managers have given. ``pods`` are the
    pods with this node. ``unacknowledged`` are the UIDs of the pods that count as unacknowledged:
    they take their part later.
    """
    numa, holdings = topology.allocator.numa, report.holdings
    if numa is None or holdings is None:
        return None
    named: defaultdict[PodName, list[PodRecord]] = defaultdict(list)
    for pod in pods:
        named[pod.namespace, pod.name].append(pod)
    gone = {(a.namespace, a.pod) for a in report.allocations} - named.keys()
    held = back = 0
    blocks: list[MemoryBlock] = []
    terminating: list[MemoryBlock] = []
    shown: dict[PodName, Holding] = {}
    for holding in holdings:
        name = (holding.namespace, holding.pod)
        shown[name] = holding
        if name in gone or any(pod.ended or pod.terminating for pod in named[name]):
            back |= holding.cpus
            terminating += holding.memory
        else:
            held |= holding.cpus
            blocks += holding.memory
    left = numa.allocatable & ~(held | back)
    returning = numa.allocatable & back & ~held
    left_over = FreeNumaResources(
        tuple((node.cpus & left).bit_count() for node in numa.nodes),
        tuple((node.cpus & returning).bit_count() for node in numa.nodes),
        (numa.whole_cores & left).bit_count(),
        (numa.whole_cores & returning).bit_count(),
        blocks=added_up(numa, blocks),
        terminating=added_up(numa, terminating),
    )
    for name, theirs in named.items():
        for pod in theirs:
            if pod.uid not in unacknowledged and not pod.ended:
                left_over = _without_the_rest(left_over, pod, shown.get(name))
    return left_over


def _without_the_rest(
    numa_free: FreeNumaResources, pod: PodRecord, holding: Holding | None
) -> FreeNumaResources:
    """Return the free CPUs and memory without what a running pod holds beside its report."""
    request = pod.request.holds if isinstance(pod.request, Malformed) else pod.request
    exclusive = Exclusive.NOTHING if request is None else request.exclusive
    if holding is None or not exclusive.demands:
        return numa_free.beside(exclusive)
    amounts: defaultdict[str, int] = defaultdict(int)
    for block in holding.memory:
        amounts[block.type] += block.amount
    memory = tuple(
        (kind, amount - amounts[kind])
        for kind, amount in exclusive.most_memory
        if amount > amounts[kind]
    )
    return numa_free.without(max(0, exclusive.most_cpus - holding.cpus.bit_count()), memory)
