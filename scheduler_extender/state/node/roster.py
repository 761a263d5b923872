"""The pods that are bound to one node, as a value: who changes it gets another one.

A controller that runs away leaves thousands of ended pods on a node. If all of them were copied for
each one that comes, the time would grow with the square of their number. So ended pods lie in
buckets, and one bucket is copied; the others are few, for each of them holds a device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar
from zlib import crc32

from scheduler_extender.state.pods.record import PodName, PodRecord
from topology.core.devices import PodUid
from topology.core.report import Report

BUCKETS = 256

Pods = Mapping[PodUid, PodRecord]
Named = Mapping[PodName, tuple[PodUid, ...]]
T = TypeVar("T")

NO_PODS: tuple[Pods, ...] = ({},) * BUCKETS
NO_NAMES: tuple[Named, ...] = ({},) * BUCKETS


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster(Mapping[PodUid, PodRecord]):
    """Pods by UID. ``alive`` are those that have not ended, in the order in which they came;
    ``ended`` are the others, in buckets, and ``names`` says which of them have a name."""

    alive: Pods = field(default_factory=dict)
    ended: tuple[Pods, ...] = NO_PODS
    names: tuple[Named, ...] = NO_NAMES

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
        for bucket in self.ended if self.any_ended else ():
            yield from bucket

    def __len__(self) -> int:
        return len(self.alive) + (sum(map(len, self.ended)) if self.any_ended else 0)

    @property
    def any_ended(self) -> bool:
        """Whether some pod may have ended; false only where none has."""
        return self.ended is not NO_PODS

    def ended_named(self, name: PodName) -> tuple[PodRecord, ...]:
        """The ended pods of this name: one that is made anew has the name of the former."""
        return tuple(self[uid] for uid in _uids(self.names, name))

    def ended_shown_by(self, report: Report) -> list[PodRecord]:
        """The ended pods of which a report shows something still, in the order of their UIDs.

        It shows devices by the pods' UIDs, where the agent knows them, and CPUs by their names.
        """
        shown = {a.pod_uid for a in report.allocations}
        names = {(a.namespace, a.pod) for a in report.allocations if not a.pod_uid}
        names |= {(held.namespace, held.pod) for held in report.holdings or ()}
        ended = {pod for uid in shown if (pod := self.get(uid)) is not None and pod.ended}
        for name in names:
            ended.update(self.ended_named(name))
        return sorted(ended, key=attrgetter("uid"))

    def with_pod(self, pod: PodRecord) -> Roster:
        """The roster with this pod, in place of one with the same UID. O(alive + ended / 256)."""
        known = self.get(pod.uid)
        others = self if known is None or known.ended == pod.ended else self.without((pod.uid,))
        if not pod.ended:
            return Roster({**others.alive, pod.uid: pod}, others.ended, others.names)
        i, names = _bucket(pod.uid), others.names
        ended = _put(others.ended, i, {**others.ended[i], pod.uid: pod})
        if pod.uid not in others.ended[i]:
            names = _with_uids(
                names,
                (pod.namespace, pod.name),
                (*_uids(names, (pod.namespace, pod.name)), pod.uid),
            )
        return Roster(others.alive, ended, names)

    def without(self, gone: Collection[PodUid]) -> Roster:
        """The roster without these pods."""
        alive, ended, names = self.alive, self.ended, self.names
        if not alive.keys().isdisjoint(gone):
            alive = {uid: pod for uid, pod in alive.items() if uid not in gone}
        for uid in gone:
            i = _bucket(uid)
            found = ended[i].get(uid)
            if found is not None:
                left = {other: pod for other, pod in ended[i].items() if other != uid}
                ended = _put(ended, i, left)
                kept = tuple(
                    other for other in _uids(names, (found.namespace, found.name)) if other != uid
                )
                names = _with_uids(names, (found.namespace, found.name), kept)
        same = alive is self.alive and ended is self.ended
        return self if same else Roster(alive, ended, names)


def _put(buckets: tuple[T, ...], i: int, bucket: T) -> tuple[T, ...]:
    return (*buckets[:i], bucket, *buckets[i + 1 :])


def _uids(names: tuple[Named, ...], name: PodName) -> tuple[PodUid, ...]:
    return names[_bucket(*name)].get(name, ())


def _with_uids(
    names: tuple[Named, ...], name: PodName, uids: tuple[PodUid, ...]
) -> tuple[Named, ...]:
    i = _bucket(*name)
    others = {other: found for other, found in names[i].items() if other != name}
    return _put(names, i, {**others, name: uids} if uids else others)


def _bucket(*words: str) -> int:
    return crc32("/".join(words).encode()) % BUCKETS
