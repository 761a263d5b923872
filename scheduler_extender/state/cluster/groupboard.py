"""The groups of pods and the domains of nodes, under the cluster's lock.

What is remembered of places is kept beside the answers (:mod:`.lookup`): by state, and for whole
domains until one of their nodes changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler_extender.deadline import NO_DEADLINE, Deadline
from scheduler_extender.limits import AT_ONCE_KEPT
from scheduler_extender.membership import NODE, NVLINK_DOMAIN, Membership
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.answers.lookup import PlaceLook
from scheduler_extender.state.answers.remembered import PlaceCount, State
from scheduler_extender.state.cluster.board import Board
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.groups.domains import Domains, domain_of, same_domains
from scheduler_extender.state.groups.gangdomains import ANYWHERE, Direction, GangDomains
from scheduler_extender.state.groups.groups import (
    GroupLook,
    Groups,
    GroupStanding,
    members_domain,
    resource_asked,
)
from scheduler_extender.state.groups.keeping import Alike, Keeping, WaitingLook, Where, alike_nodes
from scheduler_extender.state.groups.racks import Racks
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord, time_text
from scheduler_extender.state.pods.standing import Amounts
from scheduler_extender.wire import Taint
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest
from topology.times import seconds_of

NO_LABELS: Mapping[str, str] = {}

_Placed = tuple[tuple[GroupStanding, Where], ...]


class GroupBoard(Board):
    """A board that knows groups, too."""

    def __init__(
        self,
        clock: Callable[[], float],
        settings: Settings = Settings(),
        watches: Callable[[], Iterable[Watch]] = tuple,
    ) -> None:
        super().__init__(clock, settings, watches)
        self._domains = Domains()
        self._groups = Groups()
        self._racks = Racks()
        self._gangs = GangDomains()
        self._keeping = Keeping(None)
        self._watched: frozenset[NodeName] = frozenset()
        self._news = 0

    def put_labels(
        self,
        name: NodeName,
        labels: Mapping[str, str],
        *,
        cordoned: bool = False,
        taints: tuple[Taint, ...] = (),
        whole: bool = False,
        allocatable: Amounts | None = None,
    ) -> None:
        """Take a known node's labels and taints, and whether it is cordoned, where Node objects are
        not watched.

        ``whole`` says that there are no others: then they say who may be sent there.
        ``allocatable`` is what kube-scheduler gives out there.
        """
        with self._lock:
            before = self._nodes.get(name)
            if before is not None:
                known = before.node_object
                seen = replace(
                    known,
                    labels=labels,
                    cordoned=cordoned,
                    taints=taints,
                    exists=whole or known.exists,
                    allocatable=allocatable,
                )
                facts = replace(before, node_object=seen)
                self._put(facts, changed=allocatable != known.allocatable)

    def look_at_group(
        self, membership: Membership, but: PodUid | None = None, deadline: Deadline = NO_DEADLINE
    ) -> GroupLook:
        """A group without one of its pods, and the domains of the nodes, at this moment. The
        event loop's raises :class:`.NotAtOnceError` where nobody has asked for this kind."""
        kind = membership.domain or NODE
        with self._lock:
            deadline.need_quick(self._domains.listed(kind))
            domains = self._domains.of(kind, self._nodes)
            standing = self._groups.standing(membership.group, but)
            return GroupLook(standing, domains, self._groups.starts, self._groups.changes)

    def look_at_waiting(self, deadline: Deadline = NO_DEADLINE) -> Keeping | WaitingLook:
        """The places that are kept for groups, if they are remembered; else all that they depend
        on. The event loop's raises :class:`.NotAtOnceError` where that is much."""
        with self._lock:
            self._expire(deadline)
            self._groups.waiting()  # whose changes are a part of the version
            if self._keeping.version == self._version:
                return self._keeping
        return self.waiting_look(deadline)

    def waiting_look(self, deadline: Deadline = NO_DEADLINE) -> WaitingLook:
        """All that the places depend on that are kept for groups."""
        with self._lock:
            self._expire(deadline)
            waiting = self._groups.waiting()
            deadline.need_quick(sum(len(each.living) for each in waiting) <= AT_ONCE_KEPT)
            placed = self._placed(waiting)
            kinds = dict.fromkeys(kind for _, (kind, _) in placed)
            deadline.need_quick(all(map(self._domains.listed, kinds)))
        for kind in kinds:  # the lock is given back between: each is O(nodes) where it is new
            with self._lock:
                self._domains.within(kind, (), self._nodes)
        with self._lock:
            waiting, version = self._groups.waiting(), self._version
            placed = self._placed(waiting)
            domains, names = self._inside(placed, deadline)
            self._watched = names
        return WaitingLook(version, placed, self._alike(placed, domains, names, {}, deadline))

    def look_at_waiting_if(
        self,
        gone: frozenset[PodUid],
        instead: Mapping[NodeName, NodeFacts],
        deadline: Deadline = NO_DEADLINE,
    ) -> WaitingLook | None:
        """The same if some pods were gone and some nodes had other facts; None where that changes
        nothing about the places that are kept."""
        with self._lock:
            waiting = self._groups.waiting_without(gone)
            placed = self._placed(waiting)
            domains, names = self._inside(placed, NO_DEADLINE)
            if waiting is self._groups.waiting() and names.isdisjoint(instead):
                return None
        alike = self._alike(placed, domains, names, instead, deadline)
        return WaitingLook(None, placed, alike)

    def _inside(
        self, placed: _Placed, deadline: Deadline
    ) -> tuple[dict[Where, list[NodeName]], frozenset[NodeName]]:
        """The nodes of each domain in which a group waits, and all of them."""
        inside: dict[str, dict[str, None]] = {}
        for _, (kind, domain) in placed:
            inside.setdefault(kind, {})[domain] = None
        domains: dict[Where, list[NodeName]] = {}
        names: set[NodeName] = set()
        for kind, wanted in inside.items():
            for domain, found in self._domains.within(kind, wanted, self._nodes).items():
                domains[kind, domain] = found
                if len(names) < len(self._nodes):
                    names.update(found)
            deadline.need_quick(len(placed) + sum(map(len, domains.values())) <= AT_ONCE_KEPT)
        return domains, frozenset(names)

    def _alike(
        self,
        placed: _Placed,
        domains: Mapping[Where, Sequence[NodeName]],
        names: frozenset[NodeName],
        instead: Mapping[NodeName, NodeFacts],
        deadline: Deadline,
    ) -> tuple[Alike, ...]:
        """The nodes of some domains, those together that are alike. Each of those with facts
        ``instead`` is in a state of its own, of which nothing is remembered."""
        resources = dict.fromkeys(resource_asked(standing) for standing, _ in placed)
        for resource in resources:
            self._states_found(resource, sorted(names), deadline)
        with self._lock:
            states = {resource: self._lookup.known_states(resource) for resource in resources}
            nodes = {**self._nodes, **instead}
        for number, name in enumerate(instead, 1):
            for known in states.values():
                known[name] = -number
        return alike_nodes(domains, nodes, states)

    def remember_keeping(self, keeping: Keeping) -> None:
        """Remember the places that are kept, until something changes."""
        with self._lock:
            if keeping.version == self._version:
                self._keeping = keeping

    def forget_answers(self) -> None:
        """Forget the places that are kept for groups, too."""
        with self._lock:
            super().forget_answers()
            self._keeping = Keeping(None)

    @property
    def _version(self) -> Hashable:
        """Changes with all that kept places depend on."""
        return (self._news, self._groups.waits)

    def _placed(self, waiting: Iterable[GroupStanding]) -> _Placed:
        """The groups that wait, each with its domain; without those that are in none."""
        found: list[tuple[GroupStanding, Where]] = []
        for standing in waiting:
            kind = standing.says[1] if standing.says is not None else None
            if kind is not None:
                at = members_domain(standing, self._domains_of_members(standing, kind))
                if at is not None:
                    found.append((standing, (kind, at)))
        return tuple(found)

    def _domains_of_members(self, standing: GroupStanding, kind: str) -> dict[NodeName, str]:
        """The domains of the nodes on which members live."""
        nodes = (self._nodes[name] for name in standing.living if name in self._nodes)
        return {f.name: domain for f in nodes if (domain := domain_of(f, kind)) is not None}

    def standing(self, membership: Membership, but: PodUid | None = None) -> GroupStanding:
        """A group without one of its pods."""
        with self._lock:
            return self._groups.standing(membership.group, but)

    def time_of_start(self, text: str) -> float | None:
        """When a bind is decided that is decided now, in seconds since 1970, by what a clock says:
        after the starts of all groups that we know. None where the text is no time."""
        said = seconds_of(text)
        if said is None:
            return None
        with self._lock:
            found = self._groups.after_all_starts(said)
        return seconds_of(time_text(found))

    def expected(
        self, membership: Membership, but: PodUid, besides: GpuRequest, most: int
    ) -> list[tuple[GpuRequest, int]]:
        """What the other members of a gang ask that we know to wait for their binds, and how many
        each: see :meth:`.groups.Groups.expected`."""
        with self._lock:
            return self._groups.expected(membership.group, but, besides, most)

    def direction_of(self, membership: Membership) -> Direction:
        """Where a member of a gang has to go since its siblings were sent there just now."""
        if not membership.gang:
            return ANYWHERE
        with self._lock:
            return self._gangs.of(membership, self.clock())

    def note_direction(self, membership: Membership, domain: str | None) -> None:
        """Filter has sent a member of a gang to a domain, or nowhere (None). Of a gang that has
        started nothing is noted: its domain is where its members are."""
        if not membership.gang:
            return
        with self._lock:
            if not self._groups.standing(membership.group).living:
                self._gangs.answered(membership, domain, self.clock())

    @property
    def group_starts(self) -> int:
        """How often a group has begun to live somewhere; see :class:`.groups.Groups`."""
        with self._lock:
            return self._groups.starts

    @property
    def group_changes(self) -> int:
        """How often members of groups have changed; see :class:`.groups.Groups`."""
        with self._lock:
            return self._groups.changes

    def total_places(
        self,
        question: PlaceCount,
        kind: str,
        domains: Collection[str],
        deadline: Deadline = NO_DEADLINE,
    ) -> tuple[dict[str, int], dict[State, NodeFacts]]:
        """The places in each of these domains, as far as they are remembered, and the states that
        are missing, each with the facts of one node. Cordoned nodes have none."""
        resource = question.request.resource
        with self._lock:
            known = self._lookup.totals(question, kind)
            totals = {domain: known[domain] for domain in domains if domain in known}
            left = [domain for domain in domains if domain not in totals]
            nodes = self._domains.within(kind, left, self._nodes) if left else {}
            open_ = {
                domain: [name for name in names if not self._nodes[name].node_object.cordoned]
                for domain, names in nodes.items()
            }
        if not left:
            return totals, {}
        everybody = [name for names in open_.values() for name in names]
        self._states_found(resource, everybody, deadline)
        with self._lock:
            look = self._lookup.look_at_places(question, everybody, self._nodes)
            for domain, names in open_.items():
                states = [look.states[name] for name in names]
                totals[domain] = sum(look.known.get(s, 0) for s in states if s is not None)
                if look.missing.keys().isdisjoint(states) and None not in states:
                    self._lookup.remember_total(question, kind, domain, totals[domain])
        return totals, look.missing

    def facts_within(self, kind: str, domains: Iterable[str]) -> dict[str, list[NodeFacts]]:
        """The facts of all nodes of some domains, of cordoned ones, too."""
        with self._lock:
            nodes = self._domains.within(kind, domains, self._nodes)
            return {d: [self._nodes[name] for name in names] for d, names in nodes.items()}

    def rack_rooms(self, resource: str, names: Sequence[str]) -> list[int] | None:
        """How much is left of the rack of each node, 0 for a node in none (:mod:`.racks`).

        None where that makes no difference: nobody has asked for a rack, or there is none.
        """
        with self._lock:
            if not self._racks.wanted:
                return None
            of = self._domains.of(NVLINK_DOMAIN, self._nodes)
            racks = [of.get(NodeName(name)) for name in names] if of else []
            rooms = {rack: self._rack_room(rack, resource) for rack in set(racks) - {None}}
        return [rooms.get(rack, 0) for rack in racks] if any(rooms.values()) else None

    def _rack_room(self, rack: str | None, resource: str) -> int:
        if rack is None:
            return 0
        known = self._racks.known(rack, resource)
        if known is not None:
            return known
        trays = self._domains.within(NVLINK_DOMAIN, (rack,), self._nodes)[rack]
        return self._racks.remember(rack, resource, (self._nodes[name] for name in trays))

    def _note_wish(self, pod: PodRecord) -> None:
        """Note what a pod asks for its group."""
        if pod.membership is not None:
            self._racks.wanted |= pod.membership.domain == NVLINK_DOMAIN

    def not_cordoned(self, names: Iterable[NodeName]) -> list[NodeName]:
        """The nodes to which the scheduler may send pods."""
        with self._lock:
            return [name for name in names if not self._facts(name).node_object.cordoned]

    def look_at_places(
        self,
        question: PlaceCount,
        names: Sequence[NodeName],
        deadline: Deadline = NO_DEADLINE,
    ) -> PlaceLook:
        """The remembered places on some nodes, and what is missing; see :meth:`look`."""
        resource = question.request.resource
        self._states_found(resource, names, deadline)
        with self._lock:
            return self._lookup.look_at_places(question, names, self._nodes)

    def remembered_places(self, question: PlaceCount, state: State) -> int | None:
        """The places in a state, None where they are not remembered."""
        with self._lock:
            return self._lookup.places(question, state)

    def remember_places(self, question: PlaceCount, state: State, places: int) -> None:
        """Remember the places in a state, as long as some node is in it."""
        with self._lock:
            self._lookup.remember_places(question, state, places)

    def _replaced(self, before: NodeFacts | None, after: NodeFacts, *, changed: bool) -> None:
        now = after if after.known else None
        self._domains.changed(before, now, after.name)
        if changed or before is None or not _counts_the_same(before, after):
            self._forget_totals(before, after)
            moved = before is None or now is None or not same_domains(before, after)
            self._news += moved or after.name in self._watched

    def _forget_totals(self, before: NodeFacts | None, after: NodeFacts) -> None:
        """A node has other places now, or is in other domains."""
        if self._racks.wanted:
            for facts in (before, after):
                self._racks.forget(domain_of(facts, NVLINK_DOMAIN) if facts is not None else None)
        for kind in self._lookup.totalled:
            for facts in (before, after):
                domain = domain_of(facts, kind) if facts is not None else None
                if domain is not None:
                    self._lookup.forget_total(kind, domain)


def _counts_the_same(before: NodeFacts, after: NodeFacts) -> bool:
    return before.node_object.cordoned == after.node_object.cordoned and same_domains(before, after)
