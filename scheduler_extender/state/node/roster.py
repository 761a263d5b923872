"""The pods that are bound to one node, as a value: who changes it gets another one.

A controller that runs away leaves thousands of ended pods on a node. If all of them were copied for
each one that comes, the time would grow with the square of their number. So ended pods lie in
buckets, and one bucket is copied; the others are few, for each of them holds a device.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar
from zlib import crc32

from scheduler_extender.state.pods.record import PodName, PodRecord
from topology.core.devices import PodUid
from topology.core.report import Report

BUCKETS = 256

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Buckets(Mapping[K, V]):
    """A mapping as a value, of which a change copies one bucket. Keys tell their bucket as text."""

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

    def having(self, key: K, value: V | None) -> Buckets[K, V]:
        """The same with this value of a key; None for none. O(size / 256)."""
        at = _bucket(key)
        bucket = {k: v for k, v in self.buckets[at].items() if k != key}
        size = self._size + (value is not None) - (key in self)
        if value is not None:
            bucket[key] = value
        return Buckets((*self.buckets[:at], bucket, *self.buckets[at + 1 :]), size)


def _bucket(key: Hashable) -> int:
    return crc32(repr(key).encode()) % BUCKETS


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster(Mapping[PodUid, PodRecord]):
    """Pods by UID."""

    alive: Mapping[PodUid, PodRecord] = field(default_factory=dict)  # in the order they came
    ended: Buckets[PodUid, PodRecord] = field(default_factory=Buckets)
    named: Buckets[PodName, tuple[PodUid, ...]] = field(default_factory=Buckets)
    """The ended pods by name: one that is made anew has the name of the former."""

    @classmethod
    def of(cls, pods: Iterable[PodRecord]) -> Roster:
        """The roster of these pods."""
        found = cls()
        for pod in pods:
            found = found.with_pod(pod)
        return found

    def __getitem__(self, uid: PodUid) -> PodRecord:
        found = self.alive.get(uid)
        return self.ended[uid] if found is None else found

    def __iter__(self) -> Iterator[PodUid]:
        return chain(self.alive, self.ended)

    def __len__(self) -> int:
        return len(self.alive) + len(self.ended)

    def ended_shown_by(self, report: Report) -> list[PodRecord]:
        """The ended pods of which a report shows something still, in the order of their UIDs.

        It shows devices by the pods' UIDs, where the agent knows them, and CPUs by their names.
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
