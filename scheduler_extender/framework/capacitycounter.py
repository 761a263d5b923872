"""Counts how many members of a group surely fit on nodes and in domains.

Counts are cached by equivalence class and by domain. This module works out the counts that are
missing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.equivalence import class_ids_of, tried
from scheduler_extender.framework.nodedecision import pod_capacity as surely_taken
from scheduler_extender.groupreference import MAX_SIZE, Group
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groupreservations import (
    MOST_IN_VAIN,
    EqualNodes,
    GroupReservations,
    Placed,
    Reserved,
    Where,
    alike_nodes,
    merged,
    placed_groups,
    reserve,
    reserved_by_group,
)
from scheduler_extender.state.groups.groups import GroupStatus
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import Rejection
from topology.core.placement.constraints import compiled
from topology.core.placement.rejections import hardware_rejection
from topology.core.requests import GpuRequest


class CapacityCounter:
    """Counts for one question until its deadline.

    ``late`` is True once something could not be counted in time.
    """

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self._snapshot = snapshot
        self._deadline = deadline
        self.late = False
        self.unknown = False  # True if the equivalence class of a node could not be found

    def totals(
        self, question: CapacityQuery, kind: str, candidates: Collection[str]
    ) -> dict[str, int]:
        """Return the capacity of each domain by itself."""
        snapshot, base = self._snapshot, self._snapshot.base or self._snapshot
        domains = base.domains(kind)
        totals = snapshot.answers.sums(question, kind, candidates, domains.of, base.generation)
        missing = [domain for domain in candidates if domain not in totals]
        nodes = {domain: countable(base, domains.nodes[domain], question) for domain in missing}
        former = CapacityCounter(base, self._deadline)
        if nodes:
            each = former.on(question, [name for names in nodes.values() for name in names])
            sums = {domain: sum(map(each.__getitem__, names)) for domain, names in nodes.items()}
            totals |= sums
            if not former.late and not former.unknown:
                snapshot.answers.put_sums(question, kind, sums, nodes, base.generation)
        for name in snapshot.replaced:
            domain = domains.of.get(name)
            if domain is not None and domain in totals:
                before = sum(former.on(question, countable(base, [name], question)).values())
                totals[domain] += (
                    sum(self.on(question, countable(snapshot, [name], question)).values()) - before
                )
        self.late |= former.late
        return totals

    def on(self, question: CapacityQuery, names: Sequence[NodeName]) -> dict[NodeName, int]:
        """Return the capacity of each of these nodes, worked out where it is not cached."""
        class_ids, _ = class_ids_of(
            self._snapshot, question.request.resource, names, self._deadline
        )
        if None in class_ids:
            self.unknown = True
            self.late |= self._deadline.passed()
        known: dict[ClassId | None, int] = {None: 0}
        for name, class_id in zip(names, class_ids, strict=True):
            if class_id is not None and class_id not in known:
                known[class_id] = self._in_class(class_id, self._snapshot.node_info(name), question)
        return dict(zip(names, map(known.__getitem__, class_ids), strict=True))

    def _in_class(self, class_id: ClassId, info: NodeInfo, question: CapacityQuery) -> int:
        """Return the capacity of a node of this equivalence class.

        Returns 0 once the time is up, and if counting fails.
        """
        snapshot, request, most = self._snapshot, question.request, question.most
        capacity = snapshot.answers.pod_capacity(question, class_id)
        self.late |= capacity is None and self._deadline.passed()
        if capacity is not None or self.late:
            return capacity or 0
        try:
            with self._deadline.enforced():
                beside = with_arrivals(info, question.reserved)
                args = beside, request, snapshot.settings, most
                capacity = tried(snapshot, info, surely_taken, *args) or 0
        except OutOfTimeError:
            self.late = True
            return 0
        snapshot.answers.put_pod_capacity(question, class_id, capacity)
        return capacity

    # Reservations for groups.

    def reservations(self) -> GroupReservations:
        """Return the reservations for groups, worked out where they are not cached.

        Any user may start groups that never complete, over all nodes. If each of them has a
        different request, this takes time.
        """
        snapshot = self._snapshot.base or self._snapshot
        if not snapshot.groups.waiting:
            return GroupReservations()
        key = (snapshot.groups.waits, snapshot.moves)
        reserved = snapshot.group_reservations.get(key, snapshot.generation)
        if reserved is None:
            reserved = self._reserve(snapshot, snapshot.groups.waiting)
            if not self.late:
                snapshot.group_reservations.put(key, reserved, reserved.nodes, snapshot.generation)
        return reserved

    def reservations_without(self, gone: Collection[PodRecord]) -> GroupReservations:
        """Return the reservations that would exist if these pods were gone.

        Nodes count as they would be then. The groups of these pods wait for replacements.
        """
        snapshot, base, now = (
            self._snapshot,
            self._snapshot.base or self._snapshot,
            self.reservations(),
        )
        waiting = base.groups.waiting_without(gone)
        as_now = waiting is base.groups.waiting and snapshot.replaced.isdisjoint(now.nodes)
        return now if as_now else self._reserve(snapshot, waiting)

    def can_reserve_elsewhere(self, name: NodeName, group: Group) -> bool:
        """Check whether all reservations for other groups can be made without this node.

        Returns False if there is no time to count.
        """
        waiting = self._snapshot.groups.waiting
        now = reserved_by_group(self._reserve(self._snapshot, waiting))
        then = reserved_by_group(self._reserve(self._snapshot, waiting, but=name))
        return not self.late and all(
            then[other] >= capacity for other, capacity in now.items() if other != group
        )

    def beside(
        self, status: GroupStatus, where: Where, reserved: Mapping[NodeName, Reserved]
    ) -> GroupReservations:
        """Return the reservations that a group would get in a domain, and those already there."""
        placed = ((status, where),)
        return self._reserve_in(self._snapshot, placed, reserved=reserved, most_in_vain=inf)

    def _reserve(
        self, snapshot: Snapshot, waiting: Sequence[GroupStatus], but: NodeName | None = None
    ) -> GroupReservations:
        """Return the reservations for groups that wait, with none on the node ``but``."""
        base = snapshot.base or snapshot
        return self._reserve_in(snapshot, placed_groups(waiting, base.by_name), but)

    def _reserve_in(
        self,
        snapshot: Snapshot,
        placed: Placed,
        but: NodeName | None = None,
        reserved: Mapping[NodeName, Reserved] = MappingProxyType({}),
        most_in_vain: float = MOST_IN_VAIN,
    ) -> GroupReservations:
        base = snapshot.base or snapshot
        domains = {
            (kind, domain): base.domains(kind).nodes.get(domain, ()) for _, (kind, domain) in placed
        }
        names = sorted(frozenset().union(*domains.values()) - {but})
        class_ids: dict[str, dict[NodeName, ClassId | None]] = {}
        requests = (each for status, _ in placed for each, _ in status.requests_to_come)
        for resource in dict.fromkeys(request.resource for request in requests):
            of_each, _ = class_ids_of(snapshot, resource, names, self._deadline)
            class_ids[resource] = dict(zip(names, of_each, strict=True))
        nodes = {name: info for name in names if (info := snapshot.by_name.get(name)) is not None}
        try:
            equal = alike_nodes(domains, nodes, class_ids, reserved)
            found = reserve(placed, equal, self._count, most_in_vain)
        except OutOfTimeError:
            self.late = True
            return GroupReservations()
        return replace(found, nodes=frozenset(names))

    def _count(self, equal: EqualNodes, request: GpuRequest) -> int:
        """Return the capacity of each node of an equivalence class.

        Raises :class:`OutOfTimeError`.
        """
        class_id = equal.class_ids[request.resource]
        if class_id is None:
            return 0
        capacity = self._in_class(
            class_id, equal.info, CapacityQuery(request, MAX_SIZE, merged(equal.reserved))
        )
        if self.late:
            raise OutOfTimeError
        return capacity

    def could_hold(self, request: GpuRequest, nodes: Iterable[NodeInfo], members: int) -> bool:
        """Check whether nodes may hold this many members once some of their pods have gone.

        Returns True if it is too late to count, if counting fails, and if a node with such devices
        has not reported.
        """
        for info in nodes:
            if self.late or self._deadline.passed():
                self.late = True
                return True
            most = tried(self._snapshot, info, _most, info, request)
            members -= MAX_SIZE if most is None else most
            if members <= 0 or (
                info.topology is None and info.node_object.pieces(request.resource)
            ):
                return True
        return False


def countable(
    snapshot: Snapshot, names: Iterable[NodeName], question: CapacityQuery
) -> list[NodeName]:
    """Return the nodes that count for this query."""
    info = snapshot.node_info
    return [name for name in names if question.cordoned or not info(name).node_object.cordoned]


def _most(info: NodeInfo, request: GpuRequest) -> int:
    """Return an upper bound on the pods of this request that fit on a node at once.

    The bound holds whichever pods leave the node.

    The capacity of the empty node is no such bound. A node may *surely* take more pods while some
    of its GPUs are in use, because the pod can then only get those that are left. So the hardware
    is counted, as if each pod got the best of it. Returns 0 for a node without a usable record.
    """
    offer = info.last_offer(request.resource)
    if isinstance(offer, Rejection):
        return 0
    kubelet = offer.kubelet
    most = kubelet.devices_served // max(1, request.effective_count)
    if not request.required:
        return most
    if hardware_rejection(kubelet, request) is not None:
        return 0
    fit = compiled(kubelet.shape, request.constraints, 0, kubelet.replicas).allowed
    return min(most, kubelet.devices_on(fit) // max(1, request.count))
