"""The pods that are bound to one node, as a value: who changes it gets another one.

A controller that runs away leaves thousands of ended pods on a node. If all of them were copied for
each one that comes, the time would grow with the square of their number. So ended pods lie in
buckets, and one bucket is copied; the others are few, for each of them holds a device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from scheduler_extender.state.pods import PodRecord
from topology.core.devices import PodUid

BUCKETS = 256

Pods = Mapping[PodUid, PodRecord]
NO_BUCKETS: tuple[Pods, ...] = ({},) * BUCKETS


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster(Mapping[PodUid, PodRecord]):
    """Pods by UID. ``alive`` are those that have not ended, in the order in which they came;
    ``ended`` are the others, in buckets, in an order that depends on nothing but them."""

    alive: Pods = field(default_factory=dict)
    ended: tuple[Pods, ...] = NO_BUCKETS

    @classmethod
    def of(cls, pods: Iterable[PodRecord]) -> Roster:
        """The roster of these pods."""
        found = cls()
        for pod in pods:
            found = found.with_pod(pod)
        return found

    def __getitem__(self, uid: PodUid) -> PodRecord:
        found = self.alive.get(uid)
        return self.ended[_bucket(uid)][uid] if found is None else found

    def __iter__(self) -> Iterator[PodUid]:
        yield from self.alive
        for bucket in self.ended:
            yield from bucket

    def __len__(self) -> int:
        return len(self.alive) + sum(map(len, self.ended))

    def with_pod(self, pod: PodRecord) -> Roster:
        """The roster with this pod, in place of one with the same UID. O(alive + ended / 256)."""
        known = self.get(pod.uid)
        others = self if known is None or known.ended == pod.ended else self.without((pod.uid,))
        if not pod.ended:
            return Roster({**others.alive, pod.uid: pod}, others.ended)
        i = _bucket(pod.uid)
        return Roster(others.alive, _put(others.ended, i, {**others.ended[i], pod.uid: pod}))

    def without(self, gone: Collection[PodUid]) -> Roster:
        """The roster without these pods."""
        alive, ended = self.alive, self.ended
        if not alive.keys().isdisjoint(gone):
            alive = {uid: pod for uid, pod in alive.items() if uid not in gone}
        for uid in gone:
            i = _bucket(uid)
            if uid in ended[i]:
                left = {other: pod for other, pod in ended[i].items() if other != uid}
                ended = _put(ended, i, left)
        return self if alive is self.alive and ended is self.ended else Roster(alive, ended)


def _put(buckets: tuple[Pods, ...], i: int, bucket: Pods) -> tuple[Pods, ...]:
    return (*buckets[:i], bucket, *buckets[i + 1 :])


def _bucket(uid: PodUid) -> int:
    return crc32(uid.encode()) % BUCKETS
