"""Decides where a member of a group may go, among the nodes that pass by their own answers.

1. A member of a group that has started goes to the domain in which most of its members live.
2. A group that has not started may start in each domain that can hold every member. The capacity
   of a node is the number of members that surely fit there one after the other
   (:func:`.decision.pod_capacity`). A cordoned node has none unless all known members that are not
   placed tolerate the cordon. Waiting members count with their own requests. If these differ, the
   members are placed as a trial, and no node passes on which the pod would leave the others too
   little.
3. Other groups that have started and still wait for members get *reservations* on certain nodes
   of their domain, as if these members were bound there. Reservations are made group by group,
   in the order in which the groups started, on the nodes with the largest capacity. So all
   groups see the same reservations.
4. A gang that has not started goes to one domain, the best. The reason is that its scheduler
   asks about all members before it binds the first, and does not say where the others went. For
   the same reason the gang takes nothing of a node that it could leave too small for a
   reservation there. This also holds for a gang that names no domain. It may go to any other
   node.

The best domain is the one with the smallest capacity left over; among equals it is the first by
name. So racks that are in use fill up, and whole racks stay whole. If domains are single nodes,
those whose rack is in use come before those whose rack is whole (:func:`.rack_rooms`).
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.framework.capacitycounter import CapacityCounter, countable
from scheduler_extender.framework.equivalence import class_ids_of
from scheduler_extender.framework.members import Member, rack_rooms
from scheduler_extender.groupreference import MAX_SIZE, NODE, NVLINK_DOMAIN
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.gangdomains import ANY_DOMAIN, Direction
from scheduler_extender.state.groups.groupreservations import (
    GroupReservations,
    Reserved,
    ReservedCapacity,
    Where,
    reserved_by_group,
)
from scheduler_extender.state.groups.groups import (
    ANOTHER_CHOSEN,
    DISAGREE,
    ELSEWHERE,
    GROUP_SPREAD,
    NEVER,
    NO_DOMAIN,
    NO_LONGER,
    NO_ROOM_FOR_OTHERS,
    OFF_FABRIC,
    RESERVED_FOR_GROUP,
    TOO_SMALL,
    GroupStatus,
    Requests,
    by_domain,
    in_no_domain,
    members_domain,
    requests_of,
)
from scheduler_extender.state.node.arrivals import Arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo, Offer, gives_way
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Rejection, always_met
from topology.core.requests import NO_CONSTRAINTS


@dataclass(slots=True)
class GroupAnswer:
    """What the group of a member answers about nodes that pass by their own answers."""

    # The nodes by the rejection of each; under None, the nodes to which the member may go.
    by_rejection: dict[Rejection | None, list[str]] = field(default_factory=dict)
    domains: list[str | None] = field(default_factory=list)  # each node's, in the order asked
    best: str | None = None  # the best domain that can hold the group
    late: bool = False  # something was not worked out
    reserves: bool = False  # there are reservations for groups


def ask_group(
    snapshot: Snapshot,
    member: Member,
    passing: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
    *,
    direction: Direction = ANY_DOMAIN,
    gone: frozenset[PodUid] = frozenset(),
) -> GroupAnswer:
    """Return what the group answers about the nodes that are ``passing`` by their own answers.

    Capacity and members are counted in one snapshot, so that devices which a member has taken
    meanwhile are never counted without that member. A reservation for a member of the group is
    capacity of the group. ``direction`` is the domain to which a gang that has not started is sent.
    ``gone`` are the pods that the changed infos of nodes leave out
    (:meth:`.Snapshot.with_node_infos`): the groups are asked as if these pods had ended, and each
    gets a reservation for its replacement.
    """
    counted = snapshot.with_node_infos(for_its_members(snapshot, member))
    return _GroupQuestion(counted, member, deadline, direction, gone).through(passing)


def for_its_members(snapshot: Snapshot, member: Member) -> Iterator[NodeInfo]:
    """Yield the nodes whose info differs for the group's members from that of ``snapshot``.

    Reservations for members count as free, and so do devices that have been chosen for the member
    itself (DRA). A reservation that yields to the member stays if it does not yield to each waiting
    peer.
    """
    group, before = member.group_ref.group, snapshot.base or snapshot
    ours = {
        name: {
            each.uid
            for each in before.node_info(name).reservations
            if each.group_ref is not None and each.group_ref.group == group
        }
        for name in snapshot.reservations
    }
    asking = snapshot.nominated.get(member.uid)
    if asking is not None and (nominated := asking.attributes.nominated) is not None:
        ours[nominated] = ours.get(nominated, set()) | {member.uid}
    concerned = [name for name, pods in ours.items() if pods or name in snapshot.replaced]
    lowest = min(
        (
            pod.attributes.priority
            for pod in (snapshot.unbound if concerned else ())
            if pod.group_ref is not None and pod.group_ref.group == group
            if pod.uid == member.uid or not (member.as_single_pod or pod.ended or pod.terminating)
        ),
        default=None,
    )
    for name in concerned:
        info = snapshot.node_info(name)
        if name not in snapshot.replaced:
            info = info.without(frozenset(ours[name]))
        stay = info.reservations
        if lowest is not None:
            reservations = before.node_info(name).reservations
            stay = tuple(each for each in reservations if not gives_way(each, lowest))
        stay = tuple(each for each in stay if each.uid not in ours[name])
        yield info if stay == info.reservations else replace(info, reservations=stay)


class _GroupQuestion:
    """One call of :func:`ask_group`."""

    def __init__(
        self,
        snapshot: Snapshot,
        member: Member,
        deadline: Deadline,
        direction: Direction,
        gone: frozenset[PodUid],
    ) -> None:
        self._snapshot = snapshot
        self._member = member
        self._deadline = deadline
        self._direction = direction
        self._gone = gone
        self._status = snapshot.group_status(member.group_ref, member.uid)
        self._domains = snapshot.domains(member.group_ref.domain or NODE)
        self._counter = CapacityCounter(snapshot, deadline)
        self._found = GroupAnswer()
        self._nothing_left: set[NodeName] = set()
        group_ref = member.group_ref
        counted = group_ref.domain is not None or group_ref.peers_counted
        # If no size of a gang is given, it counts as the largest size of a gang.
        size = group_ref.size or 1 if counted else MAX_SIZE
        to_come = size - self._status.have_come(group_ref.size)
        # ``_needed`` members must still be placed, this one included. ``_scattered`` of them may go
        # to any node that passes; 0 if they are placed one by one.
        self._needed = 1 if member.as_single_pod else max(1, to_come)
        self._scattered = self._needed if group_ref.gang and not member.as_single_pod else 0
        request = member.request.without_peers
        self._asked = CapacityQuery(
            request if member.as_single_pod else member.request,
            size,
            cordoned=member.tolerates_cordon,
        )
        self._others = requests_of(member.others, self._needed - 1, request)
        self._wanted = requests_of(((request, 1), *self._others), self._needed, None)
        self._reserved: Mapping[NodeName, Reserved] = {}  # for other groups
        # Each node's cordon, reservations and class ids, if the members have different requests.
        self._class_of: Mapping[NodeName, tuple[bool, Reserved, tuple[ClassId | None, ...]]] = {}

    def _reservations(self) -> GroupReservations:
        """Return the reservations for groups."""
        if not self._gone:
            return self._counter.reservations()
        before = self._snapshot.base or self._snapshot
        there = (before.node_info(name).pods for name in self._snapshot.replaced)
        pods = (pod for each in there for pod in (*each.bound.values(), *each.assumed.values()))
        return self._counter.reservations_without([pod for pod in pods if pod.uid in self._gone])

    def through(self, passing: Sequence[str]) -> GroupAnswer:
        """Return the group's answer.

        The work for each of thousands of nodes is one look-up by domain.
        """
        group_ref, answer = self._member.group_ref, self._found
        answer.domains = [None] * len(passing)
        if group_ref.domain is None:
            # A gang without a domain may go to each node without a reservation for another group,
            # and to each node where the reservation holds even if all members of the gang come.
            reservations = self._reservations()
            if reservations.reserved:
                self._taken(reservations, ("", ""), list(reservations.reserved))
            answer.by_rejection = {} if self._counter.late else {None: list(passing)}
        elif not self._status.agrees_with(group_ref):
            answer.by_rejection = {DISAGREE: list(passing)}
        else:
            self._to_a_domain(passing)
        answer.late = self._counter.late
        full = self._nothing_left.intersection(answer.by_rejection.get(None, ()))
        if full:
            answer.by_rejection[None] = [
                name for name in answer.by_rejection[None] if name not in full
            ]
            answer.by_rejection[RESERVED_FOR_GROUP] = [name for name in passing if name in full]
        return answer

    def _to_a_domain(self, passing: Sequence[str]) -> None:
        group_ref, answer, status = self._member.group_ref, self._found, self._status
        domains = answer.domains = list(map(self._domains.of.get, passing))
        at = members_domain(status, self._domains.of)
        several = len(by_domain(status, self._domains.of)) > 1
        offered = {domain for domain in domains if domain is not None}
        said: dict[str | None, Rejection | None] = {
            **dict.fromkeys(offered, GROUP_SPREAD if several else ELSEWHERE),
            None: in_no_domain(group_ref.domain or NODE, self._domains.of),
        }
        candidates = offered if at is None else offered & {at}
        reservations = self._reservations() if candidates else GroupReservations()
        if self._counter.late:
            return  # nothing is known of any node
        answer.reserves = bool(reservations.reserved)
        self._reserved = reservations.without(group_ref.group)
        ranked = self._ranked(candidates, reservations, said, at)
        answer.best = ranked[0] if ranked else None
        put = {
            domain: answer.by_rejection.setdefault(why, []).append for domain, why in said.items()
        }
        for note, name in zip(map(put.__getitem__, domains), passing, strict=True):
            note(name)
        if len(self._wanted) > 1 and answer.by_rejection.get(None):
            self._keep_room(answer.by_rejection)
        outside = (
            answer.by_rejection.get(NO_DOMAIN, []) if group_ref.domain == NVLINK_DOMAIN else []
        )
        off = {name for name in outside if self._snapshot.node_info(NodeName(name)).fabric_fault}
        if off:
            answer.by_rejection[NO_DOMAIN] = [name for name in outside if name not in off]
            answer.by_rejection[OFF_FABRIC] = [name for name in outside if name in off]

    def _ranked(
        self,
        candidates: Collection[str],
        reservations: GroupReservations,
        said: dict[str | None, Rejection | None],
        at: str | None,
    ) -> list[str]:
        """Return the candidates that can hold the members to come, the best first.

        Puts the answer about each candidate into ``said``.
        """
        group_ref, info = self._member.group_ref, self._snapshot.node_info
        rank, totals = self._direction.rank, self._totals(candidates, reservations)
        left = {domain: n - self._needed for domain, n in totals.items()}
        able = [domain for domain, n in left.items() if n >= 0]
        if len(self._wanted) > 1:
            # Note the nodes' classes: nodes of one class hold the same members.
            names = [name for domain in candidates for name in self._domains.nodes[domain]]
            resources = dict.fromkeys(request.resource for request, _ in self._wanted)
            tables = [
                class_ids_of(self._snapshot, resource, names, self._deadline)[0]
                for resource in resources
            ]
            self._class_of = {
                name: (info(name).node_object.cordoned, self._reserved.get(name, ()), class_ids)
                for name, class_ids in zip(names, zip(*tables, strict=True), strict=True)
            }
            able = [domain for domain in candidates if self._holds(domain)]
        rooms = self._rack_rooms(able)
        able.sort(key=lambda d: (rank(d), rooms.get(d, 0), left[d], d))
        said |= dict.fromkeys(candidates, TOO_SMALL if at is None else NO_LONGER)
        for domain in {*candidates} - {*able}:
            nodes = list(map(info, self._domains.nodes[domain]))
            if not all(self._counter.could_hold(each, nodes, n) for each, n in self._wanted):
                said[domain] = NEVER  # even when empty, so no eviction would help
        said |= dict.fromkeys(able, ANOTHER_CHOSEN if group_ref.gang else None)
        if at is None and self._direction.domain is not None:
            able = [domain for domain in able if domain == self._direction.domain]
        if able:
            said[able[0]] = None
        return able

    def _holds(self, domain: str, on: NodeName | None = None) -> bool:
        """Check whether a domain holds members with different requests at once.

        With ``on``, this pod is on that node. The members with most devices are placed first, each
        where most of its kind fit. Other ways are not tried, so the answer may be False for a
        domain that could just hold them.
        """
        nodes, class_of = self._domains.nodes[domain], self._class_of
        class_ids = {each for name in nodes for each in class_of[name][2]}
        alike = frozenset(Counter(map(class_of.__getitem__, nodes)).items())
        here = None if on is None else class_of[on]
        key = alike, self._wanted, self._asked.cordoned, here and (here, self._others)
        packed = self._snapshot.answers.packed
        known = packed.get(key)
        if known is None:
            self._counter.late |= self._deadline.passed()
            known = not self._counter.late and self._packs(domain, on)
            if not self._counter.late and all(each is not None and each > 0 for each in class_ids):
                packed.put(key, known)
        return known

    def _packs(self, domain: str, on: NodeName | None) -> bool:
        """Work out what :meth:`_holds` returns."""
        if on is None:
            return self._packed(domain, self._wanted, self._reserved) is not None
        request = self._member.request.without_peers
        here = self._member.group_ref.group, Arrivals(request, 1, request.promised)
        reserved = {**self._reserved, on: (*self._reserved.get(on, ()), here)}
        return self._packed(domain, self._others, reserved) is not None

    def _packed(
        self, domain: str, wanted: Requests, reserved: Mapping[NodeName, Reserved]
    ) -> frozenset[NodeName] | None:
        """Return the nodes on which members are placed as a trial; None if not all are placed."""
        group, kind = self._member.group_ref.group, self._member.group_ref.domain or NODE
        number = sum(count for _, count in wanted)
        status = GroupStatus(
            group,
            says=(number, kind),
            asked=wanted,
            tolerates_cordon=self._asked.cordoned,
        )
        found = self._counter.beside(status, (kind, domain), reserved)
        before = sum(
            arrivals.count for each in reserved.values() for of, arrivals in each if of == group
        )
        if reserved_by_group(found)[group] - before < number:
            return None
        return frozenset(n for n, each in found.reserved.items() if each != reserved.get(n, ()))

    def _keep_room(self, by_rejection: dict[Rejection | None, list[str]]) -> None:
        """Reject the nodes on which the pod would leave too little for the other members.

        One trial places the others alone. The pod may go to each node that is as those that are
        left then.
        """
        known: dict[Hashable, bool] = {}
        left: dict[str, set[Hashable]] = {}
        for name in map(NodeName, by_rejection.pop(None)):
            domain, class_of = self._domains.of[name], self._class_of[name]
            if domain not in left:
                packed = self._packed(domain, self._others, self._reserved)
                nodes = set() if packed is None else {*self._domains.nodes[domain]} - packed
                left[domain] = set(map(self._class_of.__getitem__, nodes))
            here = domain, class_of
            if here not in known:
                known[here] = class_of in left[domain] or self._holds(domain, name)
            by_rejection.setdefault(None if known[here] else NO_ROOM_FOR_OTHERS, []).append(name)

    def _rack_rooms(self, domains: Sequence[str]) -> dict[str, int]:
        """Return the devices left in the rack of each domain, if domains are single nodes.

        With it, whole racks are broken last. There is none for a gang: its members are all sent to
        one node, and are bound later. Changes of other nodes of the rack must not move them to
        another node meanwhile.
        """
        group_ref = self._member.group_ref
        if group_ref.gang or group_ref.domain != NODE:
            return {}
        rooms = rack_rooms(self._snapshot, self._member.request, domains)
        return dict(zip(domains, rooms, strict=True)) if rooms is not None else {}

    def _totals(
        self, candidates: Collection[str], reservations: GroupReservations
    ) -> dict[str, int]:
        """Return the capacity of each domain, less the reservations for other groups."""
        kind = self._member.group_ref.domain or ""
        totals = self._counter.totals(self._asked, kind, candidates)
        if reservations.reserved:
            inside = reservations.by_domain(kind, self._domains.of)
            for domain in totals.keys() & inside.keys():
                totals[domain] -= self._taken(reservations, (kind, domain), inside[domain])
        return totals

    def _taken(
        self, reservations: GroupReservations, where: Where, names: Sequence[NodeName]
    ) -> int:
        """Return how much capacity reservations take from the nodes of a domain."""
        (kind, domain), group = where, self._member.group_ref.group
        known = reservations.capacities_of(self._asked, kind, group, self._scattered)
        several = self._scattered and len(self._wanted) > 1  # more than the key of the cache says
        if several or not self._snapshot.replaced.isdisjoint(names):
            known = {}
        capacity = known.get(domain)
        if capacity is None:
            capacity = self._reserved_capacity(reservations.by_beside(names, group))
            if not self._counter.late:
                known[domain] = capacity
        self._nothing_left |= capacity.nothing_left
        return capacity.fewer

    def _reserved_capacity(
        self, reserved: Mapping[tuple[Arrivals, ...], Sequence[NodeName]]
    ) -> ReservedCapacity:
        """Return how much reservations take from nodes, which are grouped by their reservations."""
        fewer, full = 0, set[NodeName]()
        for beside, names in reserved.items():
            before = self._counter.on(self._asked, names)
            if not any(before.values()):
                full.update(names)
                continue
            after = self._counter.on(replace(self._asked, reserved=beside), names)
            if self._may_spoil(beside, map(self._snapshot.node_info, names)):
                most = self._scattered
                after = {n: 0 if k < min(before[n], most) else k for n, k in after.items()}
            counted = countable(self._snapshot, names, self._asked)
            fewer += sum(before[name] - after[name] for name in counted)
            full |= {name for name in names if not after[name]}
        return ReservedCapacity(fewer, frozenset(full))

    def _may_spoil(self, beside: Iterable[Arrivals], nodes: Iterable[NodeInfo]) -> bool:
        """Check whether the gang could spread so that these reservations are lost on other nodes.

        Of two trays with four free GPUs each, five members with one GPU each may leave a pair on
        one tray, or one GPU on the first and two on the second. There are two cases without this
        risk. First, the same number is left in any case if a member takes the GPUs of one or more
        such reservations, and all GPUs of the nodes are alike to the waiting member. Second, the
        gang is placed one by one.
        """
        resource = self._asked.request.resource
        sizes = {
            request.effective_count for request, _ in self._wanted if request.resource == resource
        }
        if not self._scattered:
            return False
        if self._member.group_ref.domain is None:
            return True  # the devices that it leaves on other nodes are not summed up
        by_rejection = [arrivals for arrivals in beside if arrivals.request.resource == resource]
        reserved = {max(1, arrivals.request.effective_count) for arrivals in by_rejection}
        if any(size % each for size in sizes for each in reserved):
            return True
        wanted = {arrivals.promised for arrivals in by_rejection} - {NO_CONSTRAINTS}
        offers = [info.last_offer(resource) for info in nodes] if wanted else ()
        kubelets = {offer.kubelet for offer in offers if isinstance(offer, Offer)}
        return any(
            not always_met(k.shape, promised, k.replicas) for k in kubelets for promised in wanted
        )
