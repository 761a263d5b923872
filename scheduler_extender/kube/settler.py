"""Ends binds in flight that nobody confirms: by asking the API server, twice where it is unsure."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from scheduler_extender.kube.binder import SETTLED_AFTER, KubeBinder
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import BindError, BindUnknownError
from topology.core.devices import PodUid

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Flight:
    """A bind in flight as the settler follows it: since when, and when it was first read as unbound
    after the patience; times in seconds. ``before`` is the one whose place it took."""

    pod: PodRecord
    since: float
    unbound_at: float | None = None
    before: "_Flight | None" = None


class Settler:
    """Ends binds in flight that nobody confirms.

    A pod that is read as bound, or as gone, settles its bind at once. One that is read as unbound
    may be bound yet, by a write that is still under way: in the API server for as long as we told
    it, in etcd for a margin more, and for any time in the socket of a server that does not run. So
    two readings have to say unbound, each after the ``patience`` in seconds: the first shows that
    the server runs, and what had reached it by then is done with at the second. Of several API
    servers another one may have answered; so where we are one of several replicas the pod is
    changed before the second reading, and no Binding from before can be written after that.
    """

    def __init__(
        self,
        cluster: Cluster,
        binder: KubeBinder,
        *,
        patience: float = SETTLED_AFTER,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cluster = cluster
        self._binder = binder
        self._patience = patience
        self._clock = clock
        self._flights: dict[PodUid, _Flight] = {}

    def round(self, now: float) -> None:
        """Look at every bind that has been in flight for longer than the patience.

        One reading may take seconds, and the next bind is read so much later than ``now``: the
        ``clock`` tells how much. By default no time passes.
        """
        began = self._clock()
        flying = self._cluster.snapshot().in_flight.values()
        self._flights = {pod.uid: self._flight(pod, now) for pod in flying}
        for flight in self._flights.values():
            last = flight.since if flight.unbound_at is None else flight.unbound_at
            if now - last >= self._patience:
                try:
                    self._settle(flight, lambda: now + self._clock() - began)
                except Exception:
                    # What fails for one pod must not keep the others in flight.
                    log.exception("a bind could not be settled", pod=flight.pod.name)

    def _flight(self, pod: PodRecord, now: float) -> _Flight:
        """A bind as it is followed: each has its own patience, also where a pod is bound once more.

        One that comes back, since the bind after it was surely not written, goes on with its own.
        """
        known = self._flights.get(pod.uid)
        if known is None:
            return _Flight(pod, now)
        if known.pod is pod:
            return known
        if known.before is not None and known.before.pod is pod:
            return known.before
        known.before = None
        return _Flight(pod, now, before=known)

    def _settle(self, flight: _Flight, clock: Callable[[], float]) -> None:
        pod = flight.pod
        try:
            if flight.unbound_at is not None:
                self._binder.void(pod)
            read = self._binder.find(pod.namespace, pod.name, pod.uid)
            version = self._binder.version() if read is None else 0
        except (BindUnknownError, BindError) as error:
            log.info("a bind in flight cannot be looked up", pod=pod.name, cause=str(error))
            return
        with self._cluster.locked():
            if self._cluster.cache.assumed(pod.uid) is not pod:
                return  # another bind has begun, or the pod is gone meanwhile
            if read is None:
                self._cluster.feed.drop_in_flight(pod.uid, version)
            elif read.node is not None:
                self._cluster.feed.put_pod(read)
            elif flight.unbound_at is None:
                flight.unbound_at = clock()
            else:
                self._cluster.cache.forget(pod)
                # The pod was refused everywhere else, so any node may be news to it.
                self._cluster.tell_of_all_nodes()
