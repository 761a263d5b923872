"""The annotation with which a place is kept for a waiting pod (:data:`.annotations.KEPT_PLACE`).

Its value is JSON, as ``gpu-topology unblock --evict`` writes it::

    {"uid": "5f…", "node": "train-01", "until": "2026-11-22T12:05:00Z", "victims": ["7a…"],
     "since": "2026-11-22T11:35:02.25Z"}

It names the pod's own UID, so one in a template counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

import msgspec

from scheduler_extender.annotations import KEPT_PLACE
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.times import instant

MAX_SECONDS = 3600.0
"""A place is kept for an hour at most, counted from when the annotation is seen."""
MAX_VICTIMS = 64


@dataclass(frozen=True, slots=True)
class Reserved:
    """A place on a node, kept until a time in seconds since 1970.

    ``victims`` are the pods that are evicted for it: the place is there once they have let go.
    ``since`` is when it was asked for, of which the first goes before others on one node; releases
    before this one did not write it, and then it is ``until``.
    """

    node: NodeName
    until: float
    victims: frozenset[PodUid] = frozenset()
    since: float = inf

    @property
    def order(self) -> float:
        """The lower goes first."""
        return min(self.since, self.until)

    @property
    def until_text(self) -> str:
        """The time of day at which it ends, to the minute; the same text every time.

        >>> Reserved(NodeName("n"), 43500.0).until_text
        '12:05 UTC'
        """
        return datetime.fromtimestamp(self.until, UTC).strftime("%H:%M UTC")


class _Written(msgspec.Struct, omit_defaults=True):
    uid: str
    node: str
    until: datetime
    victims: list[str] = []
    since: datetime | None = None


_read = msgspec.json.Decoder(_Written).decode


def reserved_of(pod: Pod) -> Reserved | None:
    """The place that is kept for a pod; None where none is, or the value cannot be read."""
    text = (pod.metadata.annotations or {}).get(KEPT_PLACE)
    if text is None or pod.spec.node_name:
        return None
    try:
        written = _read(text)
        until = instant(written.until).timestamp()
        since = inf if written.since is None else instant(written.since).timestamp()
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return None
    if written.uid != pod.metadata.uid or not written.node or len(written.victims) > MAX_VICTIMS:
        return None
    return Reserved(NodeName(written.node), until, frozenset(map(PodUid, written.victims)), since)


def value_of(
    uid: PodUid, node: NodeName, until: float, victims: Iterable[PodUid], since: float = inf
) -> str:
    """The annotation's value. Times are in seconds since 1970."""
    when = datetime.fromtimestamp(int(until), UTC)
    asked = None if since == inf else datetime.fromtimestamp(since, UTC)
    found = _Written(uid, node, when, sorted(victims), asked)
    return msgspec.json.encode(found).decode()
