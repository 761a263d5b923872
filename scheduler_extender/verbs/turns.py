"""Binds to one node are written a few at a time, until its kubelet has answered those before.

A kubelet that refuses every pod looks like any other until its first answer is seen, and a
scheduler can bind a pod for each free GPU by then. So no more than :data:`AT_ONCE` pods are with a
kubelet at one time that it has neither admitted nor refused; a later bind is in flight,
and its write waits. An answer takes a tenth of a second as a rule. A pod without one holds up
others for :data:`LONGEST` at most: what we do not know keeps nobody away for long. Where the
kubelet has admitted a pod of the same kind since its node last changed
(:mod:`scheduler_extender.state.node.history`), a bind waits only behind :data:`KNOWN_AT_ONCE` pods.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

from scheduler_extender.deadline import Deadline
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord, resource_of
from topology.core.devices import NodeName, PodUid
from topology.core.requests import GpuRequest

T = TypeVar("T")

# Pods of one node and resource whose kubelet has not answered. One would do; with two, the kubelet
# has work while the answer about the first is on its way.
AT_ONCE = 2
# The same for a pod of a kind that the kubelet has admitted since its node last changed. So many
# are lost where it refuses all of them from one moment to the next, and nothing else shows it.
KNOWN_AT_ONCE = 4
# Seconds after which a pod without an answer holds up nobody. Answers came within 0.1 s on a quiet
# machine, and after 9 s at most where seven programs shared each processor.
LONGEST = 5.0
# Binds that wait for their turn at one time, and as many for news of their node: each a third of
# the threads for binds. Whoever comes then does not wait.
MOST_WAITING = 32
# What a bind waits for: its turn, news of its node, and the API server's answer to the write.
TURN, REPORT, WRITE = "turn", "report", "write"
# Seconds after which a bind looks again though nothing has changed on its node: whether it is late
# by now, or a pod without an answer has held it up for long enough.
LOOKS_EVERY = 0.25


@dataclass(slots=True, eq=False)
class _Bind:
    """The bind of a pod; a repeated bind of the same pod is another.

    ``until`` is up to when it holds up others, from its turn on. ``news`` is set where something
    has changed on its node.
    """

    uid: PodUid
    node: NodeName
    resource: str
    until: float = 0.0
    news: threading.Event = field(default_factory=threading.Event)

    def beside(self, other: Self) -> bool:
        """Whether both are for the same kubelet and resource."""
        return (self.node, self.resource) == (other.node, other.resource)


class Turns:
    """Whose bind is written next, node by node. Methods may be called from any thread.

    ``longest`` is :data:`LONGEST`, ``clock`` gives the seconds by which it is counted.
    ``late_for_turn`` and ``late_for_news`` count the binds that were given up while they waited.
    ``waited`` is told how many seconds a bind has waited, and for what (:data:`TURN` …).
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
        # Tuples, which are replaced: whoever changes a node looks at them without our lock.
        self._waiting: dict[NodeName, tuple[_Bind, ...]] = {}
        self._given: list[_Bind] = []
        self._listening: dict[NodeName, tuple[threading.Event, ...]] = {}
        self.late_for_turn = 0
        self.late_for_news = 0
        self.waited: Callable[[str, float], None] = lambda awaits, seconds: None
        cluster.on_change.append(self._news)

    @property
    def waiting_for_turn(self) -> int:
        """How many binds wait for their turn now."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @property
    def waiting_for_news(self) -> int:
        """How many binds wait for news of their node now."""
        with self._lock:
            return sum(map(len, self._listening.values()))

    def wait(self, pod: PodRecord, deadline: Deadline, *, hazards: bool = True) -> bool:
        """Whether the turn of a bind in flight comes before the deadline.

        ``hazards`` is whether the kubelet may refuse the pod for all that is known of it.
        """
        if self._cluster.settings.refusals is Refusals.IGNORE or pod.node is None:
            return True
        bind = _Bind(pod.uid, pod.node, resource_of(pod))
        with self._lock:
            if sum(map(len, self._waiting.values())) >= MOST_WAITING:
                self._give(bind)
                return True
            self._waiting[bind.node] = (*self._waiting.get(bind.node, ()), bind)
        try:
            with self.timed(TURN):
                while True:
                    bind.news.clear()
                    if self._has_turn(bind, pod, hazards=hazards):
                        return True
                    if deadline.passed():
                        break
                    bind.news.wait(LOOKS_EVERY)
        finally:
            with self._lock:
                _take_out(self._waiting, bind.node, bind)
            self._news(bind.node)
        with self._lock:
            self.late_for_turn += 1
        return False

    @contextmanager
    def timed(self, awaits: str) -> Iterator[None]:
        """Tell how long a bind waits inside the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited(awaits, time.perf_counter() - began)

    def anybody_waits(self, node: NodeName) -> bool:
        """Whether a bind to a node waits for its turn."""
        return node in self._waiting

    def gave_up_news(self) -> None:
        """A bind that waited for news of its node is given up."""
        with self._lock:
            self.late_for_news += 1

    @contextmanager
    def news_of(self, node: NodeName) -> Iterator[threading.Event | None]:
        """An event that is set whenever something changes on a node, inside the block; None where
        so many binds wait already that nobody else should."""
        news = threading.Event()
        with self._lock:
            crowded = sum(map(len, self._listening.values())) >= MOST_WAITING
            if not crowded:
                self._listening[node] = (*self._listening.get(node, ()), news)
        try:
            with self.timed(REPORT):
                yield None if crowded else news
        finally:
            with self._lock:
                _take_out(self._listening, node, news)

    def _news(self, node: NodeName) -> None:
        """Something has changed on a node: who waits there looks again. Takes no lock."""
        for bind in self._waiting.get(node, ()):
            bind.news.set()
        for news in self._listening.get(node, ()):
            news.set()

    def _has_turn(self, bind: _Bind, pod: PodRecord, *, hazards: bool) -> bool:
        """Whether few enough pods are with the kubelet; from then on this one is, too."""
        with self._lock:
            now = self._clock()
            self._given = [given for given in self._given if given.until > now]
            facts = self._cluster.facts(bind.node)
            unanswered = {pod.uid for pod in facts.pods.unanswered(bind.resource)}
            open_ = sum(given.uid in unanswered and given.beside(bind) for given in self._given)
            waiting = self._waiting[bind.node]
            ahead = sum(map(bind.beside, waiting[: waiting.index(bind)]))
            known = (
                not hazards
                and isinstance(pod.request, GpuRequest)
                and facts.topology is not None
                and facts.history.surely_admits(pod.request, facts.topology.allocator)
            )
            if open_ + ahead >= (KNOWN_AT_ONCE if known else AT_ONCE):
                return False
            self._give(bind)
            return True

    def _give(self, bind: _Bind) -> None:
        bind.until = self._clock() + self._longest
        others = [given for given in self._given if given.uid != bind.uid]
        self._given = [*others, bind]  # a repeated bind of one pod counts once


def _take_out(of: dict[NodeName, tuple[T, ...]], node: NodeName, gone: T) -> None:
    """Take one out of those of a node; at no moment do the others stand outside."""
    others = tuple(each for each in of.get(node, ()) if each is not gone)
    if others:
        of[node] = others
    else:
        of.pop(node, None)
