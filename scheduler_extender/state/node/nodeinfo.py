"""What is known of one node at one moment: a value. How it changes is in :mod:`.transitions`.

What follows from the facts (what the node offers of each resource, and the key of all that its
answers depend on) is worked out when it is first asked for, and kept with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from scheduler_extender.groupreference import Group
from scheduler_extender.state.node.history import Backoff, KubeletHistory, kind_of
from scheduler_extender.state.node.ledger import Ledger, ledger
from scheduler_extender.state.node.objects import AgentRecord, NodeObject
from scheduler_extender.state.node.occupants import Occupants, Terminated
from scheduler_extender.state.pods.attributes import Amounts
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.selecting import EligibleNodes
from topology.core.admission import Kubelet, kubelet_of
from topology.core.allocators import ALLOCATORS
from topology.core.availability import Availability
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.dra import first_published
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, ServedDevices, profile_named, served_devices, shape_of
from topology.core.placement import (
    DRA_ONLY,
    DRIVER_WAITS,
    MAINTENANCE,
    NO_REPORT,
    NOT_READY,
    NOT_SERVED,
    STALE,
    UNUSABLE,
    Reason,
    Rejection,
    chosen,
)
from topology.core.report import Allocation, Report
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

Devices = tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """What one node offers of one resource."""

    topology: NodeTopology
    resource: GpuResource  # as the device plugin serves it
    kubelet: Kubelet
    ledger: Ledger

    @property
    def availability(self) -> Availability:
        """What is free, and what may change it."""
        return self.ledger.availability

    @property
    def devices(self) -> ServedDevices:
        """The devices, by position."""
        return served_devices(self.topology, self.resource)

    def overcounted(self, given: int, pods: Iterable[PodRecord]) -> int:
        """The devices that are free neither now nor soon, if so many are ``given`` out to these
        pods; 0 if what one asks cannot be read."""
        for pod in pods:
            if not isinstance(pod.request, GpuRequest):
                return 0
            if pod.request.resource == self.resource.name and not pod.by_claim:
                given -= pod.request.effective_count
        now = self.availability
        return max(0, given - now.devices_left - now.devices_terminating)

    def available_to(self, request: GpuRequest) -> Availability:
        """What is available to a pod, without CPUs and memory if none of them matter to it."""
        return self.availability.without_needless_numa_free(request.exclusive)


Foresees = Callable[[str, Sequence[str]], Callable[["NodeInfo"], Devices | Rejection]]
"""For claims of a namespace that have no devices yet: the GPUs that kube-scheduler will give them
on a node, or why it gives none, or why that cannot be said. Not for whoever has the cache's lock.
"""


def unsaid(why: str) -> Rejection:
    """That nobody can say what a pod's claims will get."""
    return Rejection(f"not known which GPUs its claims get: {why}", False, Reason.UNDECIDED)


def nobody_foresees(_namespace: str, _names: Sequence[str]) -> Callable[[NodeInfo], Rejection]:
    """Nobody follows claims."""
    return lambda _: unsaid("nobody follows claims here")


@dataclass(frozen=True, eq=False)
class NodeInfo:
    """Everything known of one node."""

    name: NodeName
    node_object: NodeObject = field(default_factory=NodeObject)
    record: AgentRecord = field(default_factory=AgentRecord)
    pods: Occupants = field(default_factory=Occupants)
    history: KubeletHistory = field(default_factory=KubeletHistory)
    reserved_for: PodRecord | None = None  # the waiting pod with a reservation here
    # The pods that are gone before that one comes; only in its own facts (:attr:`for_reservation`).
    victims: frozenset[PodUid] = frozenset()
    _offers: dict[str, Offer | Rejection] = field(init=False, repr=False, default_factory=dict)
    _keys: dict[str, tuple[Hashable, ...]] = field(init=False, repr=False, default_factory=dict)

    @property
    def topology(self) -> NodeTopology | None:
        """The hardware, by the agent's record; None if that cannot be used."""
        return self.record.topology

    @property
    def report(self) -> Report | None:
        """The agent's last report; None if there is none."""
        return self.record.report

    @property
    def serves_claims(self) -> bool | None:
        """Whether pods get the node's GPUs by claims (:attr:`.Allocator.serves_claims`); None if
        there is no usable record."""
        topology = self.topology
        return None if topology is None else ALLOCATORS[topology.allocator.policy].serves_claims

    @property
    def allocates_before_bind(self) -> bool:
        """Whether pods have their devices before the bind
        (:attr:`.Allocator.allocates_before_bind`)."""
        topology = self.topology
        return topology is not None and ALLOCATORS[topology.allocator.policy].allocates_before_bind

    @property
    def fabric_fault(self) -> str:
        """Which GPUs have no NVLinks through a switch because of their fabric; empty if none."""
        topology, report = self.topology, self.report
        off = {told.uuid for told in report.health if told.off_fabric} if report else ()
        gpus = topology.gpus if topology is not None and off else ()
        found = [str(gpu.index) for gpu in gpus if gpu.uuid in off]
        if not found:
            return ""
        which = f"GPU {', '.join(found)}" if len(found) < len(gpus) else "its GPUs"
        return f"the NVLink fabric is not ready for {which}"

    def claimed(self, uid: PodUid, namespace: str = "", names: Collection[str] = ()) -> Devices:
        """The devices that claims have here for a pod, also those that it shares, or of the claims
        with these ``names``."""
        shown = () if self.report is None else self.report.allocations
        return _of_claims(shown, uid, namespace, names)

    def seen(self, uid: PodUid, namespace: str, names: Collection[str]) -> Devices:
        """The same with those that its containers see by adminAccess: it is judged on all."""
        watched = () if self.report is None else self.report.watched
        devices = self.claimed(uid, namespace, names) + _of_claims(watched, uid, namespace, names)
        return tuple(dict.fromkeys(devices))

    def devices_of(self, pod: PodRecord) -> Devices:
        """The devices that a pod's claims have here, as far as the record shows them (DRA)."""
        return self.seen(pod.uid, pod.namespace, pod.claims)

    def claims_of(self, uid: PodUid) -> frozenset[str]:
        """The names of the claims that have devices here for a pod."""
        shown = () if self.report is None else self.report.allocations
        ours = (each.claim for each in shown if uid in (each.pod_uid, *each.sharers))
        return frozenset(filter(None, ours))

    def lacks(self, devices: Devices) -> bool:
        """Whether some of these devices of claims are published no more."""
        return self.topology is not None and not self.topology.bit_of_uuid.keys() >= {*devices}

    def as_claimed(self, uid: PodUid, devices: Devices) -> NodeInfo:
        """The facts on which a pod is judged whose claims have these devices already.

        Nobody else can get these devices, so they are free and come first, whatever they have been
        tainted with since, and pods of whom no claim is known do not matter. Devices that the node
        does not have (:meth:`lacks`) count nothing.
        """
        topology, report = self.topology, self.report
        if topology is None or report is None:
            return self
        devices = tuple(each for each in devices if each in topology.bit_of_uuid)
        left = tuple(a for a in report.allocations if not {*devices} & {*a.device_ids})
        record = replace(
            self.record,
            topology=first_published(topology, devices),
            report=replace(
                report,
                allocations=left,
                allocatable=(report.allocatable or frozenset()) | {*devices},
            ),
        )
        claiming = {uid for a in report.allocations for uid in (a.pod_uid, *a.sharers)}
        others = self.unacknowledged(topology.resources[0].name) | (self.pods.here - claiming)
        return replace(self, record=record).without(others | {uid})

    @property
    def known(self) -> bool:
        """Whether there is anything to know; a node without is forgotten."""
        return bool(
            self.node_object.exists
            or self.record.topology
            or self.record.problem
            or self.pods.bound
            or self.pods.assumed
            or self.reserved_for
        )  # leaving pods alone do not keep a node known

    def has_objects_of(self, other: NodeInfo) -> bool:
        """Whether the node's two objects are the very same there, as if pods alone changed."""
        return self.record is other.record and self.node_object is other.node_object

    # What it offers.

    def offer(self, resource: str) -> Offer | Rejection:
        """What the node offers of a resource; or why nothing can be decided about it there."""
        record = self.record
        topology, report = record.topology, record.report
        if topology is not None:
            if report is None:
                return NO_REPORT
            if self.node_object.maintained:
                return MAINTENANCE
            if not topology.resources or self.unserved:
                return DRIVER_WAITS if topology.allocator.driver_waits else DRA_ONLY
            if record.stale:
                return STALE
            if report.not_ready:
                return NOT_READY
        return self.last_offer(resource)

    def last_offer(self, resource: str) -> Offer | Rejection:
        """What the node offered of a resource when its agent last reported, however long ago.

        Before the first report the node counts as empty.
        """
        offer = self._offers.get(resource)
        if offer is None:
            offer = self._offers[resource] = _offer(self, resource)
        return offer

    def devices_left(self, resource: str) -> int:
        """The devices that are left of a resource by the last report; 0 if nobody can tell."""
        offer = self.last_offer(resource)
        if self.report is None or isinstance(offer, Rejection):
            return 0
        return offer.availability.devices_left

    def overcounted(self, resource: str) -> int:
        """The devices that kube-scheduler takes for free here, and that are not: neither now, nor
        once the pods that are ending have let go.

        So it is with a GPU that the plugin calls sick, until the node's status says so. 0 if nobody
        knows what kube-scheduler counts. O(pods of the node).
        """
        given, offer = self.node_object.pieces(resource), self.last_offer(resource)
        known = given is not None and self.report is not None and self.pods.complete
        if not known or isinstance(offer, Rejection):
            return 0
        return offer.overcounted(given or 0, self.pods.living)

    def all_split(self, resource: str) -> bool:
        """Whether whole GPUs are asked of a node whose plugin serves instances of each of them. Its
        Node object may count GPUs all the same."""
        topology = self.topology
        if topology is None or profile_named(resource):
            return False
        by_instance = any(served.strategy == MIG for served in topology.resources)
        return by_instance and topology.shape.in_mig_mode == topology.shape.all_gpus

    @property
    def unserved(self) -> bool:
        """Whether kube-scheduler gives out none of the node's GPUs: its Node object advertises
        none, and no claim gets them."""
        return self.node_object.dra_only and not self.serves_claims

    def gives_out(self, resource: str) -> bool:
        """Whether kube-scheduler may give out some of a resource here."""
        return bool(self.serves_claims or self.node_object.pieces(resource))

    def unacknowledged(self, resource: str) -> frozenset[PodUid]:
        """The unacknowledged pods; all that have not ended if nobody can tell."""
        unacknowledged = _unacknowledged(self, resource)
        return self.pods.here if unacknowledged is None else unacknowledged

    # What has been promised.

    @property
    def promises(self) -> bool:
        """Whether a pod here was promised something, and may not have its devices yet
        (:attr:`.Occupants.promised`); or a place is reserved until a time."""
        place = (
            self.reserved_for.reservation
            if self.reserved_for is not None and self.for_reservation
            else None
        )
        return (place is not None and not place.by_nomination) or self.pods.promised

    def shares_promised(self, resource: str) -> bool:
        """Whether a pod here counts on what others do on GPUs that it may share. That stands until
        it has ended, or is deleted."""
        served = self.topology.resource(resource) if self.topology is not None else None
        if served is not None and served.replicas == 1:
            return False
        return any(pod.counts_on_others(resource) for pod in self.pods.living)

    @cached_property
    def for_reservation(self) -> NodeInfo | None:
        """The facts as the pod with the reservation finds them; None if none is."""
        return _for_reservation(self)

    def is_reserved_for(self, uid: PodUid) -> bool:
        """Whether a place is reserved here for this pod."""
        return self.reserved_for is not None and self.reserved_for.uid == uid

    def yields_to(self, priority: int, gang: Group | None = None) -> bool:
        """Whether the place that is reserved here gives way to a pod of this priority in this gang.

        A nominated pod's place gives way to pods of higher priority. The place of a member of the
        same gang does, too: this member counts already as a sibling that may come first.
        """
        waiting = self.reserved_for
        if waiting is None or waiting.reservation is None:
            return False
        if gang is not None and waiting.gang == gang:
            return True
        return waiting.reservation.by_nomination and waiting.attributes.priority < priority

    def yielding_to(self, priority: int, gang: Group | None = None) -> NodeInfo:
        """The facts for such a pod: without the reservation if that gives way to it."""
        return replace(self, reserved_for=None) if self.yields_to(priority, gang) else self

    # Who may come.

    @property
    def serves_nothing(self) -> bool:
        """Whether the node has no GPUs as far as is known: its Node object advertises none, and no
        agent has written a record of it. kube-scheduler offers no such node."""
        node, record = self.node_object, self.record
        return node.exists and node.dra_only and record.topology is None and record.problem is None

    def is_open_to(self, pod: PodRecord) -> bool:
        """Whether kube-scheduler may send a pod here: :meth:`is_one_of` its destinations, and its
        kubelet :meth:`may_start` it."""
        return self.is_one_of(pod.attributes.eligible_nodes) and self.may_start(pod)

    def may_start(self, pod: PodRecord) -> bool:
        """Whether the kubelet may start a pod as far as the claim goes that its status names.

        One that waits, and whose status names a claim, as after a bind that was refused, starts
        beside no plugin: the claim is deleted, nobody takes its name out of the status, and a
        kubelet looks for it.
        """
        return not (pod.by_claim and pod.node is None and self.serves_claims is False)

    def is_one_of(self, eligible_nodes: EligibleNodes) -> bool:
        """Whether kube-scheduler may send a pod with these destinations here."""
        return not self.bar(eligible_nodes)

    def bar(self, eligible_nodes: EligibleNodes, asks: Amounts = ()) -> str:
        """What of the pod's selectors, or of the node's taints, keeps a pod with these destinations
        off, or of what it ``asks`` for besides GPUs is more than the whole node has; empty if
        nothing does. If no Node object is known every pod may come."""
        node = self.node_object
        has = dict(node.allocatable or ())
        for resource, amount in asks:
            if 0 < has.get(resource, 0) < amount:  # DRA may serve what the Node has none of
                return f"its request for {resource}"
        if not node.exists:
            return ""
        return eligible_nodes.bar(self.name, node.labels, node.taints, cordoned=node.cordoned)

    def refusing(self, request: GpuRequest) -> Backoff | None:
        """The back-off for which the node takes no pod with this request now; None if it
        takes one."""
        if request.resource not in self.history.backoffs:
            return None
        return self.history.refusing(request, self.trying(request.resource))

    def trying(self, resource: str) -> frozenset[GpuRequest]:
        """The kinds of the pods that the kubelet has not answered."""
        if resource not in self.history.backoffs:
            return frozenset()
        requests = (pod.request for pod in self.pods.unanswered(resource))
        return frozenset(kind_of(each) for each in requests if isinstance(each, GpuRequest))

    # All that its answers depend on.

    def key(self, resource: str) -> tuple[Hashable, ...]:
        """All that the answers about this node over ``resource`` depend on.

        Nodes with equal keys answer every request alike. Where something is not known of the node,
        or of the cluster, a plain pod's answer depends on whether a promise stands.
        """
        key = self._keys.get(resource)
        if key is None:
            key = self._keys[resource] = _key(self, resource)
        return key

    def choice(self, request: GpuRequest) -> Hashable | None:
        """All that the answer to this one request depends on, where the pod's devices are settled
        (:func:`.chosen`): what else is free, and in which order, counts no more. None elsewhere.

        A reserved place and siblings depend on what is left, too.
        """
        offer = self.last_offer(request.resource)
        if isinstance(offer, Rejection) or not offer.kubelet.allocator.settled:
            return None
        if self.reserved_for is not None or request.in_company:
            return None
        found = chosen(offer.kubelet, offer.available_to(request), request)
        if found is None:
            return None
        rest, *_ = self.key(request.resource)
        return rest, *found

    def prepare(self) -> None:
        """Work out now what the next question about the node needs.

        A fault of ours is left for then: it shows when the node is asked.
        """
        for served in self.topology.resources if self.topology is not None else ():
            try:
                self.key(served.name)
            except Exception:  # noqa: BLE001
                return

    # What it would be.

    def unproven(self) -> NodeInfo:
        """The facts after a change of the node: what its kubelet answered before proves nothing."""
        return replace(self, history=self.history.unproven(self.pods.here))

    def without(self, gone: frozenset[PodUid]) -> NodeInfo:
        """The facts if some pods had ended and their devices had been released.

        A reservation for one of them ends.
        """
        record = self.record
        if record.report is not None:
            left = tuple(filter(None, (a.without(gone) for a in record.report.allocations)))
            record = replace(record, report=replace(record.report, allocations=left))
        waiting = self.reserved_for
        reserved_for = None if waiting is not None and waiting.uid in gone else waiting
        info = replace(self, record=record, pods=self.pods.without(gone), reserved_for=reserved_for)
        return info.without_old_terminated()

    def without_old_terminated(self) -> NodeInfo:
        """The facts without terminated pods beside whom nobody is unacknowledged any more."""
        terminated = self.pods.terminated
        if not terminated or self.topology is None or self.report is None:
            return self
        resources = {resource_of(gone.pod) for gone in terminated.values()}
        unacknowledged = {each: _unacknowledged(self, each) for each in resources}
        kept = {
            uid: gone
            for uid, gone in terminated.items()
            if (pods := unacknowledged[resource_of(gone.pod)]) is None or uid in pods
        }
        return self if len(kept) == len(terminated) else self.with_terminated(kept)

    def with_terminated(self, terminated: Mapping[PodUid, Terminated]) -> NodeInfo:
        """The facts with these terminated pods."""
        return replace(self, pods=replace(self.pods, terminated=terminated))


def _of_claims(
    shown: Iterable[Allocation], uid: PodUid, namespace: str, names: Collection[str]
) -> Devices:
    own = {(namespace, name) for name in names}
    return tuple(
        device
        for each in shown
        if each.claim
        and (uid in (each.pod_uid, *each.sharers) or (each.namespace, each.claim) in own)
        for device in each.device_ids
    )


def _offer(info: NodeInfo, resource: str) -> Offer | Rejection:
    topology = info.topology
    if topology is None:
        return NO_REPORT if info.record.problem is None else UNUSABLE
    served = topology.resource(resource)
    if served is None:
        return NOT_SERVED
    if info.record.contradiction(resource) is not None:
        return UNUSABLE
    kubelet = kubelet_of(topology, served, info.record.missing)
    return Offer(topology, served, kubelet, _ledger(info, topology, resource))


def _ledger(info: NodeInfo, topology: NodeTopology, resource: str) -> Ledger:
    report = info.report or Report()
    pods = info.pods
    return ledger(topology, report, pods.in_ledger(report), resource, pods, info.victims)


def _unacknowledged(info: NodeInfo, resource: str) -> frozenset[PodUid] | None:
    """The unacknowledged pods; None if nobody can tell."""
    topology = info.topology
    if topology is not None:
        with suppress(Exception):  # a fault of ours shows when the node is asked
            offer = info.last_offer(resource)
            if isinstance(offer, Offer):
                return frozenset(offer.ledger.unacknowledged)
            if offer is NOT_SERVED and info.record.contradiction(resource) is None:
                return frozenset(_ledger(info, topology, resource).unacknowledged)
    return None


def _for_reservation(info: NodeInfo) -> NodeInfo | None:
    """The facts as the pod with the reservation finds them.

    It is on its way here, and was promised what it asks for. The pods that are evicted for it, and
    those that are ending, let go before it comes. Some or all of them may still be here when
    another pod comes.
    """
    pod, pods = info.reserved_for, info.pods
    if pod is None or pod.reservation is None or pod.uid in pods.bound or pod.uid in pods.assumed:
        return None
    victims, request = pod.reservation.victims | pods.terminating, pod.request
    shown = () if info.report is None else info.report.allocations
    victims |= {each.pod_uid for each in shown if each.without(victims) is None}
    promised = NO_CONSTRAINTS
    if isinstance(request, GpuRequest) and request.required:
        promised = request.constraints
    survives = promised != NO_CONSTRAINTS
    ours = replace(pod, node=info.name, promised=promised, survives_endings=survives)
    pods = pods.with_terminating(victims).with_assumed(ours)
    return replace(info, pods=pods, victims=victims, reserved_for=None)


def _key(info: NodeInfo, resource: str) -> tuple[Hashable, ...]:
    record, topology, report = info.record, info.topology, info.report
    key: tuple[Hashable, ...] = (
        record.problem is not None,
        report is None,
        info.node_object.dra_only,
        info.node_object.maintained,
        record.stale,
        report is not None and report.not_ready != "",
        info.promises,
        info.shares_promised(resource),
        info.history.key(resource, info.trying(resource)),
        info.fabric_fault,
    )
    if topology is None:
        served = None
    elif (served := topology.resource(resource)) is None:
        # Whatever else is on it.
        given = info.gives_out(resource)
        waits = topology.allocator.driver_waits
        return (*key, bool(topology.resources), waits, given, info.all_split(resource))
    if topology is not None and served is not None:
        offer = info.last_offer(resource) if report is not None else NO_REPORT
        available = offer.availability if isinstance(offer, Offer) else offer
        shape = shape_of(topology, served)  # profiles and memory of MIG instances are in it
        key += (shape, topology.resources, record.missing)
        key += (info.overcounted(resource), info.pods.too_many_terminated)
        key = (key, topology.allocator, available)
    if info.reserved_for is not None and info.for_reservation is not None:
        key += (
            info.reserved_for.uid,
            info.reserved_for.reservation,
            info.for_reservation.key(resource),
        )
    return key
