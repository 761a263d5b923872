"""Follow a Kubernetes API server and write to it, each in threads.

Three reflectors keep the cluster equal to the server's GPUTopology objects, pods and nodes.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog

from scheduler_extender.kube.bindable import Bindable
from scheduler_extender.kube.binder import Fence, KubeBinder, Settler
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.drasinks import CLAIMS_PATH, SLICES_PATH
from scheduler_extender.kube.events import EventWriter
from scheduler_extender.kube.sinks import (
    BUDGETS_PATH,
    NODES_PATH,
    PAGE,
    PODS_PATH,
    RECORDS_PAGE,
    RECORDS_PATH,
    BudgetSink,
    NodeSink,
    PodSink,
    RecordSink,
)
from scheduler_extender.kube.waiting import WaitingPods
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.cluster import freshness
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import Watch
from topology.kubeapi.apiserver import ApiServer
from topology.kubeapi.reflector import Reflector, Timing, Watched

log = structlog.get_logger(__name__)

Work = TypeVar("Work")
_Take = Callable[[str, str, Callable[[], int]], None]

# The extender is a single client, so it may reconnect soon after an outage. Pods wait for the
# events that it has missed.
TIMING = Timing(backoff_cap_s=2.0, relist_after_s=60.0)


class Replica(Fence, Protocol):
    """One of several replicas (``leader``), of which only one writes."""

    bindable: Bindable

    def leads(self) -> bool:
        """Check whether this replica answers and writes now."""
        ...


class KubeSource:
    """The reflectors of one API server, with the lookout, settler, waker and event writers.

    Each has a thread of its own, so that one that waits does not hold up the others.
    """

    ROUND = 0.25  # seconds between two rounds

    def __init__(
        self,
        api: ApiServer,
        cluster: Cache,
        replica: Replica | None = None,
    ) -> None:
        self._api = api
        bindable = replica.bindable if replica is not None else None
        self._leads = replica.leads if replica is not None else lambda: True
        # Usual Events have a rate limit of their own, so that they do not crowd out the unusual
        # ones.
        self._news = EventWriter(api)
        self.binder = KubeBinder(api, cluster, replica, self._news.note_placed)
        self._waiting = WaitingPods(cluster, self._news.note_waiting)
        self.waker = Waker(cluster, api)
        self._settler = Settler(cluster, self.binder, clock=time.monotonic)
        self._events = EventWriter(api)
        cluster.on_misprediction.append(self._if_leading(self._events.note))
        cluster.on_refusal.append(self._if_leading(self._events.note_refusal))
        # Writes an Event on a pod that nodes would reject without shadow mode.
        self.note_would_reject = self._if_leading(self._events.note_would_reject)
        self._dra = DraNodes(cluster)
        self.reflectors = [
            Reflector(api, Watched(path, page_limit=page), sink, TIMING)
            for path, sink, page in (
                (RECORDS_PATH, RecordSink(cluster, feed=self._dra), RECORDS_PAGE),
                (PODS_PATH, PodSink(cluster, bindable=bindable), PAGE),
                (NODES_PATH, NodeSink(cluster), PAGE),
            )
        ]
        # The readiness does not depend on these reflectors, since no promise does. (Under DRA the
        # claim says at bind which devices the pod gets. A bind whose claim is not seen is not
        # written.)
        self._others = [
            Reflector(api, Watched(BUDGETS_PATH, page_limit=PAGE), BudgetSink(cluster), TIMING)
        ] + [
            Reflector(
                api, Watched(path, page_limit=PAGE, optional=True, again=of.again), of, TIMING
            )
            for path, of in self._dra.sinks.items()
        ]
        self._cluster = cluster
        self._is_stale = False
        cluster.watches = self.watches
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (
                ("lookout", self._look_out),
                ("settler", self._settler.round),
                # The others record what has changed.
                ("waker", self._if_leading(self.waker.round)),
                ("waiting", self._if_leading(self._explain)),
                ("events", lambda _: self._events.round()),
                ("news", lambda _: self._news.round()),
            )
        ]

    def unready(self) -> str | None:
        """Return why the extender cannot answer yet; None once every list is taken in whole."""
        missing = [r.name for r in self.reflectors if not r.state.synced]
        return f"not synced: {', '.join(missing)}" if missing else None

    def watches(self) -> list[Watch]:
        """Return how fresh each watch is."""
        states = [(reflector.name, reflector.state) for reflector in self.reflectors]
        return [
            Watch(name, state.whole_at, None if state.streaming else state.failing_since)
            for name, state in states
        ]

    @contextmanager
    def following(self, count: _Take, show: _Take) -> Iterator[None]:
        """Follow the cluster inside the block. The metrics are those of :meth:`measure`."""
        self.measure(count, show)
        self.start()
        try:
            yield
        finally:
            self.stop()

    def measure(self, count: _Take, show: _Take) -> None:
        """Hand over the metrics.

        ``count`` gets a function for each metric that only rises, ``show`` one for each that may
        also fall.
        """
        waker = self.waker
        count("wakes", "Waiting pods woken after a node had changed.", lambda: waker.woken)
        count(
            "waker_failures",
            "Waiting pods whose request could not be evaluated.",
            lambda: waker.failed,
        )
        count(
            "events_dropped",
            "Events not written: too many, or refused by the API server.",
            lambda: self._events.dropped + self._news.dropped,
        )
        show(
            "claims_not_followed",
            "Waiting ResourceClaims beyond the limit of followed ones.",
            lambda: self._dra.sinks[CLAIMS_PATH].outside,
        )
        show(
            "resource_slices_not_followed",
            "ResourceSlices beyond the limit of followed devices.",
            lambda: self._dra.sinks[SLICES_PATH].outside,
        )

    def start(self) -> None:
        """Start listing and watching, each in a thread of its own."""
        for reflector in (*self.reflectors, *self._others):
            reflector.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all threads and close all connections."""
        self._stopping.set()
        self._api.close()  # first, to cut off requests that wait for an answer
        for reflector in (*self.reflectors, *self._others):
            reflector.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5)

    def _look_out(self, now: float) -> None:
        """Log when watches become stale.

        When all are fresh again, let waiting pods be woken anew.
        """
        was, self._is_stale = self._is_stale, self._cluster.is_stale()
        if self._is_stale and not was:
            names = freshness.stale_watches(self.watches(), now)
            log.error(
                "pods with required constraints are rejected because watches are stale",
                watches=names,
            )
        elif was and not self._is_stale:
            log.info("all watches are up to date again")
            self._cluster.tell_of_all_nodes()

    def _explain(self, now: float) -> None:
        """Say why pods wait, unless a part of the cluster is unknown or stale."""
        if self.unready() is None and not self._cluster.is_stale():
            self._waiting.round(now)

    def _if_leading(self, act: Callable[[Work], None]) -> Callable[[Work], None]:
        """Return ``act`` restricted to the leader: of several replicas only one writes."""

        def acting(on: Work) -> None:
            if self._leads():
                act(on)

        return acting

    def _run(self, work: Callable[[float], None]) -> None:
        while not self._stopping.wait(self.ROUND * random.uniform(0.8, 1.2)):  # noqa: S311
            try:
                work(time.monotonic())
            except Exception:
                # One failed round must not end all later ones.
                log.exception("round failed", thread=threading.current_thread().name)
