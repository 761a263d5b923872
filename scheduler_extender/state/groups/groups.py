"""Groups of pods: which members are placed, how many are still to come, and where they may go.

The pods themselves say which group they are in, so nothing is lost by a restart. A member *lives*
if it is bound or assumed, and neither terminating nor ended. A member that has succeeded counts as
having come, and holds nothing. A group has *started* while a member lives. The domain of the group
is then the domain of these members.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TypeVar

from scheduler_extender.groupreference import NODE, NVLINK_DOMAIN, Group, GroupReference
from scheduler_extender.quantities import cut
from scheduler_extender.state.groups.copyonwrite import CopyOnWrite
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest, Policy

T = TypeVar("T")
NO_DOMAIN = Rejection("the node is in no domain of the kind in group-domain", False, Reason.GROUP)
OFF_FABRIC = Rejection(
    "the node is in no NVLink domain: its NVLink fabric is not ready", False, Reason.GROUP
)
ELSEWHERE = Rejection("the pod's group is in another domain", False, Reason.GROUP)
GROUP_SPREAD = Rejection(
    "the pod's group is spread over several domains, and most of it is in another one",
    False,
    Reason.GROUP,
)
ANOTHER_CHOSEN = Rejection("the pod's gang is placed in another domain", True, Reason.GROUP)
TOO_SMALL = Rejection("the domain cannot hold the pod's whole group", True, Reason.GROUP)
NEVER = Rejection(
    "the domain is too small for the pod's whole group, even when empty", False, Reason.GROUP
)
NO_LONGER = Rejection(
    "the domain of the pod's group has no capacity for its remaining members",
    True,
    Reason.GROUP,
)
NO_ROOM_FOR_OTHERS = Rejection(
    "the pod would take GPUs that other members of its group need", True, Reason.GROUP
)
RESERVED_FOR_GROUP = Rejection("reserved for members of another group", True, Reason.GROUP)
DISAGREE = Rejection(
    "the members of the group disagree on group-size or group-domain", False, Reason.GROUP
)
MOST_SKEW = 3600.0  # seconds by which the clocks of two replicas may differ
MICROSECOND = 1e-6
_OTHERS = f"{NODE} and {NVLINK_DOMAIN}"


def in_no_domain(kind: str, domains: Mapping[str, str]) -> Rejection:
    """Return why a node that is in no domain of a kind is rejected.

    ``domains`` has the domains of the other nodes.

    >>> in_no_domain("nodes", {}).message
    'no node has the label nodes of group-domain: did you mean node?'
    """
    if domains or kind in (NODE, NVLINK_DOMAIN):
        return NO_DOMAIN
    close = get_close_matches(kind.lower(), (NODE, NVLINK_DOMAIN), n=1)
    hint = f": did you mean {close[0]}?" if close else f" (domains without a label are {_OTHERS})"
    words = f"no node has the label {cut(kind)} of group-domain{hint}"
    return Rejection(words, False, Reason.GROUP)


# When a group started, in seconds since 1970, then a number in the order seen. It sorts groups.
Start = tuple[float, int, Group]
NO_START: Start = (inf, 0, Group("", ""))


# The number of different requests of a group's waiting members that are told apart.
MOST_REQUESTS = 5

# Requests, and how many pods have each; those for most devices first.
Requests = tuple[tuple[GpuRequest, int], ...]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The status of a group at one generation.

    ``living`` counts its living members by node, and ``succeeded`` is how many have succeeded.
    ``says`` is the size and domain on which the living members agree; None if no member lives or if
    they differ. ``differ`` is True in the second case. ``request`` is the request of the first
    living member. ``asked`` are the requests of members that wait to be bound, with their numbers.
    ``tolerates_cordon`` says that the living members and those that wait may go to cordoned nodes.
    ``start`` is since when a member lives.
    """

    group: Group
    living: Mapping[NodeName, int] = field(default_factory=dict)
    succeeded: int = 0
    says: tuple[int | None, str | None] | None = None
    differ: bool = False
    request: GpuRequest | None = None
    asked: Requests = ()
    tolerates_cordon: bool = True
    start: Start = field(default=NO_START, compare=False)

    def have_come(self, size: int | None) -> int:
        """Return how many members are or were placed, in a group of this size.

        If the whole group has succeeded, these pods belong to an earlier run.
        """
        succeeded = self.succeeded % size if size else self.succeeded
        return sum(self.living.values()) + succeeded

    @property
    def to_come(self) -> int:
        """The number of members that are not placed yet; 0 if the group does not say its size."""
        size = self.says[0] if self.says is not None else None
        return 0 if size is None else max(0, size - self.have_come(size))

    @property
    def requests_to_come(self) -> Requests:
        """The requests of the members that are not placed yet.

        A member that does not exist yet counts as if it had the request of the first living one.
        """
        return requests_of(self.asked, self.to_come, self.request)

    @property
    def waits(self) -> bool:
        """Whether it needs reservations: it shares a domain, and members are still to come."""
        domain, request = self.says[1] if self.says is not None else None, self.request
        bound = domain is not None and request is not None and request.policy is Policy.REQUIRED
        return bound and self.to_come > 0

    def agrees_with(self, member: GroupReference) -> bool:
        """Check whether a pod says the same size and domain as the members that have come."""
        return not self.differ and self.says in (None, (member.size, member.domain))


def requests_of(known: Requests, number: int, other: GpuRequest | None) -> Requests:
    """Return the requests of this number of pods: the ``known`` ones, and ``other`` for the rest.

    Beyond :data:`MOST_REQUESTS` known ones, the rest counts as the last of these if it is larger.
    """
    counts, left = Counter[GpuRequest](), number
    if len(known) == MOST_REQUESTS:
        least = known[-1][0]
        other = min(least, other or least, key=_asks_for_most)
    for request, count in known:
        taken = min(count, left)
        counts[request] += taken
        left -= taken
    if other is not None:
        counts[other] += left
    return tuple(sorted(((+counts).items()), key=lambda each: _asks_for_most(each[0])))


def by_domain(status: GroupStatus, domains: Mapping[str, str]) -> Mapping[str, int]:
    """Return how many members of a group live in each domain."""
    counts: Counter[str] = Counter()
    for name, count in status.living.items():
        if name in domains:
            counts[domains[name]] += count
    return counts


def members_domain(status: GroupStatus, domains: Mapping[str, str]) -> str | None:
    """Return the domain in which most living members of a group are; None if none is in a domain.

    Other schedulers may have bound members in several domains. Of domains with equally many members
    the first by name counts.
    """
    counts = by_domain(status, domains)
    return min(counts, key=lambda domain: (-counts[domain], domain), default=None)


def _asks_for_most(request: GpuRequest) -> tuple[int, str]:
    """Return the sort key that puts the request for most devices first, then by text."""
    return (-request.effective_count, request.text)


class Members:
    """The members of one group, counted as they come and go.

    A change costs the same however many members there are. Once it is in a :class:`GroupsSeen`, the
    next change is made on a copy.
    """

    def __init__(self, group: Group, of: Members | None = None) -> None:
        self.group = group
        self.pods: dict[PodUid, PodRecord] = {}  # the placed members, and those that were placed
        self.start = NO_START  # while no member lives
        self._living: dict[PodUid, PodRecord] = {}
        self._by_node = Counter[NodeName]()
        # the size and domain that each living member says
        self._said = Counter[tuple[int | None, str | None]]()
        self._kept_off = 0  # the members, living or waiting, that a cordon keeps off a node
        self._succeeded = 0
        self._asked = Counter[GpuRequest]()  # the requests of members that wait to be bound
        self._in_order: list[GpuRequest] = []  # the same requests, sorted
        self._status: GroupStatus | None = None
        if of is not None:
            self.pods, self.start, self._living = dict(of.pods), of.start, dict(of._living)
            self._by_node, self._said = of._by_node.copy(), of._said.copy()
            self._succeeded, self._status = of._succeeded, of._status
            self._kept_off = of._kept_off
            self._asked, self._in_order = of._asked.copy(), list(of._in_order)

    @property
    def lives(self) -> bool:
        """Whether a member is placed."""
        return bool(self._living)

    @property
    def empty(self) -> bool:
        """Whether the group has no members any more."""
        return not self.pods and not self._asked

    def put(self, pod: PodRecord) -> None:
        """Add or replace a member."""
        self._status = None
        before = self.pods.get(pod.uid)
        if before is not None:
            self._count(before, -1)
        self.pods[pod.uid] = pod
        self._count(pod, 1)
        if lives(pod):
            self._living[pod.uid] = pod
        else:
            self._living.pop(pod.uid, None)

    def drop(self, uid: PodUid) -> None:
        """Remove a member."""
        self._status = None
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._count(pod, -1)
            self._living.pop(uid, None)

    def _count(self, pod: PodRecord, by: int) -> None:
        if not lives(pod):
            self._succeeded += by * (pod.phase == "Succeeded")
            return
        assert pod.node is not None and pod.group_ref is not None  # noqa: S101, PT018
        _add(self._by_node, pod.node, by)
        _add(self._said, (pod.group_ref.size, pod.group_ref.domain), by)
        self._count_tolerations(pod, by)

    def _count_tolerations(self, pod: PodRecord, by: int) -> None:
        self._kept_off += by * (not pod.attributes.eligible_nodes.tolerate_cordon)

    def expect(self, pod: PodRecord, request: GpuRequest) -> None:
        """Count one more pod with this request that waits to be bound."""
        self._status = None
        if request not in self._asked:
            insort(self._in_order, request, key=_asks_for_most)
        self._asked[request] += 1
        self._count_tolerations(pod, 1)

    def expect_no_more(self, pod: PodRecord, request: GpuRequest) -> None:
        """Count one pod less with this request that waits to be bound."""
        self._status = None
        self._count_tolerations(pod, -1)
        _add(self._asked, request, -1)
        if request not in self._asked:
            first = bisect_left(self._in_order, _asks_for_most(request), key=_asks_for_most)
            del self._in_order[self._in_order.index(request, first)]

    def expected(
        self, but: GpuRequest | None, besides: GpuRequest | None, most: int
    ) -> list[tuple[GpuRequest, int]]:
        """Return the requests of members that wait to be bound, and how many pods have each.

        Return at most ``most`` requests, those for most devices, and leave ``besides`` out. One pod
        with the request ``but`` is not counted. O(``most``), however many members there are.
        """
        counts = ((each, self._asked[each] - (each == but)) for each in self._in_order)
        return list(islice((e for e in counts if e[1] and e[0] != besides), most))

    def group_status(self, but: Collection[PodUid] = ()) -> GroupStatus:
        """Return the status of the group without some of its pods.

        O(nodes with members); O(1) without ``but`` if nothing has changed.
        """
        if not but and self._status is not None:
            return self._status
        counted = self
        if not self.pods.keys().isdisjoint(but):
            counted = Members(self.group, self)
            for uid in but:
                counted.drop(uid)
        requests = (pod.request for pod in counted._living.values())
        status = GroupStatus(
            self.group,
            dict(counted._by_node),
            counted._succeeded,
            next(iter(counted._said)) if len(counted._said) == 1 else None,
            len(counted._said) > 1,
            next((asked for asked in requests if isinstance(asked, GpuRequest)), None),
            tuple(counted.expected(None, None, MOST_REQUESTS)),
            not counted._kept_off,
            self.start,
        )
        if counted is self:
            self._status = status
        return status


_start_of = attrgetter("start")


def _add(counts: Counter[T], key: T, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


@dataclass(frozen=True, slots=True)
class GroupsSeen:
    """All groups at one generation."""

    members: Mapping[Group, Members] = field(default_factory=dict)
    waiting: tuple[GroupStatus, ...] = ()  # started and not complete, the first to start first
    starts: int = 0  # counts how often a group has started
    waits: int = 0  # counts how often the waiting groups have changed

    def group_status(self, group: Group, but: PodUid | None = None) -> GroupStatus:
        """Return the status of a group, without the pod ``but`` if one is given."""
        members = self.members.get(group)
        if members is None:
            return GroupStatus(group)
        return members.group_status((but,) if but in members.pods else ())

    def waiting_without(self, gone: Collection[PodRecord]) -> tuple[GroupStatus, ...]:
        """Return the groups that would wait if some pods were gone, in the same order.

        Return the very same tuple as :attr:`waiting` if none of these pods is in a group.
        """
        touched = {pod.group_ref.group for pod in gone if pod.group_ref is not None}
        touched &= self.members.keys()
        if not touched:
            return self.waiting
        uids = frozenset(pod.uid for pod in gone)
        statuses = {status.group: status for status in self.waiting}
        statuses |= {group: self.members[group].group_status(uids) for group in touched}
        return tuple(sorted((each for each in statuses.values() if each.waits), key=_start_of))

    def after_all_starts(self, today: float) -> float:
        """Return ``today``, or a microsecond after the last start if the clocks of replicas differ.

        So a group that starts now comes last for every replica. Starts that are more than
        :data:`MOST_SKEW` ahead do not count, because they must be forged. O(groups).
        """
        starts = (each.start[0] for each in self.members.values())
        known = (start for start in starts if start <= today + MOST_SKEW)
        return max(today, max(known, default=-inf) + MICROSECOND)


class Groups:
    """The members of all groups. The cache's lock guards it.

    The times that the binds have written, to the microsecond, decide which group started first. So
    another replica finds the same order, in whatever order it sees the pods. Of two groups with the
    same time the first by name comes first. A group that starts while we watch, and whose bind
    writes no time, comes after all of these.
    """

    def __init__(self) -> None:
        self._members = CopyOnWrite[Group, Members]()
        self._private: set[Group] = set()  # groups whose members are not yet shared with a snapshot
        self._of: dict[PodUid, Group] = {}
        self._expected: dict[PodUid, tuple[Group, PodRecord, GpuRequest]] = {}
        self._expectations_changed: set[Group] = set()
        self._latest = -inf
        self._since: dict[Group, Start] = {}  # of the waiting groups
        self._waiting: list[GroupStatus] = []  # the same groups, the first to start first
        self._starts = self._waits = 0

    def put(self, pod: PodRecord) -> None:
        """Count a pod as placed in its group: it is bound or assumed, or has changed."""
        group_ref, former = pod.group_ref, self._of.get(pod.uid)
        if former is not None and (group_ref is None or former != group_ref.group):
            self.drop(pod.uid)
        else:
            self._expect_no_more(pod.uid)
        if group_ref is not None and pod.node is not None:
            self._of[pod.uid] = group_ref.group
            members = self._own(group_ref.group)
            members.put(pod)
            self._settle(members, pod)

    def expect(self, pod: PodRecord) -> None:
        """Count a pod that waits to be bound."""
        self._expect_no_more(pod.uid)
        group_ref, request = pod.group_ref, pod.request
        if pod.ended or pod.terminating or group_ref is None or not isinstance(request, GpuRequest):
            return
        group = group_ref.group
        self._expected[pod.uid] = (group, pod, request)
        self._expectations_changed.add(group)
        self._own(group).expect(pod, request)

    def _expect_no_more(self, uid: PodUid) -> None:
        expected = self._expected.pop(uid, None)
        if expected is not None:
            group, pod, request = expected
            members = self._own(group)
            self._expectations_changed.add(group)
            members.expect_no_more(pod, request)
            if members.empty:
                self._members.drop(group)

    def drop(self, uid: PodUid) -> None:
        """Remove a pod that is gone, or that is on no node."""
        self._expect_no_more(uid)
        group = self._of.pop(uid, None)
        if group is not None:
            members = self._own(group)
            members.drop(uid)
            if members.empty:
                self._members.drop(group)
            self._settle(members)

    def seen(self) -> GroupsSeen:
        """Return all groups as they are now.

        The lock is held meanwhile. So everything about a group is computed when the group changes,
        and not here. The requests of waiting members alone are counted here, because a source may
        show the same pod many times between two snapshots.
        """
        for group in self._expectations_changed & self._since.keys():
            members, since = self._members.get(group), self._since[group]
            former = self._waiting[bisect_left(self._waiting, since, key=_start_of)]
            if members is not None and members.group_status() != former:
                self._settle(members)
        self._expectations_changed.clear()
        self._private.clear()
        waiting = tuple(self._waiting)
        return GroupsSeen(self._members.copied(), waiting, self._starts, self._waits)

    def _own(self, group: Group) -> Members:
        """Return the members of a group as a copy that may be changed."""
        known = self._members.get(group)
        if known is None or group not in self._private:
            known = Members(group, known)
            self._private.add(group)
        self._members.put(group, known)
        return known

    def _settle(self, members: Members, pod: PodRecord | None = None) -> None:
        """Update the start and the waiting of a group that has changed.

        ``pod`` is the member that has changed, if there is one. O(log groups), except for moving
        the groups behind it in the list.
        """
        if members.lives:
            self._note_start(members, pod)
        else:
            members.start = NO_START
        status, former = members.group_status(), self._since.pop(members.group, None)
        self._waits += status.waits or former is not None
        if former is not None:
            del self._waiting[bisect_left(self._waiting, former, key=_start_of)]
        if status.waits:
            self._since[members.group] = status.start
            insort(self._waiting, status, key=_start_of)

    def _note_start(self, members: Members, pod: PodRecord | None) -> None:
        placed = pod.placed if pod is not None and lives(pod) else None
        written = None if placed is None else (placed, 0, members.group)
        if members.start is NO_START:
            self._starts += 1
            members.start = written or (self._latest, self._starts, members.group)
        elif written is not None:
            members.start = written if members.start[1] else min(members.start, written)
        self._latest = max(self._latest, members.start[0])


def lives(pod: PodRecord) -> bool:
    """Check whether a member counts as placed."""
    return pod.node is not None and not pod.terminating and not pod.ended
