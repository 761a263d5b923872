"""The pods that hold devices on a node, or will, or may have.

They are a value: a change gives another one. A controller that runs away leaves thousands of ended
pods on a node. If each new pod copied them all, the time would grow with the square of their
number. So ended pods lie in buckets, and a change copies one bucket. The other pods are few, for
each of them holds a device.
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
    """A mapping that never changes: a change copies one bucket. A key's text tells its bucket."""

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
        """Every value; without looking each key up again."""
        buckets = self.buckets if self._size else ()
        return dict(kv for bucket in buckets for kv in bucket.items()).values()

    def having(self, key: K, value: V | None) -> Buckets[K, V]:
        """The same with this value of a key; None for none. O(size / 256)."""
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

    alive: Mapping[PodUid, PodRecord] = field(default_factory=dict)  # in the order they came
    ended: Buckets[PodUid, PodRecord] = field(default_factory=Buckets)
    # The ended pods by name: one that is made anew has the name of the former.
    named: Buckets[PodName, tuple[PodUid, ...]] = field(default_factory=Buckets)

    @classmethod
    def of(cls, pods: Iterable[PodRecord]) -> Roster:
        """The roster of these pods."""
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
        """The ended pods that a report still shows, in the order of their UIDs.

        It shows devices by the pods' UIDs, if the agent knows them, and CPUs by the pods' names.
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
        """The roster with this pod, in place of one with the same UID. O(alive + ended / 256)."""
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
        """The roster without these pods."""
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


UNKNOWN_VERSION = -1  # in place of a resourceVersion that cannot be compared with others


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A pod that is gone from the API server before its kubelet was seen to let go of it."""

    pod: PodRecord
    version: int  # a resourceVersion at which the pod was gone
    sequence: float  # that of the last report then
    met: bool  # its kubelet was seen to know it

    def confirmed_by(self, report: Report) -> bool:
        """Whether the report's agent surely knew of the deletion when it asked the kubelet.

        An ended pod is gone as soon as a report no longer shows it: its kubelet had it. If the
        agent does not say what it knew, or nothing that can be compared, the second later report is
        enough: the first may have been on its way already, and an agent looks again only once it
        has written what it saw. Two reports, too, where the kubelet may not even have met the pod:
        its watch may bring the pod and its end later than the agent's own.
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
    beside: frozenset[PodUid]  # unacknowledged then: it may have been there when they were admitted
    many: bool = False  # it stands for more like it than anybody can follow


@dataclass(frozen=True, slots=True, eq=False)
class Occupants:
    """The pods of one node that count there."""

    complete: bool = True  # the source names every pod
    bound: Roster = field(default_factory=Roster)
    assumed: Mapping[PodUid, PodRecord] = field(default_factory=dict)  # we are writing their bind
    unconfirmed: Mapping[PodUid, Unconfirmed] = field(default_factory=dict)
    terminated: Mapping[PodUid, Terminated] = field(default_factory=dict)
    acknowledged: frozenset[PodUid] = frozenset()  # a report of this boot has shown their devices
    unsettled: frozenset[PodUid] = frozenset()  # waited for it while the node's GPUs changed
    # Succeeded, and the next reports may still show their devices; the one we keep is without.
    released: frozenset[PodUid] = frozenset()

    @property
    def living(self) -> tuple[PodRecord, ...]:
        """The pods that are bound here, or about to be, and have not ended."""
        return (*self.bound.alive.values(), *self.assumed.values())

    @property
    def every(self) -> tuple[PodRecord, ...]:
        """The pods that hold devices here or will: bound, with a bind in flight, or leaving."""
        bound, ended = self.bound.alive.values(), self.bound.ended.values()
        return (*bound, *ended, *self.assumed.values(), *self._unconfirmed)

    @property
    def here(self) -> frozenset[PodUid]:
        """The pods of :attr:`every` that are not known to have ended."""
        return frozenset((*self.bound.alive, *self.assumed, *self.unconfirmed))

    @property
    def terminating(self) -> frozenset[PodUid]:
        """The pods that are on their way out: they let go of their devices by themselves."""
        terminating = (pod.uid for pod in self.bound.alive.values() if pod.terminating)
        return frozenset((*terminating, *self.unconfirmed))

    @property
    def too_many_terminated(self) -> bool:
        """Whether more pods terminated than anybody can follow."""
        return bool(self.terminated) and any(gone.many for gone in self.terminated.values())

    @property
    def promised(self) -> bool:
        """Whether somebody here was promised something, and may not have its devices yet: no report
        has shown them, and its kubelet has not said that it took the pod."""
        pods = (*self.living, *self._unconfirmed)
        return any(pod.promised != NO_CONSTRAINTS and self._awaits(pod) for pod in pods)

    def unanswered(self, resource: str) -> list[PodRecord]:
        """The pods over a resource that the kubelet has not answered, as far as we know."""
        return [pod for pod in self.living if self._awaits(pod) and resource_of(pod) == resource]

    def _awaits(self, pod: PodRecord) -> bool:
        return not (pod.ended or pod.admitted or pod.uid in self.acknowledged)

    def in_ledger(self, report: Report) -> Iterable[PodRecord]:
        """The pods that a ledger is made of: without ended ones that its report does not show."""
        ended = self.bound.ended_shown_by(report)
        return (*self.bound.alive.values(), *ended, *self.assumed.values(), *self._unconfirmed)

    @property
    def _unconfirmed(self) -> list[PodRecord]:
        return [gone.pod for gone in self.unconfirmed.values()]

    def with_assumed(self, pod: PodRecord) -> Occupants:
        """The same with a pod whose bind is being written."""
        return replace(self, assumed={**self.assumed, pod.uid: pod})

    def without(self, gone: Collection[PodUid]) -> Occupants:
        """The same without some pods."""
        return replace(
            self,
            bound=self.bound.without(gone),
            assumed=without(self.assumed, gone),
            unconfirmed=without(self.unconfirmed, gone),
        )

    def with_terminating(self, uids: Collection[PodUid]) -> Occupants:
        """The same with some pods on their way out: so their CPUs count as coming free."""
        bound, assumed = self.bound, dict(self.assumed)
        for uid in uids:
            if uid in bound.alive:
                bound = bound.with_pod(replace(bound.alive[uid], terminating=True))
            if uid in assumed:
                assumed[uid] = replace(assumed[uid], terminating=True)
        return replace(self, bound=bound, assumed=assumed)
