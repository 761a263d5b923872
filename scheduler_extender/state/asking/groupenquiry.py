"""Asks where a member of a group may go, among the nodes that would take it by themselves.

1. A group that has started goes to the domain in which most of its members live.
2. A group that has not may start in each domain that has a place for every member. The places on a
   node are those that it surely gives one after the other (:func:`.decision.places`).
3. For other groups that have started and still wait for members, places are *kept*: on certain
   nodes of their domain, as if these members were bound there. They are kept group by group, the
   first to start first, on the nodes with most places, so that all groups see the same ones.
4. A gang that has not started goes to one domain, the best: its scheduler asks about all members
   before it binds the first, and nobody tells us where the others went. For the same reason it
   takes nothing of a node that it could leave too small for a place that is kept there. So does a
   gang that names no domain: it may go to any other node.

The best domain is the one with the fewest places left over, and among equals the first by name: so
racks that are in use fill up, and whole ones stay whole. Where domains are single nodes, those
whose rack is in use come before those whose rack is whole (:mod:`.racks`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scheduler_extender.deadline import NO_DEADLINE, Deadline, OutOfTimeError, within
from scheduler_extender.limits import AT_ONCE_KEPT, AT_ONCE_SECONDS
from scheduler_extender.membership import MAX_SIZE, NODE
from scheduler_extender.state.answers.remembered import PlaceCount
from scheduler_extender.state.asking.members import Member
from scheduler_extender.state.asking.placecounter import PlaceCounter
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.groups.gangdomains import ANYWHERE, Direction
from scheduler_extender.state.groups.groups import (
    ANOTHER_CHOSEN,
    DISAGREE,
    ELSEWHERE,
    KEPT,
    NEVER,
    NO_LONGER,
    SPLIT,
    TOO_SMALL,
    GroupLook,
    by_domain,
    in_no_domain,
    members_domain,
)
from scheduler_extender.state.groups.keeping import (
    Keeping,
    Share,
    Where,
    keep,
    kept_for,
    without_node,
)
from scheduler_extender.state.node.arrivals import Arrivals, with_arrivals
from scheduler_extender.state.node.facts import NodeFacts
from scheduler_extender.state.node.offer import Offer
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Rejection, always_met
from topology.core.requests import NO_CONSTRAINTS, GpuRequest

TRIES = 3
"""How often a group is asked while members come and go; then it is asked with the lock held."""


@dataclass(slots=True)
class Gathering:
    """What a member's group says about nodes that would take it by themselves.

    ``alike`` has the nodes by what is said of them; None of those to which it may go. ``domains``
    has the domain of each node in the order asked, and ``best`` is the best one that can hold the
    group. ``late`` says that something was not worked out, and ``starts`` is the look's (see
    :class:`.groups.Groups`). ``keeps`` says that places are kept for groups. ``settled`` says that
    no member came or went meanwhile, or that it does not matter.
    """

    alike: dict[Rejection | None, list[str]] = field(default_factory=dict)
    domains: list[str | None] = field(default_factory=list)
    best: str | None = None
    late: bool = False
    starts: int = 0
    keeps: bool = False
    settled: bool = False

    @property
    def refuses(self) -> bool:
        """Whether there are nodes that it must not go to."""
        return any(why is not None and names for why, names in self.alike.items())

    @property
    def rejections(self) -> dict[str, Rejection]:
        """The nodes that it must not go to, and why."""
        refused = ((why, names) for why, names in self.alike.items() if why is not None)
        return {name: why for why, names in refused for name in names}


def gather(
    cluster: Cluster,
    member: Member,
    passing: Sequence[str],
    deadline: Deadline = NO_DEADLINE,
    *,
    instead: Mapping[NodeName, NodeFacts] | None = None,
    alone: bool = False,
    direction: Direction = ANYWHERE,
    gone: frozenset[PodUid] = frozenset(),
) -> Gathering:
    """What the group says about the nodes that are ``passing`` by themselves.

    ``instead`` has facts that some nodes are to be counted with, in place of their own. With
    ``alone`` only the member itself needs a place, and none of those that come after it.
    ``direction`` is where a gang that has not started is sent. ``gone`` are pods that are not in
    the facts ``instead``: the groups are asked as they will be without them, when they are owed a
    place for each. A place that is kept for a member of the group is a place of the group. Members
    of a gang are bound at the same time, and each takes a place that another has counted. So a
    refusal counts only if no member has come or gone meanwhile. After some tries the lock of the
    cluster is held, for :data:`.AT_ONCE_SECONDS` at a time; what is left over then is worked out
    without it, and the answer is late where that never ends.
    """

    def ask(deadline: Deadline) -> Gathering:
        look = cluster.look_at_group(member.membership, member.uid, deadline)
        counted = {**_with_own_places(cluster, member), **(instead or {})}
        deadline.need_quick(not counted)
        counter = PlaceCounter(cluster, deadline)
        asking = _Gatherer(cluster, member, look, counter, deadline, counted, alone, direction)
        if gone:
            asking.suppose(gone, instead or {})
        found = asking.through(passing)
        found.late = counter.late
        found.settled = not found.refuses or look.changes == cluster.group_changes
        return found

    for attempt in range(TRIES * 2):
        found = ask(deadline)
        if found.late or found.settled:
            return found
        if attempt >= TRIES - 2:
            with cluster.locked():
                found = ask(within(cluster.clock, AT_ONCE_SECONDS))
            if not found.late:
                return found
    found.late = True
    return found


def kept_elsewhere(cluster: Cluster, member: Member, name: NodeName, deadline: Deadline) -> bool:
    """Whether all places that are kept for other groups can be kept on other nodes than this one.

    Places are kept where most are free, so what a gang's first members take may move those of
    another group to a node that its scheduler has chosen for a later member. The gang is to be
    bound whole, so they move on, if they can. What there is no time for counts as no.
    """
    counter = PlaceCounter(cluster, deadline)
    waiting = cluster.waiting_look(deadline=deadline)
    group = member.membership.group
    try:
        now = kept_for(keep(without_node(waiting, NodeName("")), counter.count))
        then = kept_for(keep(without_node(waiting, name), counter.count))
    except OutOfTimeError:
        return False
    return all(then[other] >= places for other, places in now.items() if other != group)


def _with_own_places(cluster: Cluster, member: Member) -> dict[NodeName, NodeFacts]:
    """The nodes on which places are kept for members of the group, as they are without them."""
    found = {}
    for pod in cluster.pods_with_places():
        ours = pod.membership is not None and pod.membership.group == member.membership.group
        for node in cluster.places_of(pod.uid) if ours else ():
            found[node] = cluster.facts(node).without(frozenset({pod.uid}))
    return found


class _Gatherer:
    """One call of :func:`gather`."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member,
        look: GroupLook,
        counter: PlaceCounter,
        deadline: Deadline,
        instead: Mapping[NodeName, NodeFacts],
        alone: bool,
        direction: Direction,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._look = look
        self._counter = counter
        self._deadline = deadline
        self._instead = instead
        self._alone = alone
        self._direction = direction
        self._found = Gathering(starts=look.starts)
        self._nothing_left: set[NodeName] = set()
        self._kept = counter.kept

    def suppose(self, gone: frozenset[PodUid], instead: Mapping[NodeName, NodeFacts]) -> None:
        """Keep places for other groups as if these pods were gone."""
        self._kept = partial(self._counter.kept_if, gone, instead)

    def through(self, passing: Sequence[str]) -> Gathering:
        """What is done for each of thousands of nodes is a look-up by its domain."""
        membership, found = self._member.membership, self._found
        standing = self._look.standing
        if membership.domain is None:
            return self._anywhere(passing)
        if not standing.agrees_with(membership):
            found.alike, found.domains = {DISAGREE: list(passing)}, [None] * len(passing)
            return found
        domains = list(map(self._look.domain_of, passing))
        at = members_domain(standing, self._look.domains)
        several = len(by_domain(standing, self._look.domains)) > 1
        offered = {domain for domain in domains if domain is not None}
        said: dict[str | None, Rejection | None] = {
            **dict.fromkeys(offered, SPLIT if several else ELSEWHERE),
            None: in_no_domain(membership.domain or NODE, self._look.domains),
        }
        candidates = offered if at is None else offered & {at}
        keeping = self._kept() if candidates else Keeping(None)
        if self._counter.late:
            found.domains = domains  # nothing is known of any node
            return found
        found.keeps = bool(keeping.kept)
        ranked = self._ranked(candidates, keeping, said, at)
        put = {domain: found.alike.setdefault(why, []).append for domain, why in said.items()}
        for note, name in zip(map(put.__getitem__, domains), passing, strict=True):
            note(name)
        full = self._nothing_left.intersection(found.alike.get(None, ()))
        if full:
            found.alike[None] = [name for name in found.alike[None] if name not in full]
            found.alike[KEPT] = [name for name in passing if name in full]
        found.domains, found.best = domains, ranked[0] if ranked else None
        return found

    def _anywhere(self, passing: Sequence[str]) -> Gathering:
        """A gang without a domain goes to each node on which nothing is kept for others, or so much
        is left that all its members may come."""
        found, keeping = self._found, self._kept()
        found.domains = [None] * len(passing)
        if keeping.kept:
            question = self._question()
            self._taken(question, keeping, ("", ""), list(keeping.kept))
            for facts in self._instead.values():
                self._left_on(question, keeping, facts)
        if self._counter.late:
            return found
        full = self._nothing_left
        found.alike = {
            None: [name for name in passing if name not in full],
            KEPT: [name for name in passing if name in full],
        }
        return found

    def _ranked(
        self,
        candidates: Collection[str],
        keeping: Keeping,
        said: dict[str | None, Rejection | None],
        at: str | None,
    ) -> list[str]:
        """The candidates that can hold the members to come, the best first; what is ``said`` of
        each."""
        membership = self._member.membership
        needed, rank = self._needed(), self._direction.rank
        left = {domain: n - needed for domain, n in self._totals(candidates, keeping).items()}
        able = [domain for domain, n in left.items() if n >= 0]
        rooms = self._rack_rooms(able)
        able.sort(key=lambda d: (rank(d), rooms.get(d, 0), left[d], d))
        said |= dict.fromkeys(candidates, TOO_SMALL if at is None else NO_LONGER)
        said |= dict.fromkeys(self._hopeless([d for d, n in left.items() if n < 0]), NEVER)
        said |= dict.fromkeys(able, ANOTHER_CHOSEN if membership.gang else None)
        if at is None and self._direction.domain is not None:
            able = [domain for domain in able if domain == self._direction.domain]
        if able:
            said[able[0]] = None
        return able

    def _hopeless(self, domains: Sequence[str]) -> list[str]:
        """Of domains that cannot hold the members to come those that could not if they were empty:
        there is nobody whose eviction would help."""
        if not domains:
            return []
        question, needed = self._question(), self._needed()
        inside = self._cluster.facts_within(self._member.membership.domain or "", domains)
        self._deadline.need_quick(sum(map(len, inside.values())) <= AT_ONCE_KEPT)
        return [
            d for d, each in inside.items() if not self._counter.could_hold(question, each, needed)
        ]

    def _rack_rooms(self, domains: Sequence[str]) -> dict[str, int]:
        """What is left of the racks of domains that are single nodes: whole ones are broken last.

        A gang's members are all sent to one node, and bound later. What becomes of other nodes of
        the rack meanwhile shall not make that another one.
        """
        membership = self._member.membership
        if membership.gang or membership.domain != NODE:
            return {}
        rooms = self._cluster.rack_rooms(self._member.request.resource, domains)
        return dict(zip(domains, rooms, strict=True)) if rooms is not None else {}

    def _needed(self) -> int:
        """How many members need a place, this one among them."""
        to_come = self._size - self._look.standing.have_come(self._member.membership.size)
        return 1 if self._alone else max(1, to_come)

    @property
    def _size(self) -> int:
        """How many members the group has; where nobody says how many of a gang there are, as many
        as a gang may have."""
        membership = self._member.membership
        if membership.domain is None and not membership.siblings_counted:
            return MAX_SIZE
        return membership.size or 1

    def _scattered(self) -> int:
        """How many members may come to any node that passes; 0 where they come one by one."""
        return self._needed() if self._member.membership.gang and not self._alone else 0

    def _question(self) -> PlaceCount:
        request = self._member.request.alone if self._alone else self._member.request
        return PlaceCount(request, self._size)

    def _totals(self, candidates: Collection[str], keeping: Keeping) -> dict[str, int]:
        """The places in each domain, beside those that are kept for others."""
        kind, question = self._member.membership.domain or "", self._question()
        totals = self._counter.totals(question, kind, candidates)
        if keeping.kept:
            inside = keeping.by_domain(kind, self._look.domains)
            for domain in totals.keys() & inside.keys():
                totals[domain] -= self._taken(question, keeping, (kind, domain), inside[domain])
        for name, facts in self._instead.items():
            at = self._look.domains.get(name)
            if at is not None and at in totals:
                if self._cluster.not_cordoned([name]):
                    totals[at] -= self._counter.remembered(question, [name])[name]
                totals[at] += self._left_on(question, keeping, facts)
        return totals

    def _left_on(self, question: PlaceCount, keeping: Keeping, facts: NodeFacts) -> int:
        """The places on a node of these facts, beside those that are kept for others."""
        beside = keeping.beside(facts.name, self._member.membership.group)
        places = self._counter.places(with_arrivals(facts, beside), question)
        if beside and self._may_spoil(question.request, beside, [facts]):
            before = self._counter.places(facts, question)
            places = 0 if places < min(before, self._scattered()) else places
        if beside and not places:
            self._nothing_left.add(facts.name)
        return places

    def _taken(
        self, question: PlaceCount, keeping: Keeping, where: Where, names: Sequence[NodeName]
    ) -> int:
        """How many places kept ones take from the nodes of a domain that have any. Those that are
        counted with other facts are left out."""
        (kind, domain), group = where, self._member.membership.group
        known = keeping.shares_of(question, kind, group, self._scattered())
        if not self._instead.keys().isdisjoint(names):
            known, names = {}, [name for name in names if name not in self._instead]
        share = known.get(domain)
        if share is None:
            self._deadline.need_quick(len(names) <= AT_ONCE_KEPT)
            share = self._share(question, keeping.by_beside(names, group))
            if not self._counter.late:
                known[domain] = share
        self._nothing_left |= share.nothing_left
        return share.fewer

    def _share(
        self, question: PlaceCount, kept: Mapping[tuple[Arrivals, ...], Sequence[NodeName]]
    ) -> Share:
        """What kept places take from nodes, which are by what is kept on them."""
        fewer, full = 0, set[NodeName]()
        for beside, names in kept.items():
            before = self._counter.remembered(question, names)
            if not any(before.values()):
                full.update(names)
                continue
            after = self._counter.remembered(replace(question, kept=beside), names)
            if self._may_spoil(question.request, beside, map(self._cluster.facts, names)):
                most = self._scattered()
                after = {n: 0 if k < min(before[n], most) else k for n, k in after.items()}
            fewer += sum(before.values()) - sum(after.values())
            full |= {name for name in names if not after[name]}
        return Share(fewer, frozenset(full))

    def _may_spoil(
        self, request: GpuRequest, beside: Iterable[Arrivals], nodes: Iterable[NodeFacts]
    ) -> bool:
        """Whether it depends on where the members of a gang go if these places are left elsewhere.

        Of two trays with four free GPUs each, five members with one GPU may leave a pair on one, or
        one GPU on the one and two on the other. As many are left in any case where a member takes
        the GPUs of one or more such places, and all GPUs of the nodes are alike to who waits; and
        where the gang comes one by one.
        """
        each, resource = request.effective_count, request.resource
        if not self._scattered():
            return False
        if self._member.membership.domain is None:
            return True  # nobody adds up what it leaves on other nodes
        alike = [arrivals for arrivals in beside if arrivals.request.resource == resource]
        if any(each % max(1, arrivals.request.effective_count) for arrivals in alike):
            return True
        wanted = {arrivals.promised for arrivals in alike} - {NO_CONSTRAINTS}
        offers = [facts.last_offer(resource) for facts in nodes] if wanted else ()
        kubelets = {offer.kubelet for offer in offers if isinstance(offer, Offer)}
        return any(not always_met(k.shape, found, k.replicas) for k in kubelets for found in wanted)
