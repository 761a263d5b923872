"""Everything that is known of one node, as a value. :mod:`.transitions` says how it changes.

Two things are derived from it: what the node offers of each resource, and the key of everything
that its answers depend on. Both are computed at their first use and cached in the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

from scheduler_extender.groupreference import Group
from scheduler_extender.state.node.history import Backoff, KubeletHistory, kind_of
from scheduler_extender.state.node.ledger import Ledger, ledger
from scheduler_extender.state.node.objects import AgentRecord, NodeObject
from scheduler_extender.state.node.occupants import Occupants, Terminated
from scheduler_extender.state.pods.attributes import Amounts
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.state.pods.selecting import EligibleNodes
from topology.core.admission import DeviceManager, device_manager_of
from topology.core.allocators import ALLOCATORS
from topology.core.availability import Availability
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.dra import first_published
from topology.core.graph import NodeTopology
from topology.core.mig import MIG, ServedDevices, profile_named, served_devices, shape_of
from topology.core.placement import (
    DRIVER_WAITS,
    MAINTENANCE,
    NO_ALLOCATOR,
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
    kubelet: DeviceManager
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
        """Return how many devices kube-scheduler counts that are free neither now nor soon.

        ``given`` is how many devices the Node object gives out, and ``pods`` are the pods that take
        from them. Return 0 if the request of one of them cannot be read.
        """
        for pod in pods:
            if not isinstance(pod.request, GpuRequest):
                return 0
            if pod.request.resource == self.resource.name and not pod.has_extended_resource_claim:
                given -= pod.request.effective_count
        now = self.availability
        return max(0, given - now.devices_left - now.devices_terminating)

    def available_to(self, request: GpuRequest) -> Availability:
        """Return what is available to a pod, without CPUs and memory that do not matter to it."""
        return self.availability.without_needless_numa_free(request.exclusive)


# Predicts the GPUs that kube-scheduler will give on a node to claims that have no devices yet. The
# arguments are the namespace and the names of the claims. The result may also say why the claims
# get no GPUs, or why that cannot be predicted. Do not call it with the cache's lock held.
Foresees = Callable[[str, Sequence[str]], Callable[["NodeInfo"], Devices | Rejection]]


def unsaid(why: str) -> Rejection:
    """Return the rejection for a pod whose claims cannot be predicted."""
    return Rejection(f"which GPUs the pod's claims get is unknown: {why}", False, Reason.UNDECIDED)


def nobody_foresees(_namespace: str, _names: Sequence[str]) -> Callable[[NodeInfo], Rejection]:
    """Return a :data:`Foresees` function for an extender that does not follow claims."""
    return lambda _: unsaid("this command does not evaluate claims")


@dataclass(frozen=True, eq=False)
class NodeInfo:
    """Everything that is known of one node."""

    name: NodeName
    node_object: NodeObject = field(default_factory=NodeObject)
    record: AgentRecord = field(default_factory=AgentRecord)
    pods: Occupants = field(default_factory=Occupants)
    history: KubeletHistory = field(default_factory=KubeletHistory)
    reservations: tuple[PodRecord, ...] = ()  # the waiting pods with one here, the first in order
    # The pods that are gone before the pod with the reservation comes. This is set only in
    # :attr:`for_reservations`.
    victims: frozenset[PodUid] = frozenset()
    _offers: dict[str, Offer | Rejection] = field(init=False, repr=False, default_factory=dict)
    _keys: dict[str, tuple[Hashable, ...]] = field(init=False, repr=False, default_factory=dict)

    @property
    def topology(self) -> NodeTopology | None:
        """The hardware by the agent's record; None if the record cannot be used."""
        return self.record.topology

    @property
    def report(self) -> Report | None:
        """The agent's last report; None if there is none."""
        return self.record.report

    @property
    def serves_claims(self) -> bool | None:
        """Whether pods get the node's GPUs by claims; None if there is no usable record.

        See :attr:`.Allocator.serves_claims`.
        """
        topology = self.topology
        return None if topology is None else ALLOCATORS[topology.allocator.policy].serves_claims

    @property
    def allocates_before_bind(self) -> bool:
        """Whether pods have their devices before the bind.

        See :attr:`.Allocator.allocates_before_bind`.
        """
        topology = self.topology
        return topology is not None and ALLOCATORS[topology.allocator.policy].allocates_before_bind

    @property
    def fabric_fault(self) -> str:
        """A text that names the GPUs whose NVLink fabric is not ready; empty if there are none.

        No switch links these GPUs.
        """
        topology, report = self.topology, self.report
        off = {told.uuid for told in report.health if told.off_fabric} if report else ()
        gpus = topology.gpus if topology is not None and off else ()
        found = [str(gpu.index) for gpu in gpus if gpu.uuid in off]
        if not found:
            return ""
        which = f"GPU {', '.join(found)}" if len(found) < len(gpus) else "its GPUs"
        return f"the NVLink fabric is not ready for {which}"

    def claimed(self, uid: PodUid, namespace: str = "", names: Collection[str] = ()) -> Devices:
        """Return the devices that claims have here for a pod, including those that it shares.

        The devices of the claims with these ``names`` are included, too.
        """
        shown = () if self.report is None else self.report.allocations
        return _of_claims(shown, uid, namespace, names)

    def seen(self, uid: PodUid, namespace: str, names: Collection[str]) -> Devices:
        """Return the :meth:`claimed` devices and those that the pod sees by adminAccess.

        The pod is judged on all of them.
        """
        watched = () if self.report is None else self.report.watched
        devices = self.claimed(uid, namespace, names) + _of_claims(watched, uid, namespace, names)
        return tuple(dict.fromkeys(devices))

    def devices_of(self, pod: PodRecord) -> Devices:
        """Return the devices of a pod's claims here, as far as the record shows them (DRA)."""
        return self.seen(pod.uid, pod.namespace, pod.claims)

    def claims_of(self, uid: PodUid) -> frozenset[str]:
        """Return the names of the claims that have devices here for a pod."""
        shown = () if self.report is None else self.report.allocations
        ours = (each.claim for each in shown if uid in (each.pod_uid, *each.sharers))
        return frozenset(filter(None, ours))

    def lacks(self, devices: Devices) -> bool:
        """Check whether some of these devices of claims are no longer published."""
        return self.topology is not None and not self.topology.bit_of_uuid.keys() >= {*devices}

    def as_claimed(self, uid: PodUid, devices: Devices) -> NodeInfo:
        """Return the node on which a pod is judged whose claims already have these devices.

        No other pod can get these devices. So they are free and come first, even if they have been
        tainted since. Pods without a known claim do not matter. Devices that the node does not have
        (:meth:`lacks`) are ignored.
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
        """Whether anything is known of the node; otherwise the cache forgets it."""
        return bool(
            self.node_object.exists
            or self.record.topology
            or self.record.problem
            or self.pods.bound
            or self.pods.assumed
            or self.reservations
        )  # unconfirmed pods alone do not keep a node known

    def has_objects_of(self, other: NodeInfo) -> bool:
        """Check whether ``other`` has the very same two objects; at most its pods differ."""
        return self.record is other.record and self.node_object is other.node_object

    # What the node offers.

    def offer(self, resource: str) -> Offer | Rejection:
        """Return what the node offers of a resource, or why nothing can be decided about it."""
        record = self.record
        topology, report = record.topology, record.report
        if topology is not None:
            if report is None:
                return NO_REPORT
            if self.node_object.maintained:
                return MAINTENANCE
            if not topology.resources or self.unserved:
                return DRIVER_WAITS if topology.allocator.driver_waits else NO_ALLOCATOR
            if record.stale:
                return STALE
            if report.not_ready:
                return NOT_READY
        return self.last_offer(resource)

    def last_offer(self, resource: str) -> Offer | Rejection:
        """Return what the node offered of a resource at its last report, however old that is.

        Before the first report the node counts as empty.
        """
        offer = self._offers.get(resource)
        if offer is None:
            offer = self._offers[resource] = _offer(self, resource)
        return offer

    def devices_left(self, resource: str) -> int:
        """Return how many devices of a resource the last report leaves; 0 if not known."""
        offer = self.last_offer(resource)
        if self.report is None or isinstance(offer, Rejection):
            return 0
        return offer.availability.devices_left

    def overcounted(self, resource: str) -> int:
        """Return how many devices kube-scheduler counts as free here that are not free.

        They are free neither now nor once the terminating pods have released theirs. An example is
        a GPU that the plugin calls sick, until the node's status says so. Return 0 if it is not
        known what kube-scheduler counts. O(pods of the node).
        """
        given, offer = self.node_object.pieces(resource), self.last_offer(resource)
        known = given is not None and self.report is not None and self.pods.complete
        if not known or isinstance(offer, Rejection):
            return 0
        return offer.overcounted(given or 0, self.pods.living)

    def all_split(self, resource: str) -> bool:
        """Check whether ``resource`` means whole GPUs, but the plugin splits every GPU by MIG.

        The Node object may still count GPUs.
        """
        topology = self.topology
        if topology is None or profile_named(resource):
            return False
        by_instance = any(served.strategy == MIG for served in topology.resources)
        return by_instance and topology.shape.in_mig_mode == topology.shape.all_gpus

    @property
    def unserved(self) -> bool:
        """Whether kube-scheduler gives out none of the node's GPUs.

        That is so if its Node object advertises none and no claim gets them.
        """
        return self.node_object.advertises_none and not self.serves_claims

    def gives_out(self, resource: str) -> bool:
        """Check whether kube-scheduler may give out some of a resource here."""
        return bool(self.serves_claims or self.node_object.pieces(resource))

    def unacknowledged(self, resource: str) -> frozenset[PodUid]:
        """Return the unacknowledged pods; if that is not known, all pods that have not ended."""
        unacknowledged = _unacknowledged(self, resource)
        return self.pods.here if unacknowledged is None else unacknowledged

    # What has been promised.

    @property
    def promises(self) -> bool:
        """Whether a promise here may still be open.

        That is so if a pod here was promised something and may not have its devices yet
        (:attr:`.Occupants.promised`), or if there is a reservation here until a given time.
        """
        kept = (pod.reservation for pod, _ in self.for_reservations)
        return self.pods.promised or any(each and not each.by_nomination for each in kept)

    def shares_promised(self, resource: str) -> bool:
        """Check whether a pod here counts on what others do on GPUs that it may share.

        It does so until it has ended or is deleted.
        """
        served = self.topology.resource(resource) if self.topology is not None else None
        if served is not None and served.replicas == 1:
            return False
        return any(pod.counts_on_others(resource) for pod in self.pods.living)

    @cached_property
    def for_reservations(self) -> tuple[tuple[PodRecord, NodeInfo], ...]:
        """The waiting pods with a reservation, each with the node as it will find it."""
        found, then = [], replace(self, reservations=())
        for pod in self.reservations:
            after = _for_reservation(then, pod)
            if after is not None:  # a later pod finds the node after it
                then = after
                found.append((pod, then))
        return tuple(found)

    def is_reserved_for(self, uid: PodUid) -> bool:
        """Check whether this pod has a reservation here."""
        return any(pod.uid == uid for pod in self.reservations)

    def yielding_to(self, priority: int, gang: Group | None = None) -> NodeInfo:
        """Return the node for a pod: without the reservations that give way to it."""
        left = tuple(pod for pod in self.reservations if not gives_way(pod, priority, gang))
        return self if len(left) == len(self.reservations) else replace(self, reservations=left)

    # Which pods may come.

    @property
    def serves_nothing(self) -> bool:
        """Whether the node has no GPUs as far as is known.

        Its Node object advertises none, and no agent has written a record of it. kube-scheduler
        does not offer such a node.
        """
        node, record = self.node_object, self.record
        return (
            node.exists
            and node.advertises_none
            and record.topology is None
            and record.problem is None
        )

    def is_eligible_for(self, pod: PodRecord) -> bool:
        """Check whether kube-scheduler may send a pod here and the kubelet may start it.

        Nothing must :meth:`bar` the pod's eligible nodes, and the kubelet :meth:`may_start` it.
        """
        return not self.bar(pod.attributes.eligible_nodes) and self.may_start(pod)

    def may_start(self, pod: PodRecord) -> bool:
        """Check whether the kubelet may start a pod, given the claim that the pod's status names.

        A waiting pod may have such a status after a refused bind. It cannot start on a node with a
        device plugin: the claim is deleted, no component removes its name from the status, and the
        kubelet looks for the claim.
        """
        return not (
            pod.has_extended_resource_claim and pod.node is None and self.serves_claims is False
        )

    def bar(self, eligible_nodes: EligibleNodes, asks: Amounts = ()) -> str:
        """Return what keeps a pod with these eligible nodes off this node; empty if nothing does.

        It may be one of the pod's selectors, a taint of the node, or a request besides GPUs
        (``asks``) for more than the whole node has. If no Node object is known, only such a request
        keeps a pod off.
        """
        node = self.node_object
        has = dict(node.allocatable or ())
        for resource, amount in asks:
            # DRA may serve a resource of which the Node object has none
            if 0 < has.get(resource, 0) < amount:
                return f"its request for {resource}"
        if not node.exists:
            return ""
        return eligible_nodes.bar(self.name, node.labels, node.taints, cordoned=node.cordoned)

    def refusing(self, request: GpuRequest) -> Backoff | None:
        """Return the back-off that keeps pods with this request away now; None if one may try."""
        backoffs = self.history.backoffs.get(request.resource)
        if backoffs is None:
            return None
        return backoffs.keeps_away(kind_of(request), self.trying(request.resource))

    def trying(self, resource: str) -> frozenset[GpuRequest]:
        """Return the kinds of the pods that the kubelet has not answered."""
        if resource not in self.history.backoffs:
            return frozenset()
        requests = (pod.request for pod in self.pods.unanswered(resource))
        return frozenset(kind_of(each) for each in requests if isinstance(each, GpuRequest))

    # Everything that the node's answers depend on.

    def key(self, resource: str) -> tuple[Hashable, ...]:
        """Return everything that the answers about this node over ``resource`` depend on.

        Nodes with equal keys answer every request alike. Where something is not known of the node
        or of the cluster, the answer to a plain pod depends on whether a promise is open.
        """
        key = self._keys.get(resource)
        if key is None:
            key = self._keys[resource] = _key(self, resource)
        return key

    def choice(self, request: GpuRequest) -> Hashable | None:
        """Return all that the answer to this request depends on if its devices are known.

        Then the order of the other free devices does not matter (:func:`.chosen`). Return None if
        the devices are not known. A reservation and peers also depend on what is left, so None is
        returned for them, too.
        """
        offer = self.last_offer(request.resource)
        if isinstance(offer, Rejection) or not offer.kubelet.allocator.choice_known:
            return None
        if self.reservations or request.pods_before:
            return None
        found = chosen(offer.kubelet, offer.available_to(request), request)
        if found is None:
            return None
        rest, *_ = self.key(request.resource)
        return rest, *found

    def prepare(self) -> None:
        """Compute now what the next evaluation of this node needs.

        An error of ours is ignored here: it shows when the node is evaluated.
        """
        for served in self.topology.resources if self.topology is not None else ():
            try:
                self.key(served.name)
            except Exception:  # noqa: BLE001
                return

    # What the node would be.

    def unproven(self) -> NodeInfo:
        """Return the node after a change that makes its kubelet's earlier answers prove nothing."""
        return replace(self, history=self.history.unproven(self.pods.here))

    def without(self, gone: frozenset[PodUid]) -> NodeInfo:
        """Return the node as if some pods had ended and their devices had been released.

        A reservation for one of these pods ends, and so do those behind it, which never delay it.
        """
        record = self.record
        if record.report is not None:
            left = tuple(filter(None, (a.without(gone) for a in record.report.allocations)))
            record = replace(record, report=replace(record.report, allocations=left))
        reservations = tuple(takewhile(lambda pod: pod.uid not in gone, self.reservations))
        info = replace(self, record=record, pods=self.pods.without(gone), reservations=reservations)
        return info.without_old_terminated()

    def without_old_terminated(self) -> NodeInfo:
        """Return the node without terminated pods that no unacknowledged pod keeps relevant."""
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
        """Return the node with these terminated pods."""
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
    kubelet = device_manager_of(topology, served, info.record.missing)
    return Offer(topology, served, kubelet, _ledger(info, topology, resource))


def _ledger(info: NodeInfo, topology: NodeTopology, resource: str) -> Ledger:
    report = info.report or Report()
    pods = info.pods
    return ledger(topology, report, pods.in_ledger(report), resource, pods, info.victims)


def _unacknowledged(info: NodeInfo, resource: str) -> frozenset[PodUid] | None:
    """Return the unacknowledged pods; None if that is not known."""
    topology = info.topology
    if topology is not None:
        with suppress(Exception):  # an error of ours shows when the node is evaluated
            offer = info.last_offer(resource)
            if isinstance(offer, Offer):
                return frozenset(offer.ledger.unacknowledged)
            if offer is NOT_SERVED and info.record.contradiction(resource) is None:
                return frozenset(_ledger(info, topology, resource).unacknowledged)
    return None


def gives_way(waiting: PodRecord, priority: int, gang: Group | None = None) -> bool:
    """Check whether a pod's reservation gives way to a pod of this priority in this gang.

    A reservation by nomination gives way to pods of higher priority. A reservation also gives way
    to a member of the same gang, because the pod with the reservation already counts as a peer that
    may come first.
    """
    if waiting.reservation is None:
        return False
    if gang is not None and waiting.gang == gang:
        return True
    return waiting.reservation.by_nomination and waiting.attributes.priority < priority


def _for_reservation(info: NodeInfo, pod: PodRecord) -> NodeInfo | None:
    """Return the node as a pod with a reservation will find it.

    That pod is about to come, and was promised what it asks for. The pods that are evicted for it,
    and the terminating pods, release their devices before it comes. Some or all of them may still
    be here when another pod comes.
    """
    pods = info.pods
    if pod.reservation is None or pod.uid in pods.bound or pod.uid in pods.assumed:
        return None
    victims, request = pod.reservation.victims | pods.terminating, pod.request
    shown = () if info.report is None else info.report.allocations
    victims |= {each.pod_uid for each in shown if each.without(victims) is None}
    promised = request.promised if isinstance(request, GpuRequest) else NO_CONSTRAINTS
    survives = promised != NO_CONSTRAINTS
    ours = replace(pod, node=info.name, promised=promised, survives_endings=survives)
    pods = pods.with_terminating(victims).with_assumed(ours)
    return replace(info, pods=pods, victims=info.victims | victims)


def _key(info: NodeInfo, resource: str) -> tuple[Hashable, ...]:
    record, topology, report = info.record, info.topology, info.report
    key: tuple[Hashable, ...] = (
        record.problem is not None,
        report is None,
        info.node_object.advertises_none,
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
        # The key need not say more: the node does not serve the resource.
        given = info.gives_out(resource)
        waits = topology.allocator.driver_waits
        split = info.all_split(resource)
        return (*key, bool(topology.resources), waits, given, split, info.serves_claims)
    if topology is not None and served is not None:
        offer = info.last_offer(resource) if report is not None else NO_REPORT
        available = offer.availability if isinstance(offer, Offer) else offer
        shape = shape_of(topology, served)  # it includes the profiles and memory of MIG instances
        key += (shape, topology.resources, record.missing)
        key += (info.overcounted(resource), info.pods.too_many_terminated)
        key = (key, topology.allocator, available)
    for pod, then in info.for_reservations:
        key += (pod.uid, pod.reservation, then.key(resource))
    return key
