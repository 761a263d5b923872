"""Groups of pods: which members have a place, how many are still to come, and where they may go.

The members of a group are told by the pods themselves, so a restart forgets nothing. A member
*lives* where it is bound, or its bind is in flight, and it is neither ending nor ended; one that
has succeeded has come, and holds nothing. A group has *started* while a member lives: then its
domain is theirs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import inf
from typing import TypeVar, cast

from scheduler_extender.membership import NODE, NVLINK_DOMAIN, Group, Membership
from scheduler_extender.quantities import cut
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest, Policy

T = TypeVar("T")
NO_DOMAIN = Rejection(
    "the node is in no domain of the kind that group-domain names", False, Reason.GROUP
)
ELSEWHERE = Rejection("the pod's group is in another domain", False, Reason.GROUP)
SPLIT = Rejection(
    "the pod's group is in several domains, and most of it in another one", False, Reason.GROUP
)
ANOTHER_CHOSEN = Rejection("the pod's gang goes to another domain", True, Reason.GROUP)
TOO_SMALL = Rejection("the domain cannot hold the pod's whole group", True, Reason.GROUP)
NEVER = Rejection(
    "the domain could not hold the pod's whole group if it were empty", False, Reason.GROUP
)
NO_LONGER = Rejection(
    "the domain of the pod's group cannot hold the members that are still to come",
    True,
    Reason.GROUP,
)
KEPT = Rejection("the place is kept for members of another group", True, Reason.GROUP)
DISAGREE = Rejection(
    "members of the group differ in group-size or group-domain", False, Reason.GROUP
)
MOST_SKEW = 3600.0
"""Seconds by which the clocks of two replicas may differ."""
MICROSECOND = 1e-6
_OTHERS = f"{NODE} and {NVLINK_DOMAIN}"


def in_no_domain(kind: str, domains: Mapping[NodeName, str]) -> Rejection:
    """Why a node is refused that is in no domain of a kind, while ``domains`` has those of others.

    >>> in_no_domain("nodes", {}).reason
    'no node has the label nodes that group-domain names: did you mean node?'
    """
    if domains or kind in (NODE, NVLINK_DOMAIN):
        return NO_DOMAIN
    close = get_close_matches(kind.lower(), (NODE, NVLINK_DOMAIN), n=1)
    hint = f": did you mean {close[0]}?" if close else f" (without a label there are {_OTHERS})"
    words = f"no node has the label {cut(kind)} that group-domain names{hint}"
    return Rejection(words, False, Reason.GROUP)


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A group at one moment.

    ``living`` are its living members by node, ``succeeded`` how many have succeeded. ``says`` is
    what the living ones say of size and domain, None where nobody lives or they differ; then
    ``differ``. ``request`` is what the first of them asks for.
    """

    group: Group
    living: Mapping[NodeName, int] = field(default_factory=dict)
    succeeded: int = 0
    says: tuple[int | None, str | None] | None = None
    differ: bool = False
    request: GpuRequest | None = None

    def have_come(self, size: int | None) -> int:
        """Members that have or had a place, of a group of this size.

        As many as a whole group has, all of them succeeded, are of an earlier run whose pods are
        still there: nobody of this run.
        """
        succeeded = self.succeeded % size if size else self.succeeded
        return sum(self.living.values()) + succeeded

    @property
    def to_come(self) -> int:
        """Members that have none yet, as far as the group says how many there are."""
        size = self.says[0] if self.says is not None else None
        return 0 if size is None else max(0, size - self.have_come(size))

    @property
    def waits(self) -> bool:
        """Whether places have to be kept for it: it shares a domain, and members are to come."""
        domain, request = self.says[1] if self.says is not None else None, self.request
        bound = domain is not None and request is not None and request.policy is Policy.REQUIRED
        return bound and self.to_come > 0

    def agrees_with(self, member: Membership) -> bool:
        """Whether a pod says the same of the group as those that have come."""
        return not self.differ and self.says in (None, (member.size, member.domain))


def resource_asked(standing: GroupStanding) -> str:
    """The resource of the members; empty where nobody has told it."""
    return standing.request.resource if standing.request is not None else ""


def by_domain(standing: GroupStanding, domains: Mapping[NodeName, str]) -> Mapping[str, int]:
    """How many members of a group live in each domain."""
    found: Counter[str] = Counter()
    for name, count in standing.living.items():
        if name in domains:
            found[domains[name]] += count
    return found


def members_domain(standing: GroupStanding, domains: Mapping[NodeName, str]) -> str | None:
    """The domain of a group that has started, the one where most of its members live.

    Others may have bound them in several; then the largest part decides, and among equals the
    first by name. None where nobody lives in a domain.
    """
    found = by_domain(standing, domains)
    return min(found, key=lambda domain: (-found[domain], domain), default=None)


@dataclass(frozen=True, slots=True)
class GroupLook:
    """A group at one moment: how it stands, the domain of each node, how often a group had started,
    and how often members had changed (see :class:`Groups`)."""

    standing: GroupStanding
    domains: Mapping[NodeName, str]
    starts: int
    changes: int

    @property
    def domain_of(self) -> Callable[[str], str | None]:
        """Gives the domain of a node, None where it is in none."""
        return cast("Mapping[str, str]", self.domains).get


def _asks_for_most(request: GpuRequest) -> tuple[int, str]:
    """Sorts the request for most devices first; the others by their text."""
    return (-request.effective_count, request.text)


@dataclass(slots=True)
class _Kinds:
    """What the waiting members of one gang ask: how many of each kind, and the kinds in order."""

    counts: Counter[GpuRequest] = field(default_factory=Counter)
    in_order: list[GpuRequest] = field(default_factory=list)

    def add(self, request: GpuRequest) -> None:
        if request not in self.counts:
            insort(self.in_order, request, key=_asks_for_most)
        self.counts[request] += 1

    def remove(self, request: GpuRequest) -> None:
        self.counts[request] -= 1
        if not self.counts[request]:
            del self.counts[request]
            first = bisect_left(self.in_order, _asks_for_most(request), key=_asks_for_most)
            del self.in_order[self.in_order.index(request, first)]


@dataclass(slots=True)
class _Members:
    """The members of one group that have or had a place, counted as they come and go: however many
    there are, a change costs the same."""

    group: Group
    pods: dict[PodUid, PodRecord] = field(default_factory=dict)
    living: dict[PodUid, PodRecord] = field(default_factory=dict)
    by_node: Counter[NodeName] = field(default_factory=Counter)
    said: Counter[tuple[int | None, str | None]] = field(default_factory=Counter)
    succeeded: int = 0

    def put(self, pod: PodRecord) -> None:
        """A member has come, or has changed."""
        before = self.pods.get(pod.uid)
        if before is not None:
            self._count(before, -1)
        self.pods[pod.uid] = pod
        self._count(pod, 1)
        if lives(pod):
            self.living[pod.uid] = pod
        else:
            self.living.pop(pod.uid, None)

    def drop(self, uid: PodUid) -> None:
        """A member is gone."""
        self._count(self.pods.pop(uid), -1)
        self.living.pop(uid, None)

    def _count(self, pod: PodRecord, by: int) -> None:
        if not lives(pod):
            self.succeeded += by * (pod.phase == "Succeeded")
            return
        assert pod.node is not None and pod.membership is not None  # noqa: S101, PT018
        _add(self.by_node, pod.node, by)
        _add(self.said, (pod.membership.size, pod.membership.domain), by)

    def standing(self, but: Collection[PodUid] = ()) -> GroupStanding:
        """The group as it is now, without some of its pods. O(nodes with members)."""
        without = [self.pods[uid] for uid in but if uid in self.pods]
        for pod in without:
            self._count(pod, -1)
        others = (pod.request for uid, pod in self.living.items() if uid not in but)
        found = GroupStanding(
            self.group,
            dict(self.by_node),
            self.succeeded,
            next(iter(self.said)) if len(self.said) == 1 else None,
            len(self.said) > 1,
            next((asked for asked in others if isinstance(asked, GpuRequest)), None),
        )
        for pod in without:
            self._count(pod, 1)
        return found


def _add(counts: Counter[T], key: T, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


_Start = tuple[float, int, Group]
"""When a group has started, in seconds since 1970 and then in the order seen; sorts groups."""


class Groups:
    """The members of groups that have or had a place. The cluster's lock guards it.

    ``starts`` counts the times that a group has begun to live somewhere: a decision about a first
    member holds while nobody else has begun. ``changes`` counts the times that a member has come,
    has gone or has changed: what was counted of places fits to what was counted of members only
    while it stays. ``waits`` counts the same of groups that wait, or waited before it.

    Who has started first is told by what the binds have written, to the microsecond: so another
    replica finds the same order, whichever pod it sees first. Of two that have written the same
    time the first by name has started first. What starts under our eyes and writes no time comes
    after all of these.
    """

    def __init__(self) -> None:
        self._members: dict[Group, _Members] = {}
        self._of: dict[PodUid, Group] = {}
        self._expected: dict[PodUid, tuple[Group, GpuRequest]] = {}
        self._requests: dict[Group, _Kinds] = {}
        self._started: dict[Group, _Start] = {}
        self._latest = -inf
        self._standings: dict[Group, GroupStanding] = {}
        self._changed: set[Group] = set()
        self._waiting: set[Group] = set()
        self._in_order: tuple[GroupStanding, ...] = ()
        self.starts = 0
        self.changes = 0
        self.waits = 0

    def put(self, pod: PodRecord) -> None:
        """A pod is bound, or its bind is in flight, or it has changed."""
        self._expect_no_more(pod.uid)
        membership, former = pod.membership, self._of.get(pod.uid)
        if membership is None or pod.node is None or former not in (None, membership.group):
            self.drop(pod.uid)
        if membership is None or pod.node is None:
            return
        self._of[pod.uid] = membership.group
        group = membership.group
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = _Members(group)
        members.put(pod)
        self._settle(members, pod)

    def expect(self, pod: PodRecord) -> None:
        """A pod waits to be bound; of gangs it counts what such pods ask."""
        self._expect_no_more(pod.uid)
        gang = pod.membership is not None and pod.membership.gang
        if gang and isinstance(pod.request, GpuRequest) and not (pod.ended or pod.deleting):
            assert pod.membership is not None  # noqa: S101 (for the type checker)
            group = pod.membership.group
            self._expected[pod.uid] = (group, pod.request)
            self._requests.setdefault(group, _Kinds()).add(pod.request)

    def expected(
        self, group: Group, but: PodUid, besides: GpuRequest, most: int
    ) -> list[tuple[GpuRequest, int]]:
        """What the other members of a gang ask that wait to be bound, and how many each: at most so
        many kinds ``besides`` one, those that ask for most. O(``most``), however many there are."""
        kinds, ours = self._requests.get(group), self._expected.get(but)
        found: list[tuple[GpuRequest, int]] = []
        if kinds is None:
            return found
        for each in kinds.in_order:
            count = kinds.counts[each] - (ours == (group, each))
            if count and each != besides:
                found.append((each, count))
                if len(found) == most:
                    break
        return found

    def _expect_no_more(self, uid: PodUid) -> None:
        found = self._expected.pop(uid, None)
        if found is None:
            return
        group, request = found
        kinds = self._requests[group]
        kinds.remove(request)
        if not kinds.counts:
            del self._requests[group]

    def drop(self, uid: PodUid) -> None:
        """A pod is gone, or is on no node."""
        self._expect_no_more(uid)
        group = self._of.pop(uid, None)
        if group is not None:
            members = self._members[group]
            members.drop(uid)
            if not members.pods:
                del self._members[group]
            self._settle(members)

    def standing(self, group: Group, but: PodUid | None = None) -> GroupStanding:
        """The group as it is now, without one of its pods. O(1) where it has not changed since."""
        members = self._members.get(group)
        if members is None:
            return GroupStanding(group)
        if but is not None and but in members.pods:
            return members.standing((but,))
        found = self._standings.get(group)
        if found is None:
            found = self._standings[group] = members.standing()
        return found

    def waiting(self) -> tuple[GroupStanding, ...]:
        """The groups that have started and still wait for members, the first to start first.

        The very same as before while :attr:`waits` stays.
        """
        if not self._changed:
            return self._in_order
        before = self.waits
        for group in self._changed:
            waits = group in self._started and self.standing(group).waits
            self.waits += waits or group in self._waiting
            (self._waiting.add if waits else self._waiting.discard)(group)
        self._changed.clear()
        if self.waits != before:
            found = sorted(self._waiting, key=self._started.__getitem__)
            self._in_order = tuple(map(self.standing, found))
        return self._in_order

    def waiting_without(self, gone: Collection[PodUid]) -> tuple[GroupStanding, ...]:
        """The groups that would wait if some pods were gone, in the same order.

        The very same as those that wait now where nobody of them is in a group.
        """
        waiting = self.waiting()
        touched = {self._of[uid] for uid in gone if uid in self._of}
        if not touched:
            return waiting
        found = {standing.group: standing for standing in waiting}
        for group in touched:
            found[group] = self._members[group].standing(gone)
        return tuple(
            found[group]
            for group in sorted(found.keys() & self._started.keys(), key=self._started.__getitem__)
            if found[group].waits
        )

    def after_all_starts(self, today: float) -> float:
        """The time ``today``, or a microsecond after the last start where clocks of replicas
        differ, so that whoever starts now comes last for every replica.

        Starts that are more than :data:`MOST_SKEW` ahead do not count: someone made them up.
        O(groups).
        """
        known = (start for start, _, _ in self._started.values() if start <= today + MOST_SKEW)
        return max(today, max(known, default=-inf) + MICROSECOND)

    def _settle(self, members: _Members, pod: PodRecord | None = None) -> None:
        """A group has changed, by this pod where it is a member: whether it lives, since when, and
        what is remembered of it."""
        group = members.group
        self.changes += 1
        self._standings.pop(group, None)
        self._changed.add(group)
        if not members.living:
            self._started.pop(group, None)
            return
        placed = pod.placed if pod is not None and lives(pod) else None
        known = self._started.get(group)
        if known is None:
            self.starts += 1
            known = (self._latest, self.starts, group) if placed is None else (placed, 0, group)
        if placed is not None:
            known = min(known, (placed, 0, group))
        self._started[group] = known
        self._latest = max(self._latest, known[0])


def lives(pod: PodRecord) -> bool:
    """Whether a member counts as one that has its place."""
    return pod.node is not None and not pod.deleting and not pod.ended
