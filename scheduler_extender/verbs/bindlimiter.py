"""The bind limiter: it decides, node by node, which bind is written next.

Binds to one node are written a few at a time, until its kubelet has answered the earlier ones. A
kubelet that refuses every pod looks like any other until its first answer is seen. By then a
scheduler can bind a pod for each free GPU. So at most :data:`AT_ONCE` pods are at one time with a
kubelet that has neither admitted nor refused them. The pod of a later bind is assumed, and its
write waits. As a rule, an answer takes a tenth of a second. A pod without an answer delays other
binds for at most :data:`LONGEST`: an unknown answer must not keep pods away for long. If the
kubelet has admitted a pod of the same kind since its node last changed
(:mod:`scheduler_extender.state.node.history`), a bind waits only behind :data:`KNOWN_AT_ONCE` pods.
"""

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

# The most unanswered pods of one node and resource. One would do. With two, the kubelet has work
# while its answer about the first is on the way.
AT_ONCE = 2
# The same limit for a pod of a kind that the kubelet has admitted since its node last changed. This
# many pods are lost if the kubelet suddenly refuses all of them and nothing else shows it.
KNOWN_AT_ONCE = 4
# Seconds after which a pod without an answer delays no other bind. Answers came within 0.1 s on a
# quiet machine, and after at most 9 s on a machine where seven programs shared each processor.
LONGEST = 5.0
# The most binds that wait for their kubelet at one time, and the most that wait for news of their
# node: each is a third of the threads for binds. A bind beyond this does not wait.
MOST_WAITING = 32
# What a bind waits for: the kubelet's answers, news of its node, and the API server's answer.
KUBELET, REPORT, WRITE = "kubelet", "report", "write"
# Seconds after which a bind checks again although nothing has changed on its node: it may be late
# by now, or a pod without an answer may have delayed it for long enough.
LOOKS_EVERY = 0.25


@dataclass(slots=True, eq=False)
class WaitingBind:
    """A bind that waits. A repeated bind of the same pod is another one.

    ``until`` is the time until which it delays other binds, once it may be written. ``news`` is set
    when its node has changed.
    """

    awaits: str
    node: NodeName
    uid: PodUid | None = None
    resource: str = ""
    until: float = 0.0
    news: threading.Event = field(default_factory=threading.Event)

    def beside(self, other: Self) -> bool:
        """Check whether both are for the same kubelet and resource."""
        return (self.node, self.resource) == (other.node, other.resource)


class BindLimiter:
    """Limits the binds that are with one kubelet at a time, and decides which is written next.

    Methods may be called from any thread.

    ``longest`` is :data:`LONGEST`, and ``clock`` returns the seconds by which it is measured.
    ``waited`` is called with what a bind has waited for (:data:`KUBELET` …) and for how many
    seconds. ``late`` counts the binds that were given up.
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
        # In order of arrival. The tuple is replaced, not changed, because a thread that changes a
        # node reads it without our lock.
        self._waiting: tuple[WaitingBind, ...] = ()
        self.late = Counter[str]()
        self.waited: Callable[[str, float], None] = lambda awaits, seconds: None
        cluster.on_change.append(self._news)

    def waiting(self, awaits: str, node: NodeName | None = None) -> list[WaitingBind]:
        """Return the binds that wait for this; with ``node``, only those to that node."""
        return [b for b in self._waiting if b.awaits == awaits and node in (None, b.node)]

    def wait(self, pod: PodRecord, deadline: Deadline, *, hazards: bool = True) -> bool:
        """Wait until an assumed bind may be written; return False if the deadline comes first.

        ``hazards`` is True if the kubelet may refuse the pod, as far as is known.
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
        """Return the result of ``ask``, called again at each news of the node.

        While ``ask`` raises :class:`.InProgressError`, it is called again until this is
        ``hopeless``. If too many binds wait already, it is called only once.

        kube-scheduler asks filter about the next pod before it sends the bind of the previous one.
        So two pods are sent to one node. Until the first one has its devices, a tenth of a second
        as a rule, the second could break the first one's promise, or gets no promise of its own. If
        it were refused, it would wait for a second or more.
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
        """Count a bind as waiting inside the block; yield False if too many wait already.

        The binds that wait on the same node check again afterwards.
        """
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
        """Measure how long a bind waits inside the block, and report it to ``waited``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.waited(awaits, time.perf_counter() - began)

    def _news(self, node: NodeName) -> None:
        """Wake the binds that wait for this node, because something has changed on it.

        Takes no lock.
        """
        for bind in self._waiting:
            if bind.node == node:
                bind.news.set()

    def _may_write(self, bind: WaitingBind, pod: PodRecord, *, hazards: bool) -> bool:
        """Check whether few enough pods are with the kubelet; if so, count this one, too."""
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
