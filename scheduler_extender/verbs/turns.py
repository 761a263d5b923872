"""Binds to one node are written a few at a time, until its kubelet has answered those before.

A kubelet that refuses every pod looks like any other until its first answer is seen, and a
scheduler can bind a pod for each free GPU by then. So no more than :data:`AT_ONCE` pods are with a
kubelet at one time that it has neither admitted nor refused; whoever comes later is reserved, and
waits with the write. An answer takes a fraction of a second. A kubelet that gives none holds nobody
up for longer than :data:`LONGEST`: what we do not know keeps no pod away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Refusals
from scheduler_extender.state.node import resource_of
from scheduler_extender.state.pods import PodRecord
from topology.core.devices import NodeName

AT_ONCE = 2
"""Pods of one node and resource whose kubelet has not answered. One would do; with two, the kubelet
has work while the answer about the first is on its way."""
LONGEST = 2.0
"""Seconds for which a bind waits for its turn."""
MOST_WAITING = 32
"""Binds that wait at one time, half of the threads for binds; whoever comes then does not wait."""
BETWEEN_LOOKS = 0.02
"""Seconds between two looks at what the kubelet has answered."""


class Turns:
    """Whose bind is written next, node by node. Methods may be called from any thread.

    ``longest`` is :data:`LONGEST`, ``clock`` gives the seconds by which it is counted.
    """

    def __init__(
        self,
        cluster: Cluster,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._longest = longest
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[NodeName, list[_Ticket]] = {}

    def wait(self, pod: PodRecord) -> None:
        """Return when the bind of a reserved pod may be written, or has waited for too long."""
        if self._cluster.settings.refusals is Refusals.IGNORE or pod.node is None:
            return
        until, ticket = self._clock() + self._longest, _Ticket(pod)
        with self._lock:
            if sum(map(len, self._waiting.values())) >= MOST_WAITING:
                return
            self._waiting.setdefault(pod.node, []).append(ticket)
        while not self._has_turn(ticket, pod.node, late=self._clock() >= until):
            time.sleep(BETWEEN_LOOKS)

    def _has_turn(self, ticket: _Ticket, node: NodeName, *, late: bool) -> bool:
        """Whether few enough pods are with the kubelet; from then on this one is, too."""
        with self._lock:
            queue = self._waiting[node]
            unanswered = self._cluster.facts(node).unanswered(resource_of(ticket.pod))
            waiting = {other.pod.uid for other in queue}
            written = sum(other.uid not in waiting for other in unanswered)
            if written + queue.index(ticket) >= AT_ONCE and not late:
                return False
            queue.remove(ticket)
            if not queue:
                del self._waiting[node]
            return True


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """One bind that waits; a repeated bind of the same pod is another."""

    pod: PodRecord
