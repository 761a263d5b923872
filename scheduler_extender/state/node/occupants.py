"""The pods that hold devices on a node, will hold some, or may have held some.

They are a value: a change returns a new one. A faulty controller may leave thousands of ended pods
on a node. If each new pod copied all of them, the time would grow with the square of their number.
So ended pods are kept in buckets, and a change copies only one bucket. The other pods are few,
because each of them holds a device.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar
from zlib import crc32

from scheduler_extender.state.pods.record import PodName, PodRecord, resource_of, without
from topology.core.devices import PodUid
from topology.core.report import Report
from topology.core.requests import NO_CONSTRAINTS

BUCKETS = 256

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Buckets(Mapping[K, V]):
    """An immutable mapping in which a change copies only one bucket.

    The text of a key decides its bucket.
    """

    def __init__(self, buckets: tuple[Mapping[K, V], ...] = ({},) * BUCKETS, size: int = 0) -> None:
        self.buckets = buckets
        self._size = size

    def __getitem__(self, key: K) -> V:
        return self.buckets[_bucket(key)][key]

    def __iter__(self) -> Iterator[K]:
        for bucket in self.buckets if self._size else ():
            yield from bucket

    def __len__(self) -> int:
        return self._size

    def values(self) -> ValuesView[V]:
        """Return every value without looking each key up again."""
        buckets = self.buckets if self._size else ()
        return dict(kv for bucket in buckets for kv in bucket.items()).values()

    def having(self, key: K, value: V | None) -> Buckets[K, V]:
        """Return the mapping with this value for a key; None removes the key. O(size / 256)."""
        at = _bucket(key)
        bucket = dict(self.buckets[at])
        size = self._size + (value is not None) - (key in bucket)
        if value is not None:
            bucket[key] = value
        else:
            bucket.pop(key, None)
        return Buckets((*self.buckets[:at], bucket, *self.buckets[at + 1 :]), size)


def _bucket(key: Hashable) -> int:
    return crc32(repr(key).encode()) % BUCKETS


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster(Mapping[PodUid, PodRecord]):
    """Pods by UID."""

    # in the order in which they came
    alive: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    ended: Buckets[PodUid, PodRecord] = field(default_factory=Buckets)
    # The ended pods by name. A pod that is created again has the name of the ended one.
    named: Buckets[PodName, tuple[PodUid, ...]] = field(default_factory=Buckets)

    @classmethod
    def of(cls, pods: Iterable[PodRecord]) -> Roster:
        """Return the roster of these pods."""
        roster = cls()
        for pod in pods:
            roster = roster.with_pod(pod)
        return roster

    def __getitem__(self, uid: PodUid) -> PodRecord:
        pod = self.alive.get(uid)
        return self.ended[uid] if pod is None else pod

    def __iter__(self) -> Iterator[PodUid]:
        return chain(self.alive, self.ended)

    def __len__(self) -> int:
        return len(self.alive) + len(self.ended)

    def ended_shown_by(self, report: Report) -> list[PodRecord]:
        """Return the ended pods that a report still shows, sorted by UID.

        A report shows devices by the pods' UIDs if the agent knows them, and CPUs by the pods'
        names.
        """
        if not self.ended:
            return []
        shown = {a.pod_uid for a in report.allocations}
        names = {(a.namespace, a.pod) for a in report.allocations if not a.pod_uid}
        names |= {(held.namespace, held.pod) for held in report.holdings or ()}
        for name in names:
            shown.update(self.named.get(name, ()))
        return [self.ended[uid] for uid in sorted(shown) if uid in self.ended]

    def with_pod(self, pod: PodRecord) -> Roster:
        """Return the roster with this pod in place of one with its UID. O(alive + ended / 256)."""
        if not pod.ended:
            known = self.ended and pod.uid in self.ended
            others = self.without((pod.uid,)) if known else self
            return Roster({**others.alive, pod.uid: pod}, others.ended, others.named)
        if pod.uid in self.ended:
            return Roster(self.alive, self.ended.having(pod.uid, pod), self.named)
        others, name = self.without((pod.uid,)), (pod.namespace, pod.name)
        named = others.named.having(name, (*others.named.get(name, ()), pod.uid))
        return Roster(others.alive, others.ended.having(pod.uid, pod), named)

    def without(self, gone: Collection[PodUid]) -> Roster:
        """Return the roster without these pods."""
        alive, ended, named = self.alive, self.ended, self.named
        if not alive.keys().isdisjoint(gone):
            alive = {uid: pod for uid, pod in alive.items() if uid not in gone}
        for uid in gone if ended else ():
            pod = ended.get(uid)
            if pod is not None:
                name = (pod.namespace, pod.name)
                left = tuple(other for other in named[name] if other != uid)
                ended, named = ended.having(uid, None), named.having(name, left or None)
        same = alive is self.alive and ended is self.ended
        return self if same else Roster(alive, ended, named)


UNKNOWN_VERSION = -1  # stands for a resourceVersion that cannot be compared with others


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A pod that is gone from the API server, and that its kubelet may not have released yet."""

    pod: PodRecord
    version: int  # a resourceVersion at which the pod was gone
    sequence: float  # the sequence number of the last report at that time
    met: bool  # whether its kubelet was seen to know it

    def confirmed_by(self, report: Report) -> bool:
        """Check whether the report's agent surely knew of the deletion when it asked the kubelet.

        An ended pod is confirmed as soon as a report no longer shows it, because its kubelet had
        it. If the agent does not say what it knew, or says nothing that can be compared, the second
        later report is enough. The agent may have taken the reading for the first later report
        before the deletion: it reads again only after it has written its last reading.

        Two reports are also needed if the kubelet may never have met the pod: the kubelet's watch
        may bring the pod and its end later than the agent's own watch.
        """
        if self.pod.ended:
            return True
        knew = None if self.version < 0 else report.knew_pods_at(self.version)
        return bool(knew and self.met) or (
            knew is not False and report.sequence >= self.sequence + 2
        )


@dataclass(frozen=True, slots=True)
class Terminated:
    """A pod that ended, or is gone, before any report showed it."""

    pod: PodRecord
    # unacknowledged then; the kubelet may have admitted them while the terminated pod was there
    beside: frozenset[PodUid]
    many: bool = False  # whether it stands for more pods like it than are followed one by one


@dataclass(frozen=True, slots=True, eq=False)
class Occupants:
    """The pods that count on one node."""

    complete: bool = True  # whether the source names every pod
    bound: Roster = field(default_factory=Roster)
    # their bind is being written; under DRA also nominated pods
    assumed: Mapping[PodUid, PodRecord] = field(default_factory=dict)
    unconfirmed: Mapping[PodUid, Unconfirmed] = field(default_factory=dict)
    terminated: Mapping[PodUid, Terminated] = field(default_factory=dict)
    acknowledged: frozenset[PodUid] = frozenset()  # a report of this boot has shown their devices
    unsettled: frozenset[PodUid] = frozenset()  # unacknowledged while the node's GPUs changed
    # Succeeded pods whose devices the next reports may still show. The report that we keep omits
    # them.
    released: frozenset[PodUid] = frozenset()

    @property
    def living(self) -> tuple[PodRecord, ...]:
        """The bound and assumed pods that have not ended."""
        return (*self.bound.alive.values(), *self.assumed.values())

    @property
    def every(self) -> tuple[PodRecord, ...]:
        """The pods that hold devices here or will: bound, assumed or unconfirmed."""
        bound, ended = self.bound.alive.values(), self.bound.ended.values()
        return (*bound, *ended, *self.assumed.values(), *self._unconfirmed)

    @property
    def here(self) -> frozenset[PodUid]:
        """The pods of :attr:`every` that are not known to have ended."""
        return frozenset((*self.bound.alive, *self.assumed, *self.unconfirmed))

    @property
    def terminating(self) -> frozenset[PodUid]:
        """The terminating and unconfirmed pods: they release their devices by themselves."""
        terminating = (pod.uid for pod in self.bound.alive.values() if pod.terminating)
        return frozenset((*terminating, *self.unconfirmed))

    @property
    def too_many_terminated(self) -> bool:
        """Whether more pods terminated than are followed one by one."""
        return bool(self.terminated) and any(gone.many for gone in self.terminated.values())

    @property
    def promised(self) -> bool:
        """Whether a pod here was promised something and may not have its devices yet.

        No report has shown its devices, and its kubelet has not said that it admitted the pod.
        """
        pods = (*self.living, *self._unconfirmed)
        return any(pod.promised != NO_CONSTRAINTS and self._awaits(pod) for pod in pods)

    def unanswered(self, resource: str) -> list[PodRecord]:
        """Return the pods over a resource that the kubelet has not answered, as far as we know."""
        return [pod for pod in self.living if self._awaits(pod) and resource_of(pod) == resource]

    def _awaits(self, pod: PodRecord) -> bool:
        return not (pod.ended or pod.admitted or pod.uid in self.acknowledged)

    def in_ledger(self, report: Report) -> Iterable[PodRecord]:
        """Return the pods of a ledger: all but the ended ones that its report omits."""
        ended = self.bound.ended_shown_by(report)
        return (*self.bound.alive.values(), *ended, *self.assumed.values(), *self._unconfirmed)

    @property
    def _unconfirmed(self) -> list[PodRecord]:
        return [gone.pod for gone in self.unconfirmed.values()]

    def with_assumed(self, pod: PodRecord) -> Occupants:
        """Return the occupants with one more assumed pod."""
        return replace(self, assumed={**self.assumed, pod.uid: pod})

    def without(self, gone: Collection[PodUid]) -> Occupants:
        """Return the occupants without some pods."""
        return replace(
            self,
            bound=self.bound.without(gone),
            assumed=without(self.assumed, gone),
            unconfirmed=without(self.unconfirmed, gone),
        )

    def with_terminating(self, uids: Collection[PodUid]) -> Occupants:
        """Return the occupants with some pods terminating, so that their CPUs will be free."""
        bound, assumed = self.bound, dict(self.assumed)
        for uid in uids:
            if uid in bound.alive:
                bound = bound.with_pod(replace(bound.alive[uid], terminating=True))
            if uid in assumed:
                assumed[uid] = replace(assumed[uid], terminating=True)
        return replace(self, bound=bound, assumed=assumed)
