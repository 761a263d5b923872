"""Counts places in domains and on nodes: how many members of a group surely fit there.

What has been counted is remembered, by state and by domain; here is worked out what is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.decision import pod_capacity as surely_taken
from scheduler_extender.framework.equivalence import class_ids_of, tried
from scheduler_extender.groupreference import MAX_SIZE, Group
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groupreservations import (
    Alike,
    GroupReservations,
    alike_nodes,
    merged,
    placed_groups,
    reserve,
    reserved_by_group,
)
from scheduler_extender.state.groups.groups import GroupStatus, resource_asked
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import Rejection
from topology.core.placement.constraints import compiled
from topology.core.placement.rejections import hardware_rejection
from topology.core.requests import GpuRequest


class CapacityCounter:
    """Counts for one question until its deadline; ``late`` says from then on that something was not
    counted."""

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self._snapshot = snapshot
        self._deadline = deadline
        self.late = False
        self.unknown = False  # whether the state of a node could not be found

    def totals(
        self, question: CapacityQuery, kind: str, candidates: Collection[str]
    ) -> dict[str, int]:
        """The places in each domain by itself. Cordoned nodes have none."""
        snapshot, base = self._snapshot, self._snapshot.base or self._snapshot
        domains = base.domains(kind)
        totals = snapshot.answers.sums(question, kind, candidates, domains.of, base.generation)
        nodes = {d: _open(base, domains.nodes[d]) for d in candidates if d not in totals}
        former = CapacityCounter(base, self._deadline)
        if nodes:
            each = former.on(question, [name for names in nodes.values() for name in names])
            sums = {domain: sum(map(each.__getitem__, names)) for domain, names in nodes.items()}
            totals |= sums
            if not former.late and not former.unknown:
                snapshot.answers.put_sums(question, kind, sums, nodes, base.generation)
        for name in snapshot.own:
            domain = domains.of.get(name)
            if domain is not None and domain in totals:
                before = sum(former.on(question, _open(base, [name])).values())
                totals[domain] += sum(self.on(question, _open(snapshot, [name])).values()) - before
        self.late |= former.late
        return totals

    def on(self, question: CapacityQuery, names: Sequence[NodeName]) -> dict[NodeName, int]:
        """The places on each of some nodes, worked out where they are not remembered."""
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
        """The places on a node in this state; none once the time is up, and where counting
        fails."""
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
        """The reservations for groups, worked out where they are not remembered.

        Anybody may start groups that never end, over all nodes: where each asks for something else
        that takes time.
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
        """The places that would be kept if these pods were gone, and nodes as they would be then:
        their groups wait for others in their place."""
        snapshot, base, now = (
            self._snapshot,
            self._snapshot.base or self._snapshot,
            self.reservations(),
        )
        waiting = base.groups.waiting_without(gone)
        as_now = waiting is base.groups.waiting and snapshot.own.isdisjoint(now.nodes)
        return now if as_now else self._reserve(snapshot, waiting)

    def can_reserve_elsewhere(self, name: NodeName, group: Group) -> bool:
        """Whether all places that are kept for other groups can be kept on other nodes than this
        one. What there is no time for counts as no."""
        waiting = self._snapshot.groups.waiting
        now = reserved_by_group(self._reserve(self._snapshot, waiting))
        then = reserved_by_group(self._reserve(self._snapshot, waiting, but=name))
        return not self.late and all(
            then[other] >= capacity for other, capacity in now.items() if other != group
        )

    def _reserve(
        self, snapshot: Snapshot, waiting: Sequence[GroupStatus], but: NodeName | None = None
    ) -> GroupReservations:
        """The places that are kept for groups that wait; none on one node."""
        base = snapshot.base or snapshot
        placed = placed_groups(waiting, base.by_name)
        domains = {
            (kind, domain): base.domains(kind).nodes.get(domain, ()) for _, (kind, domain) in placed
        }
        names = sorted(frozenset().union(*domains.values()) - {but})
        class_ids: dict[str, dict[NodeName, ClassId | None]] = {}
        for resource in dict.fromkeys(resource_asked(status) for status, _ in placed):
            of_each, _ = class_ids_of(snapshot, resource, names, self._deadline)
            class_ids[resource] = dict(zip(names, of_each, strict=True))
        nodes = {name: info for name in names if (info := snapshot.by_name.get(name)) is not None}
        try:
            reserved = reserve(placed, alike_nodes(domains, nodes, class_ids), self._count)
        except OutOfTimeError:
            self.late = True
            return GroupReservations()
        return replace(reserved, nodes=frozenset(names))

    def _count(self, alike: Alike, request: GpuRequest) -> int:
        """The places on each of some nodes that are alike. Raises :class:`OutOfTimeError`."""
        class_id = alike.class_ids[request.resource]
        if class_id is None:
            return 0
        capacity = self._in_class(
            class_id, alike.info, CapacityQuery(request, MAX_SIZE, merged(alike.reserved))
        )
        if self.late:
            raise OutOfTimeError
        return capacity

    def could_hold(self, request: GpuRequest, nodes: Iterable[NodeInfo], members: int) -> bool:
        """Whether nodes may have places for so many members once some of their pods have gone.

        Yes where it is too late to count, or counting fails, and where a node with such devices has
        not reported.
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


def _open(snapshot: Snapshot, names: Iterable[NodeName]) -> list[NodeName]:
    """The nodes that are not cordoned."""
    return [name for name in names if not snapshot.node_info(name).node_object.cordoned]


def _most(info: NodeInfo, request: GpuRequest) -> int:
    """At most how many pods of this request a node could hold at once, whoever leaves it.

    What an empty node *surely* takes is no such bound. It may take more where some of its GPUs are
    held, since then the pod can only get those that are left. So the hardware is counted, for pods
    that are handed the best of it. None on a node without a usable record.
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
