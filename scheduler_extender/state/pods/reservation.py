"""The annotation that gives a waiting pod a reservation (:data:`.annotations.RESERVED`).

Its value is JSON, and ``gpu-topology unblock --evict`` writes it once::

    {"uid": "5f…", "node": "train-01", "until": "2026-11-22T12:05:00Z", "victims": ["7a…"]}

It names the pod's own UID, so it has no effect in a template.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Annotated

import msgspec

from scheduler_extender.annotations import RESERVED
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.times import instant

# A reservation lasts an hour at most. One with a later end does not count yet. The clocks of
# computers may differ by minutes.
MAX_SECONDS = 3600.0
CLOCKS_DIFFER = 300.0
MAX_VICTIMS = 64


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices on a node that other pods may not take from a waiting pod."""

    node: NodeName
    until: float  # in seconds since 1970
    # evicted for it; the reservation is free once they have released their devices
    victims: frozenset[PodUid] = frozenset()

    def lasts(self, today: float) -> bool:
        """Check whether it counts at this time of day, in seconds since 1970."""
        return today < self.until and not self.too_late(today)

    def too_late(self, today: float) -> str:
        """Return a message if it does not count yet because it ends too late; otherwise empty."""
        if self.by_nomination or self.begins <= today:
            return ""
        ends = datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            f"the annotation {RESERVED} is not in effect yet: it ends at {ends}, and a "
            "reservation lasts at most one hour"
        )

    @property
    def begins(self) -> float:
        """The time of day from which a reservation by annotation counts."""
        return self.until - MAX_SECONDS - CLOCKS_DIFFER

    @property
    def by_nomination(self) -> bool:
        """Whether kube-scheduler makes it for a nominated pod. Its end is then not known."""
        return self.until == inf

    @property
    def until_text(self) -> str:
        """The time of day at which it ends, to the minute; always the same text.

        >>> Reservation(NodeName("n"), 43500.0).until_text
        '12:05 UTC'
        """
        if self.by_nomination:
            return "kube-scheduler has bound the pod"
        return datetime.fromtimestamp(self.until, UTC).strftime("%H:%M UTC")


MOST_RESERVATIONS = 8  # the most nominated pods with a reservation on one node


class _Written(msgspec.Struct, omit_defaults=True):
    uid: str
    node: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    until: datetime
    victims: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=MAX_VICTIMS)
    ] = []


_read = msgspec.json.Decoder(_Written).decode


def reservation_of(pod: Pod) -> Reservation | None:
    """Return the reservation of a pod by annotation; None if there is none or it cannot be read."""
    text = (pod.metadata.annotations or {}).get(RESERVED)
    if text is None or pod.spec.node_name:
        return None
    try:
        written = _read(text)
        until = instant(written.until).timestamp()
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return None
    if written.uid != pod.metadata.uid:
        return None
    victims = frozenset(map(PodUid, written.victims))
    return Reservation(NodeName(written.node), until, victims)


def value_of(uid: PodUid, node: NodeName, until: float, victims: Iterable[PodUid]) -> str:
    """Return the annotation's value; ``until`` is in seconds since 1970."""
    when = datetime.fromtimestamp(int(until), UTC)
    return msgspec.json.encode(_Written(uid, node, when, sorted(victims))).decode()
