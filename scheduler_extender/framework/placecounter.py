"""Counts places in domains and on nodes: how many members of a group surely fit there.

What has been counted is remembered, by state and by domain; here is worked out what is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from scheduler_extender.deadline import Deadline, OutOfTimeError
from scheduler_extender.framework.decision import places as surely_taken
from scheduler_extender.framework.equivalence import states_of, tried
from scheduler_extender.membership import MAX_SIZE, Group
from scheduler_extender.state.answers.answercache import PlaceCount
from scheduler_extender.state.answers.classes import State
from scheduler_extender.state.cluster.snapshot import Snapshot
from scheduler_extender.state.groups.groupplaces import (
    Alike,
    GroupPlaces,
    alike_nodes,
    keep,
    kept_for,
    merged,
    placed_groups,
)
from scheduler_extender.state.groups.groups import GroupStanding, resource_asked
from scheduler_extender.state.node.arrivals import with_arrivals
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.placement import Rejection
from topology.core.placement.constraints import compiled
from topology.core.placement.rejections import hardware_rejection
from topology.core.requests import GpuRequest


class PlaceCounter:
    """Counts for one question until its deadline; ``late`` says from then on that something was not
    counted."""

    def __init__(self, snapshot: Snapshot, deadline: Deadline) -> None:
        self._snapshot = snapshot
        self._deadline = deadline
        self.late = False
        self.unknown = False  # whether the state of a node could not be found

    def totals(
        self, question: PlaceCount, kind: str, candidates: Collection[str]
    ) -> dict[str, int]:
        """The places in each domain by itself. Cordoned nodes have none."""
        snapshot, base = self._snapshot, self._snapshot.base or self._snapshot
        domains = base.domains(kind)
        totals = snapshot.answers.sums(question, kind, candidates, domains.of, base.moment)
        nodes = {d: _open(base, domains.nodes[d]) for d in candidates if d not in totals}
        former = PlaceCounter(base, self._deadline)
        if nodes:
            each = former.on(question, [name for names in nodes.values() for name in names])
            sums = {domain: sum(map(each.__getitem__, names)) for domain, names in nodes.items()}
            totals |= sums
            if not former.late and not former.unknown:
                snapshot.answers.remember_sums(question, kind, sums, nodes, base.moment)
        for name in snapshot.own:
            domain = domains.of.get(name)
            if domain is not None and domain in totals:
                before = sum(former.on(question, _open(base, [name])).values())
                totals[domain] += sum(self.on(question, _open(snapshot, [name])).values()) - before
        self.late |= former.late
        return totals

    def on(self, question: PlaceCount, names: Sequence[NodeName]) -> dict[NodeName, int]:
        """The places on each of some nodes, worked out where they are not remembered."""
        states, _ = states_of(self._snapshot, question.request.resource, names, self._deadline)
        if None in states:
            self.unknown = True
            self.late |= self._deadline.passed()
        known: dict[State | None, int] = {None: 0}
        for name, state in zip(names, states, strict=True):
            if state is not None and state not in known:
                known[state] = self._in_state(state, self._snapshot.facts(name), question)
        return dict(zip(names, map(known.__getitem__, states), strict=True))

    def _in_state(self, state: State, facts: NodeFacts, question: PlaceCount) -> int:
        """The places on a node in this state; none once the time is up, and where counting
        fails."""
        snapshot, request, most = self._snapshot, question.request, question.most
        places = snapshot.answers.places(question, state)
        self.late |= places is None and self._deadline.passed()
        if places is not None or self.late:
            return places or 0
        try:
            with self._deadline.enforced():
                beside = with_arrivals(facts, question.kept)
                args = beside, request, snapshot.settings, most
                places = tried(snapshot, facts, surely_taken, *args) or 0
        except OutOfTimeError:
            self.late = True
            return 0
        snapshot.answers.remember_places(question, state, places)
        return places

    # Places that are kept for groups.

    def kept(self) -> GroupPlaces:
        """The places that are kept for groups, worked out where they are not remembered.

        Anybody may start groups that never end, over all nodes: where each asks for something else
        that takes time.
        """
        snapshot = self._snapshot.base or self._snapshot
        if not snapshot.groups.waiting:
            return GroupPlaces()
        key = (snapshot.groups.waits, snapshot.moves)
        kept = snapshot.group_places.get(key, snapshot.moment)
        if kept is None:
            kept = self._keep(snapshot, snapshot.groups.waiting)
            if not self.late:
                snapshot.group_places.put(key, kept, kept.nodes, snapshot.moment)
        return kept

    def kept_if(self, gone: Collection[PodRecord]) -> GroupPlaces:
        """The places that would be kept if these pods were gone, and nodes as they would be then:
        their groups wait for others in their place."""
        snapshot, base, now = self._snapshot, self._snapshot.base or self._snapshot, self.kept()
        waiting = base.groups.waiting_without(gone)
        as_now = waiting is base.groups.waiting and snapshot.own.isdisjoint(now.nodes)
        return now if as_now else self._keep(snapshot, waiting)

    def kept_elsewhere(self, name: NodeName, group: Group) -> bool:
        """Whether all places that are kept for other groups can be kept on other nodes than this
        one. What there is no time for counts as no."""
        waiting = self._snapshot.groups.waiting
        now = kept_for(self._keep(self._snapshot, waiting))
        then = kept_for(self._keep(self._snapshot, waiting, but=name))
        return not self.late and all(
            then[other] >= places for other, places in now.items() if other != group
        )

    def _keep(
        self, snapshot: Snapshot, waiting: Sequence[GroupStanding], but: NodeName | None = None
    ) -> GroupPlaces:
        """The places that are kept for groups that wait; none on one node."""
        base = snapshot.base or snapshot
        placed = placed_groups(waiting, base.by_name)
        domains = {
            (kind, domain): base.domains(kind).nodes.get(domain, ()) for _, (kind, domain) in placed
        }
        names = sorted(frozenset().union(*domains.values()) - {but})
        states: dict[str, dict[NodeName, State | None]] = {}
        for resource in dict.fromkeys(resource_asked(standing) for standing, _ in placed):
            of_each, _ = states_of(snapshot, resource, names, self._deadline)
            states[resource] = dict(zip(names, of_each, strict=True))
        nodes = {name: facts for name in names if (facts := snapshot.by_name.get(name)) is not None}
        try:
            kept = keep(placed, alike_nodes(domains, nodes, states), self._count)
        except OutOfTimeError:
            self.late = True
            return GroupPlaces()
        return replace(kept, nodes=frozenset(names))

    def _count(self, alike: Alike, request: GpuRequest) -> int:
        """The places on each of some nodes that are alike. Raises :class:`OutOfTimeError`."""
        state = alike.states[request.resource]
        if state is None:
            return 0
        places = self._in_state(
            state, alike.facts, PlaceCount(request, MAX_SIZE, merged(alike.kept))
        )
        if self.late:
            raise OutOfTimeError
        return places

    def could_hold(self, request: GpuRequest, nodes: Iterable[NodeFacts], members: int) -> bool:
        """Whether nodes may have places for so many members once some of their pods have gone.

        Yes where it is too late to count, or counting fails, and where a node with such devices has
        not reported.
        """
        for facts in nodes:
            if self.late or self._deadline.passed():
                self.late = True
                return True
            most = tried(self._snapshot, facts, _most, facts, request)
            members -= MAX_SIZE if most is None else most
            if members <= 0 or (
                facts.topology is None and facts.node_object.pieces(request.resource)
            ):
                return True
        return False


def _open(snapshot: Snapshot, names: Iterable[NodeName]) -> list[NodeName]:
    """The nodes that are not cordoned."""
    return [name for name in names if not snapshot.facts(name).node_object.cordoned]


def _most(facts: NodeFacts, request: GpuRequest) -> int:
    """At most how many pods of this request a node could hold at once, whoever leaves it.

    What an empty node *surely* takes is no such bound. It may take more where some of its GPUs are
    held, since then the pod can only get those that are left. So the hardware is counted, for pods
    that are handed the best of it. None on a node without a usable record.
    """
    offer = facts.last_offer(request.resource)
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
