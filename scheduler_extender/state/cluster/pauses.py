"""When the pauses of nodes end that refuse pods (see :mod:`.streak`)."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from topology.core.devices import NodeName


class Pauses:
    """A queue of nodes by the end of their pause, in seconds of the cluster's clock.

    A node may stand in it more than once; who takes it looks at the node's facts.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[float, NodeName]] = []

    def put(self, name: NodeName, until: float) -> None:
        """A node pauses until then."""
        heappush(self._queue, (until, name))

    def take(self, now: float) -> Iterator[NodeName]:
        """Each node of which a pause has ended by now."""
        while self._queue and self._queue[0][0] <= now:
            yield heappop(self._queue)[1]
