"""Reservations for the groups that wait for members, computed for all groups together.

The groups get their reservations one by one, the first to start first. Each group reserves capacity
on the nodes of its domain that have most capacity for its pods, beside the reservations of the
groups before it. Of several nodes with enough capacity, it takes the one with most devices left. So
every group sees the same reservations for the others.

Nodes are *alike* if they are in the same domains and the same equivalence classes, and have the
same reservations. They are counted once and reserved together. So hundreds of groups over thousands
of nodes cost a few milliseconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from scheduler_extender.groupreference import Group
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.classes import ClassId
from scheduler_extender.state.groups.domains import domain_of
from scheduler_extender.state.groups.groups import GroupStatus, members_domain
from scheduler_extender.state.node.arrivals import Arrivals
from scheduler_extender.state.node.nodeinfo import NodeInfo
from topology.core.devices import NodeName
from topology.core.requests import GpuRequest

Where = tuple[str, str]  # a domain: its kind, and its name

# After so many kinds of nodes in a row without capacity for a group, the remaining kinds count as
# having none. Otherwise hundreds of groups with different requests would cost minutes.
MOST_IN_VAIN = 4
# The number of capacity queries for which one :class:`GroupReservations` caches the answers.
CACHED_CAPACITIES = 64


@dataclass(slots=True)
class EqualNodes:
    """Nodes that are alike, sorted by name.

    ``domains`` are the waiting groups' domains that they are in. ``class_ids`` are their
    equivalence classes by resource. ``info`` is one of the nodes. ``room`` are the devices left on
    each node by resource, and ``reserved`` the reservations on each node by group.
    """

    nodes: list[NodeName]
    domains: tuple[Where, ...]
    class_ids: Mapping[str, ClassId | None]
    info: NodeInfo
    room: Mapping[str, int]
    reserved: Reserved = ()


Reserved = tuple[tuple[Group, Arrivals], ...]  # the reservations on a node, by group

# Returns how many pods of a request each of some nodes takes beside the reservations there.
Count = Callable[[EqualNodes, GpuRequest], int]


# The waiting groups, the first to start first, each with its domain.
Placed = tuple[tuple[GroupStatus, Where], ...]


def placed_groups(waiting: Iterable[GroupStatus], nodes: Mapping[NodeName, NodeInfo]) -> Placed:
    """Return the waiting groups with the domain of their members, without groups in no domain."""
    placed: list[tuple[GroupStatus, Where]] = []
    for status in waiting:
        kind = status.says[1] if status.says is not None else None
        if kind is not None:
            there = (nodes[name] for name in status.living if name in nodes)
            pairs = ((info.name, domain_of(info, kind)) for info in there)
            domains: dict[str, str] = {name: domain for name, domain in pairs if domain is not None}
            at = members_domain(status, domains)
            if at is not None:
                placed.append((status, (kind, at)))
    return tuple(placed)


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """What reservations take from a domain.

    ``fewer`` is by how many pods its capacity falls. ``nothing_left`` are its nodes without
    capacity after that.
    """

    fewer: int
    nothing_left: frozenset[NodeName]


@dataclass(slots=True)
class GroupReservations:
    """The reservations of one generation, by node and by group.

    ``shares`` caches what the reservations take from domains. Its key is the capacity query, the
    kind of domain, the requesting group if it has reservations, and how many of its members come at
    once. ``inside`` has the nodes with reservations by domain.
    """

    reserved: Mapping[NodeName, Reserved] = field(default_factory=dict)
    groups: frozenset[Group] = frozenset()
    capacities: OrderedDict[
        tuple[CapacityQuery, str, Group | None, int], dict[str, ReservedCapacity]
    ] = field(default_factory=OrderedDict)
    inside: dict[str, dict[str, list[NodeName]]] = field(default_factory=dict)
    nodes: frozenset[NodeName] = frozenset()  # the nodes of the waiting groups' domains

    def by_beside(
        self, names: Iterable[NodeName], group: Group
    ) -> dict[tuple[Arrivals, ...], list[NodeName]]:
        """Return nodes by their reservations for other groups, without nodes that have none."""
        equal: dict[Reserved, list[NodeName]] = {}
        for name in names:
            equal.setdefault(self.reserved[name], []).append(name)
        names_by: dict[tuple[Arrivals, ...], list[NodeName]] = {}
        for reserved, some in equal.items():
            beside = merged(entry for entry in reserved if entry[0] != group)
            names_by.setdefault(beside, []).extend(some)
        names_by.pop((), None)
        return names_by

    def without(self, group: Group) -> Mapping[NodeName, Reserved]:
        """Return the reservations for all other groups."""
        others = {
            name: tuple(entry for entry in here if entry[0] != group)
            for name, here in self.reserved.items()
        }
        return {name: here for name, here in others.items() if here}

    def by_domain(self, kind: str, domains: Mapping[str, str]) -> dict[str, list[NodeName]]:
        """Return the nodes with reservations by their domain of a kind, as ``domains`` has it."""
        inside = self.inside.get(kind)
        if inside is None:
            inside = {}
            for name in self.reserved:
                if name in domains:
                    inside.setdefault(domains[name], []).append(name)
            self.inside[kind] = inside
        return inside

    def capacities_of(
        self, question: CapacityQuery, kind: str, group: Group, scattered: int = 0
    ) -> dict[str, ReservedCapacity]:
        """Return the cached capacities of the domains of a kind, which the caller may add to."""
        key = (question, kind, group if group in self.groups else None, scattered)
        capacities = self.capacities.setdefault(key, {})
        if len(self.capacities) > CACHED_CAPACITIES:
            self.capacities.popitem(last=False)
        return capacities


def reserved_by_group(reservations: GroupReservations) -> Counter[Group]:
    """Return for how many pods each group has reservations."""
    counts = Counter[Group]()
    for reserved in reservations.reserved.values():
        for group, arrivals in reserved:
            counts[group] += arrivals.count
    return counts


def devices_left(info: NodeInfo, resource: str) -> int:
    """Return the devices that are left on a node; 0 if that is not known."""
    try:
        return max(0, info.devices_left(resource))
    except Exception:  # noqa: BLE001 (a fault of ours shows when the node is asked)
        return 0


def merged(reserved: Iterable[tuple[Group, Arrivals]]) -> tuple[Arrivals, ...]:
    """Return the reservations of all groups, with pods of the same request counted together."""
    counts: dict[GpuRequest, int] = {}
    for _, arrivals in reserved:
        counts[arrivals.request] = counts.get(arrivals.request, 0) + arrivals.count
    return tuple(Arrivals(request, n, request.promised) for request, n in counts.items())


def _devices(reserved: Reserved, resource: str) -> int:
    requests = (arrivals for _, arrivals in reserved if arrivals.request.resource == resource)
    return sum(arrivals.count * arrivals.request.count for arrivals in requests)


def reserve(
    waiting: Placed,
    equal: Iterable[EqualNodes],
    count: Count,
    most_in_vain: float = MOST_IN_VAIN,
) -> GroupReservations:
    """Return the reservations of all waiting groups on the nodes of their domains.

    The groups get them in the order of ``waiting``, and share the nodes of ``equal`` out. An error
    that ``count`` raises is passed on.

    O(groups + nodes + reservations), and one ``count`` for each request and kind of node that is
    reserved or could have been.
    """
    shelves = _Shelves(equal, count, most_in_vain)
    for status, where in waiting:
        shelves.reserve(status, where)
    reserved = {name: equal.reserved for equal in shelves.given for name in equal.nodes}
    groups = frozenset(status.group for status, _ in waiting)
    return GroupReservations(reserved, groups)


@dataclass(slots=True, eq=False)
class _Kind:
    """Nodes that are alike, with the devices left and the capacity for one request on each.

    The capacity is an upper bound until it is ``counted``; then it is exact.
    """

    equal: EqualNodes
    room: int
    capacity: int
    counted: bool = False

    def __lt__(self, other: _Kind) -> bool:
        """Return False: the heap never needs this order, because the names before it differ."""
        return False


@dataclass(slots=True)
class _Open:
    """The nodes of one domain that may take pods of one request.

    ``seen`` is how many :class:`EqualNodes` of the domain have been added to ``kinds``.
    """

    kinds: list[_Kind] = field(default_factory=list)
    seen: int = 0


class _Shelves:
    """One call of :func:`reserve`: the nodes by domain, and the reservations on them."""

    def __init__(self, equal: Iterable[EqualNodes], count: Count, most_in_vain: float) -> None:
        self._count = count
        self._most_in_vain = most_in_vain
        self._in: dict[Where, list[EqualNodes]] = {}
        self._open: dict[tuple[Where, GpuRequest, bool], _Open] = {}
        self.given: list[EqualNodes] = []
        for each in equal:
            self._put(each)

    def reserve(self, status: GroupStatus, where: Where) -> None:
        """Reserve capacity for the members of a group that are still to come."""
        for request, wanted in status.requests_to_come:
            self._reserve_for(status, where, request, wanted)

    def _reserve_for(
        self, status: GroupStatus, where: Where, request: GpuRequest, wanted: int
    ) -> None:
        kinds = self._open_kinds(where, request, cordoned=status.tolerates_cordon)
        queue = [
            (-min(kind.capacity, wanted), -kind.room, kind.equal.nodes[0], kind) for kind in kinds
        ]
        heapify(queue)
        left, in_vain = wanted, 0
        while queue and left:
            promised, room, name, kind = heappop(queue)
            if not kind.counted:
                if in_vain == self._most_in_vain:
                    continue
                kind.capacity, kind.counted = self._count(kind.equal, request), True
                in_vain = 0 if kind.capacity else in_vain + 1
                if min(kind.capacity, wanted) < -promised:
                    if kind.capacity:
                        heappush(queue, (-min(kind.capacity, wanted), room, name, kind))
                    continue
            left = self._reserve_on(kind, status.group, request, left)

    def _reserve_on(self, kind: _Kind, group: Group, request: GpuRequest, left: int) -> int:
        """Reserve for up to ``left`` pods on alike nodes, and return how many pods remain."""
        each = min(kind.capacity, left)
        whole = min(len(kind.equal.nodes), left // each)
        self._give(kind.equal, whole, group, Arrivals(request, each, request.promised))
        left -= whole * each
        if left and kind.equal.nodes:  # the next node has capacity for more
            self._give(kind.equal, 1, group, Arrivals(request, left, request.promised))
            left = 0
        return left

    def _open_kinds(self, where: Where, request: GpuRequest, *, cordoned: bool) -> list[_Kind]:
        """Return the kinds of nodes in a domain that may have capacity.

        Reservations only grow, so a kind without capacity is removed for good.
        """
        known = self._open.setdefault((where, request, cordoned), _Open())
        inside = self._in.get(where, [])
        for equal in inside[known.seen :]:
            if equal.info.node_object.cordoned and not cordoned:
                continue
            room = equal.room.get(request.resource, 0)
            known.kinds.append(_Kind(equal, room, max(0, room) // max(1, request.count)))
        known.seen = len(inside)
        known.kinds = [kind for kind in known.kinds if kind.capacity and kind.equal.nodes]
        return known.kinds

    def _give(self, equal: EqualNodes, nodes: int, group: Group, arrivals: Arrivals) -> None:
        """Add a reservation to each of the first ``nodes`` of the nodes that are alike."""
        if not nodes:
            return
        taken, equal.nodes = equal.nodes[:nodes], equal.nodes[nodes:]
        reserved = (*equal.reserved, (group, arrivals))
        resource, devices = arrivals.request.resource, arrivals.count * arrivals.request.count
        room = {**equal.room, resource: equal.room.get(resource, 0) - devices}
        self._put(EqualNodes(taken, equal.domains, equal.class_ids, equal.info, room, reserved))

    def _put(self, equal: EqualNodes) -> None:
        if equal.reserved:
            self.given.append(equal)
        for where in equal.domains:
            self._in.setdefault(where, []).append(equal)


def alike_nodes(
    domains: Mapping[Where, Iterable[NodeName]],
    nodes: Mapping[NodeName, NodeInfo],
    class_ids: Mapping[str, Mapping[NodeName, ClassId | None]],
    reserved: Mapping[NodeName, Reserved] = MappingProxyType({}),
) -> tuple[EqualNodes, ...]:
    """Return the nodes of some domains, with alike nodes together.

    ``reserved`` are the reservations that some of them have already.
    """
    wheres = tuple(domains)
    inside: dict[NodeName, int] = {}  # the domains of a node as bits, because there may be hundreds
    for i, where in enumerate(wheres):
        for name in domains[where]:
            inside[name] = inside.get(name, 0) | 1 << i
    equal: dict[tuple[int, bool, Reserved, tuple[ClassId | None, ...]], list[NodeName]] = {}
    tables = tuple(class_ids.values())
    for name, bits in inside.items():
        if name in nodes:
            classes = tuple(table.get(name) for table in tables)
            cordoned = nodes[name].node_object.cordoned
            equal.setdefault((bits, cordoned, reserved.get(name, ()), classes), []).append(name)
    return tuple(
        EqualNodes(
            sorted(names),
            tuple(where for i, where in enumerate(wheres) if bits >> i & 1),
            dict(zip(class_ids, each, strict=True)),
            nodes[names[0]],
            {
                resource: devices_left(nodes[names[0]], resource) - _devices(already, resource)
                for resource in class_ids
            },
            already,
        )
        for (bits, _, already, each), names in equal.items()
    )
