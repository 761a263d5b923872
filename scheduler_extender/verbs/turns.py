"""Binds to one node are written a few at a time, until its kubelet has answered those before.

A kubelet that refuses every pod looks like any other until its first answer is seen, and a
scheduler can bind a pod for each free GPU by then. So no more than :data:`AT_ONCE` pods are with a
kubelet at one time that it has neither admitted nor refused; whoever comes later is reserved, and
waits with the write. An answer takes a tenth of a second as a rule. A pod without one holds up
others for :data:`LONGEST` at most: what we do not know keeps nobody away for long.
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
from topology.core.devices import NodeName, PodUid

AT_ONCE = 2
"""Pods of one node and resource whose kubelet has not answered. One would do; with two, the kubelet
has work while the answer about the first is on its way."""
LONGEST = 5.0
"""Seconds after which a pod without an answer holds up nobody. Answers came within 0.1 s on a quiet
machine, and after 9 s at most where seven programs shared each processor."""
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
        self._waiting: list[_Bind] = []
        self._given: list[_Bind] = []

    def wait(self, pod: PodRecord, late: Callable[[], bool]) -> bool:
        """Whether it is the turn of a reserved pod's bind, before it is ``late``."""
        if self._cluster.settings.refusals is Refusals.IGNORE or pod.node is None:
            return True
        bind = _Bind(pod.uid, pod.node, resource_of(pod))
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._give(bind)
                return True
            self._waiting.append(bind)
        try:
            while not late():
                if self._has_turn(bind):
                    return True
                time.sleep(BETWEEN_LOOKS)
        finally:
            with self._lock:
                self._waiting.remove(bind)
        return False

    def _has_turn(self, bind: _Bind) -> bool:
        """Whether few enough pods are with the kubelet; from then on this one is, too."""
        with self._lock:
            now = self._clock()
            self._given = [given for given in self._given if given.until > now]
            facts = self._cluster.facts(bind.node)
            unanswered = {pod.uid for pod in facts.unanswered(bind.resource)}
            open_ = sum(given.beside(bind) and given.uid in unanswered for given in self._given)
            ahead = sum(map(bind.beside, self._waiting[: self._waiting.index(bind)]))
            if open_ + ahead >= AT_ONCE:
                return False
            self._give(bind)
            return True

    def _give(self, bind: _Bind) -> None:
        bind.until = self._clock() + self._longest
        others = [given for given in self._given if given.uid != bind.uid]
        self._given = [*others, bind]  # a repeated bind of one pod counts once


@dataclass(slots=True, eq=False)
class _Bind:
    """The bind of a pod; a repeated bind of the same pod is another.

    ``until`` is up to when it holds up others, from its turn on.
    """

    uid: PodUid
    node: NodeName
    resource: str
    until: float = 0.0

    def beside(self, other: _Bind) -> bool:
        """Whether both are for the same kubelet and resource."""
        return (self.node, self.resource) == (other.node, other.resource)
