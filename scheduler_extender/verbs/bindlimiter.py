"""Whose bind is written next, node by node.

Binds to one node are written a few at a time, until its kubelet has answered those before. A
kubelet that refuses every pod looks like any other until its first answer is seen, and a scheduler
can bind a pod for each free GPU by then. So no more than :data:`AT_ONCE` pods are with a kubelet at
one time that it has neither admitted nor refused; a later bind is in flight, and its write waits.
An answer takes a tenth of a second as a rule. A pod without one holds up others for
:data:`LONGEST` at most: what we do not know keeps nobody away for long. Where the kubelet has
admitted a pod of the same kind since its node last changed
(:mod:`scheduler_extender.state.node.history`), a bind waits only behind :data:`KNOWN_AT_ONCE` pods.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

from scheduler_extender.deadline import Deadline
from scheduler_extender.state.answers.decision import Refusals
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord, resource_of
from scheduler_extender.verbs.assume import InProgressError
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
KUBELET, REPORT, WRITE = "kubelet", "report", "write"
# Seconds after which a bind looks again though nothing has changed on its node: whether it is late
# by now, or a pod without an answer has held it up for long enough.
LOOKS_EVERY = 0.25


@dataclass(slots=True, eq=False)
class WaitingBind:
    """A bind that waits; a repeated bind of the same pod is another.

    ``until`` is up to when it holds up others, from its turn on. ``news`` is set where something
    has changed on its node.
    """

    awaits: str
    node: NodeName
    uid: PodUid | None = None
    resource: str = ""
    until: float = 0.0
    news: threading.Event = field(default_factory=threading.Event)

    def beside(self, other: Self) -> bool:
        """Whether both are for the same kubelet and resource."""
        return (self.node, self.resource) == (other.node, other.resource)


class BindLimiter:
    """Limits the binds that are with one kubelet at a time; decides whose bind is written next.
    Methods may be called from any thread.

    ``longest`` is :data:`LONGEST`, ``clock`` gives the seconds by which it is counted. ``waited``
    is told how many seconds a bind has waited, and for what (:data:`KUBELET` …); ``late`` counts
    those that were given up.
    """

    def __init__(
        self,
        cluster: Cache,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._longest = longest
        self._clock = clock
        self._lock = threading.RLock()
        self._given: list[WaitingBind] = []
        # In the order in which they came. It is replaced: whoever changes a node looks at it
        # without our lock.
        self._waiting: tuple[WaitingBind, ...] = ()
        self.late = Counter[str]()
        self.waited: Callable[[str, float], None] = lambda awaits, seconds: None
        cluster.on_change.append(self._news)

    def waiting(self, awaits: str, node: NodeName | None = None) -> list[WaitingBind]:
        """The binds that wait for this, those to one node where it is named."""
        return [b for b in self._waiting if b.awaits == awaits and node in (None, b.node)]

    def wait(self, pod: PodRecord, deadline: Deadline, *, hazards: bool = True) -> bool:
        """Whether the turn of a bind in flight comes before the deadline.

        ``hazards`` is whether the kubelet may refuse the pod for all that is known of it.
        """
        if self._cluster.settings.refusals is Refusals.IGNORE or pod.node is None:
            return True
        bind = WaitingBind(KUBELET, pod.node, pod.uid, resource_of(pod))
        with self.joined(bind) as joins:
            if not joins:
                self._give(bind)
            while joins and not self._may_write(bind, pod, hazards=hazards):
                if deadline.passed():
                    self._give_up(bind)
                    return False
                bind.news.wait(LOOKS_EVERY)
                bind.news.clear()
        return True

    def await_news(self, ask: Callable[[], T], node: NodeName, hopeless: Callable[[], bool]) -> T:
        """The answer to ``ask``, asked again at each news of the node while it raises
        :class:`.InProgressError`, until that is ``hopeless``; where too many wait, once more.

        kube-scheduler asks filter about the next pod before it sends the bind of the one before. So
        two pods are sent to one node. Until the first one has its devices, a tenth of a second as a
        rule, the second could break its promise, or has none of its own. Refused, it would wait a
        second and more.
        """
        bind = WaitingBind(REPORT, node)
        with self.joined(bind) as joins:
            while True:
                bind.news.clear()
                try:
                    return ask()
                except InProgressError:
                    if not joins or hopeless():
                        self._give_up(bind)
                        raise
                bind.news.wait(LOOKS_EVERY)

    @contextmanager
    def joined(self, bind: WaitingBind) -> Iterator[bool]:
        """Inside, a bind waits; False where so many do already that it should not. Those that wait
        beside it look again afterwards."""
        with self._lock:
            joins = len(self.waiting(bind.awaits)) < MOST_WAITING
            if joins:
                self._waiting = (*self._waiting, bind)
        try:
            with self.timed(bind.awaits):
                yield joins
        finally:
            with self._lock:
                self._waiting = tuple(each for each in self._waiting if each is not bind)
            self._news(bind.node)

    def _give_up(self, bind: WaitingBind) -> None:
        with self._lock:
            self.late[bind.awaits] += 1

    @contextmanager
    def timed(self, awaits: str) -> Iterator[None]:
        """Tell how long a bind waits inside the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited(awaits, time.perf_counter() - began)

    def _news(self, node: NodeName) -> None:
        """Something has changed on a node: who waits there looks again. Takes no lock."""
        for bind in self._waiting:
            if bind.node == node:
                bind.news.set()

    def _may_write(self, bind: WaitingBind, pod: PodRecord, *, hazards: bool) -> bool:
        """Whether few enough pods are with the kubelet; from then on this one is, too."""
        with self._lock:
            now = self._clock()
            self._given = [given for given in self._given if given.until > now]
            info = self._cluster.node_info(bind.node)
            unanswered = {pod.uid for pod in info.pods.unanswered(bind.resource)}
            open_ = sum(given.uid in unanswered and given.beside(bind) for given in self._given)
            waiting = self.waiting(KUBELET)
            ahead = sum(map(bind.beside, waiting[: waiting.index(bind)]))
            known = (
                not hazards
                and isinstance(pod.request, GpuRequest)
                and info.topology is not None
                and info.history.surely_admits(pod.request, info.topology.allocator)
            )
            if open_ + ahead >= (KNOWN_AT_ONCE if known else AT_ONCE):
                return False
            self._give(bind)
            return True

    def _give(self, bind: WaitingBind) -> None:
        with self._lock:
            bind.until = self._clock() + self._longest
            others = [given for given in self._given if given.uid != bind.uid]
            self._given = [*others, bind]  # a repeated bind of one pod counts once
