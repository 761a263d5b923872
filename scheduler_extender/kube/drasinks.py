"""Sinks for DRA's objects: ResourceSlices, ResourceClaims, DeviceClasses and DeviceTaintRules."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from scheduler_extender.kube.bytequota import NO_QUOTA, Bounds, ByteQuota
from scheduler_extender.kube.draobjects import (
    MOST_ASKED,
    NAMES,
    Claim,
    DeviceClass,
    DraObject,
    Metadata,
    Slice,
    TaintRule,
    Unread,
    key_of,
)
from scheduler_extender.kube.nodedevices import MOST_OF_NODE, MOST_SLICES
from scheduler_extender.kube.sinks import ObjectSink, metadata_of
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.wire import UNREADABLE, ObjectMeta

GROUP = "/apis/resource.k8s.io/v1"
CLASSES_PATH = f"{GROUP}/deviceclasses"
CLAIMS_PATH, SLICES_PATH = f"{GROUP}/resourceclaims", f"{GROUP}/resourceslices"
MOST_WANTED = 16 << 20  # bytes of the specs of claims without devices, all together
AGAIN = 30.0  # seconds between two lists of objects that had no room
Objects = dict[Hashable, DraObject]  # by key
# Replaces some objects by others.
Change = Callable[[Sequence[DraObject], Sequence[DraObject]], None]


class DraSink(ObjectSink):
    """A sink for the objects of one kind, which hands their changes on.

    An object without room is handed on without its content (:meth:`.Stored.bare`).
    """

    def __init__(
        self, cluster: Cache, change: Change, kind: type[DraObject], bounds: Bounds = NO_QUOTA
    ) -> None:
        super().__init__(cluster)
        self._change, self._known = change, Objects()
        self._decode: Callable[[Any], DraObject] = msgspec.json.Decoder(kind).decode
        self._bounds, self._quota = bounds, ByteQuota(bounds)
        self._clock, self._next = cluster.clock, float("-inf")

    @property
    def outside(self) -> int:
        """The number of objects without room."""
        return self._quota.outside

    def again(self) -> bool:
        """Check whether to list the objects again, since one without room would now find room."""
        if not self.outside or self._clock() < self._next:
            return False
        self._next = self._clock() + AGAIN
        return self._quota.is_there()

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a complete list."""
        now, quota = Objects(), ByteQuota(self._bounds)
        for raw in objects:
            _keep(self._read(raw), now, quota)
        quota.settle()
        before = self._known
        gone = [obj for key, obj in before.items() if now.get(key) != obj]
        new = [obj for key, obj in now.items() if before.get(key) != obj]
        # Of unchanged objects only the former copy is kept, since they may be large.
        same = ((key, obj) for key, obj in before.items() if now.get(key) == obj)
        self._known, self._quota = now | dict(same), quota
        self._change(gone, new)

    def _take(self, obj: msgspec.Raw) -> str:
        found = self._read(obj)
        before = self._drop(found.key)
        others = _keep(found, self._known, self._quota)
        after = [self._known[key] for key in (found.key, *others)]
        self._change([*before, *others.values()], after)
        return found.metadata.name

    def _read(self, obj: msgspec.Raw) -> DraObject:
        """Return an object, or its former version if it cannot be read, or else an :class:`Unread`.

        The devices of a claim do not change. A claim without devices may have got some, and the
        object may be another one with the same name.
        """
        try:
            return self._decode(obj)
        except UNREADABLE as error:
            self._tell_bad(obj, error)
        metadata = metadata_of(obj) or ObjectMeta()
        ours = Metadata(metadata.name, metadata.namespace, metadata.uid)
        found = Unread(ours, frozenset(name.decode() for name in NAMES.findall(bytes(obj))))
        former = self._known.get(found.key, found)
        if isinstance(former, Unread) or former.metadata.uid != metadata.uid:
            return found
        waits = isinstance(former, Claim) and former.status.allocation is None
        return found if waits else former

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deletion."""
        metadata = metadata_of(obj) or ObjectMeta()
        self._change(self._drop(key_of(metadata.namespace, metadata.name)), [])

    def _drop(self, key: Hashable) -> list[DraObject]:
        gone = [self._known.pop(key)] if key in self._known else []
        for each in gone:
            self._quota.drop(each.owner, key)
        return gone


def _keep(obj: DraObject, known: Objects, quota: ByteQuota) -> Objects:
    """Add an object to the known ones. Return the others that gave way to it, as they were."""
    known[obj.key] = obj
    others: Objects = {}
    for key in quota.put(obj.owner, obj.key, obj.size) if obj.size else ():
        if key != obj.key:
            others[key] = known[key]
        known[key] = known[key].bare()
    return others


def dra_sinks(cluster: Cache, change: Change) -> dict[str, DraSink]:
    """Return a sink for each collection, by the collection's path.

    There is no room for a taint rule that cannot be read, so it concerns all nodes.
    """
    classes = Bounds(MOST_WANTED, MOST_WANTED, MOST_WANTED)
    claims = Bounds(MOST_WANTED, MOST_WANTED, MOST_ASKED)
    slices = Bounds(MOST_SLICES, MOST_OF_NODE, MOST_OF_NODE)
    return {
        CLASSES_PATH: DraSink(cluster, change, DeviceClass, classes),
        SLICES_PATH: DraSink(cluster, change, Slice, slices),
        CLAIMS_PATH: DraSink(cluster, change, Claim, claims),
        f"{GROUP}/devicetaintrules": DraSink(cluster, change, TaintRule),
    }
