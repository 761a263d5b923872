"""Groups of pods: which members have a place, how many are still to come, and where they may go.

The members of a group are told by the pods themselves, so a restart forgets nothing. A member
*lives* where it is bound, or its bind is in flight, and it is neither ending nor ended; one that
has succeeded has come, and holds nothing. A group has *started* while a member lives: then its
domain is theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from scheduler_extender.membership import Group, Membership
from scheduler_extender.state.pods import PodRecord
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Reason, Rejection
from topology.core.requests import GpuRequest, Policy

NO_DOMAIN = Rejection(
    "the node is in no domain of the kind that group-domain names", False, Reason.GROUP
)
ELSEWHERE = Rejection("the pod's group is in another domain", False, Reason.GROUP)
SPLIT = Rejection(
    "the pod's group is in several domains, and most of it in another one", False, Reason.GROUP
)
ANOTHER_CHOSEN = Rejection("the pod's gang goes to another domain", True, Reason.GROUP)
TOO_SMALL = Rejection("the domain cannot hold the pod's whole group", True, Reason.GROUP)
NO_LONGER = Rejection(
    "the domain of the pod's group cannot hold the members that are still to come",
    True,
    Reason.GROUP,
)
KEPT = Rejection("the place is kept for members of another group", True, Reason.GROUP)
DISAGREE = Rejection(
    "members of the group differ in group-size or group-domain", False, Reason.GROUP
)


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """A group at one moment.

    ``living`` are its living members by node, ``succeeded`` how many have succeeded. ``says`` is
    what its members say of size and domain, None where nobody has a place yet or they differ; then
    ``differ``. ``request`` is what the first of them asks for.
    """

    group: Group
    living: Mapping[NodeName, int] = field(default_factory=dict)
    succeeded: int = 0
    says: tuple[int | None, str | None] | None = None
    differ: bool = False
    request: GpuRequest | None = None

    @property
    def have_come(self) -> int:
        """Members that have or had a place."""
        return sum(self.living.values()) + self.succeeded

    @property
    def to_come(self) -> int:
        """Members that have none yet, as far as the group says how many there are."""
        size = self.says[0] if self.says is not None else None
        return 0 if size is None else max(0, size - self.have_come)

    @property
    def waits(self) -> bool:
        """Whether places have to be kept for it: it shares a domain, and members are to come."""
        domain, request = self.says[1] if self.says is not None else None, self.request
        bound = domain is not None and request is not None and request.policy is Policy.REQUIRED
        return bound and self.to_come > 0

    def agrees_with(self, member: Membership) -> bool:
        """Whether a pod says the same of the group as those that have come."""
        return not self.differ and self.says in (None, (member.size, member.domain))


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
class WaitingGroup:
    """A group that has started and waits for members, and the nodes of its domain, by name."""

    standing: GroupStanding
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class GroupLook:
    """A group at one moment: how it stands, the domain of each node, the other groups that wait
    for members, how often a group had started, and how often members had changed (see
    :class:`Groups`)."""

    standing: GroupStanding
    domains: Mapping[NodeName, str]
    waiting: tuple[WaitingGroup, ...]
    starts: int
    changes: int

    @property
    def domain_of(self) -> Callable[[str], str | None]:
        """Gives the domain of a node, None where it is in none."""
        return cast("Mapping[str, str]", self.domains).get


class Groups:
    """The members of groups that have or had a place. The cluster's lock guards it.

    ``starts`` counts the times that a group has begun to live somewhere: a decision about a first
    member holds while nobody else has begun. ``changes`` counts the times that a member has come,
    has gone or has changed: what was counted of places fits to what was counted of members only
    while it stays.
    """

    def __init__(self) -> None:
        self._members: dict[Group, dict[PodUid, PodRecord]] = {}
        self._of: dict[PodUid, Group] = {}
        self._started: dict[Group, int] = {}
        self._standings: dict[Group, GroupStanding] = {}
        self._changed: set[Group] = set()
        self._waiting: set[Group] = set()
        self.starts = 0
        self.changes = 0

    def put(self, pod: PodRecord) -> None:
        """A pod is bound, or its bind is in flight, or it has changed."""
        membership, former = pod.membership, self._of.get(pod.uid)
        if membership is None or pod.node is None or former not in (None, membership.group):
            self.drop(pod.uid)
        if membership is None or pod.node is None:
            return
        self._of[pod.uid] = membership.group
        self._members.setdefault(membership.group, {})[pod.uid] = pod
        self._settle(membership.group)

    def drop(self, uid: PodUid) -> None:
        """A pod is gone, or is on no node."""
        group = self._of.pop(uid, None)
        if group is not None:
            del self._members[group][uid]
            self._settle(group)

    def standing(self, group: Group, but: PodUid | None = None) -> GroupStanding:
        """The group as it is now, without one of its pods. O(1) where it has not changed since."""
        members = self._members.get(group, {})
        if but in members:
            return _standing(group, (pod for uid, pod in members.items() if uid != but))
        found = self._standings.get(group)
        if found is None:
            found = _standing(group, members.values())
            if members:
                self._standings[group] = found
        return found

    def waiting(self, but: Group) -> list[GroupStanding]:
        """The other groups that have started and still wait for members, the first to start first.

        O(1) for each group that waits or has changed since.
        """
        for group in self._changed:
            if group in self._started and self.standing(group).waits:
                self._waiting.add(group)
            else:
                self._waiting.discard(group)
        self._changed.clear()
        found = sorted(self._waiting - {but}, key=self._started.__getitem__)
        return [self.standing(group) for group in found]

    def _settle(self, group: Group) -> None:
        """A group has changed: whether it lives, and what is remembered of it."""
        self.changes += 1
        self._standings.pop(group, None)
        self._changed.add(group)
        members = self._members[group]
        if not members:
            del self._members[group]
        if not any(map(lives, members.values())):
            self._started.pop(group, None)
        elif group not in self._started:
            self.starts += 1
            self._started[group] = self.starts


def _standing(group: Group, members: Iterable[PodRecord]) -> GroupStanding:
    living: Counter[NodeName] = Counter()
    said: set[tuple[int | None, str | None]] = set()
    request: GpuRequest | None = None
    succeeded = 0
    for pod in members:
        if lives(pod) and pod.node is not None:
            living[pod.node] += 1
        elif pod.phase == "Succeeded":
            succeeded += 1
        else:
            continue
        if pod.membership is not None:
            said.add((pod.membership.size, pod.membership.domain))
        if request is None and isinstance(pod.request, GpuRequest):
            request = pod.request
    says = next(iter(said)) if len(said) == 1 else None
    return GroupStanding(group, living, succeeded, says, len(said) > 1, request)


def lives(pod: PodRecord) -> bool:
    """Whether a member counts as one that has its place."""
    return pod.node is not None and not pod.deleting and not pod.ended
