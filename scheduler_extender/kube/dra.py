"""Nodes whose GPUs are published through Dynamic Resource Allocation (DRA).

An agent may report that no device plugin serves anything on its node. Such a node's record is
merged with its ResourceSlices and ResourceClaims (:func:`topology.core.dra.served`), whenever one
of these changes. Records of nodes with a device plugin pass through unchanged.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_extender.kube.devicetracker import EVERY_NODE, YIELD, DeviceTracker
from scheduler_extender.kube.draobjects import Claim, DraObject
from scheduler_extender.kube.drasinks import dra_sinks
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import NodeName
from topology.core.dra import DraError
from topology.core.graph import NodeTopology
from topology.core.report import Report


@dataclass(frozen=True, slots=True)
class _AgentRecord:
    """What the agent of a node has written."""

    topology: NodeTopology
    report: Report | None
    uid: str
    at: float  # when it was written, by the extender's clock


class DraNodes:
    """All nodes under DRA. The threads of several reflectors feed them."""

    def __init__(self, cluster: Cache) -> None:
        self._cache, self._faults, self._clock = cluster, cluster.faults, cluster.clock
        self._tracker = DeviceTracker(cluster.settings.managed, cluster.faults)
        self._lock = threading.Lock()
        self._agents: dict[NodeName, _AgentRecord] = {}
        self.sinks = dra_sinks(cluster, self.change)
        cluster.foresees, cluster.claims_known = self._tracker.foresee, self.claims_known

    @property
    def has_nodes(self) -> bool:
        """Whether there is a node that no device plugin serves."""
        return bool(self._agents)

    # The agents' records, in the form in which :class:`.Cache` takes them.

    def put_record(
        self, topology: NodeTopology, report: Report | None, *, uid: str = "", age: float = 0.0
    ) -> None:
        """Take in a record of a node."""
        name = topology.name
        self._tracker.read(name)
        with self._lock:
            known, now = self._agents.get(name), self._clock()
            anew = known is None or known.uid != uid
            earlier = None if known is None or anew else known.report
            # If the kubelet offers nothing, an agent names the usual resource all the same, since
            # the plugin may come back.
            offers = report is None or report.allocatable != frozenset()
            if report is not None and earlier is not None and not report.follows(earlier):
                self._cache.reports_out_of_order += 1
            elif topology.resources and offers:  # a device plugin serves the GPUs
                self._agents.pop(name, None)
                self._cache.put_record(topology, report, uid=uid, age=age)
            else:
                if known is None or anew:
                    at = now - max(0.0, age)
                else:
                    at = known.at if known.report == report else now
                self._agents[name] = _AgentRecord(topology, report, uid, at)
                self._put(name, spoken=True)

    def put_problem(self, name: NodeName, problem: str) -> None:
        """Take in that a node's record cannot be used."""
        with self._lock:
            self._agents.pop(name, None)
            self._cache.put_problem(name, problem)

    def drop_record(self, name: NodeName) -> None:
        """Take in that a record is gone."""
        with self._lock:
            self._agents.pop(name, None)
            self._cache.drop_record(name)

    def keep_records(self, names: set[NodeName]) -> None:
        """Take in that all records but these are gone."""
        with self._lock:
            self._agents = {name: self._agents[name] for name in self._agents.keys() & names}
            self._cache.keep_records(names)

    # The objects with which the records are merged.

    def change(self, before: Sequence[DraObject], after: Sequence[DraObject]) -> None:
        """Replace the objects ``before`` by the objects ``after``.

        A node that is merged meanwhile is in the state between two events of a watch.
        """
        changed = self._tracker.change(before, after)
        with self._lock:
            names = {name for name in self._agents if name in changed or EVERY_NODE in changed}
        for name in sorted(names):
            self._tracker.read(name)
            with self._lock:
                self._put(name, spoken=False)
                # Even if no GPU changes hands: what claims get depends on other devices, too.
                self._cache.tell_of(self._agents.keys() & {name})
            time.sleep(YIELD)
        had, have = (
            {obj.key for obj in each if isinstance(obj, Claim) and obj.status.allocation}
            for each in (before, after)
        )
        if had - have:
            self._cache.tell_of_deallocated(had - have)

    def claims_known(self, pod: PodRecord, number: int, node: NodeName) -> bool:
        """Check whether the pod's claims are known, as :attr:`.Cache.claims_known` describes."""
        self._tracker.read(node)
        with self._lock:
            if node not in self._agents:
                return True
            known = self._tracker.claims_known(pod, number, node)
            self._put(node, spoken=False)  # afterwards, so that it shows what is known
            return known

    def _put(self, name: NodeName, *, spoken: bool) -> None:
        """Put the merged record of a node into the cache.

        ``spoken`` says that its agent has reported.
        """
        agent = self._agents.get(name)
        if agent is None:
            return
        topology, report = agent.topology, agent.report
        try:
            if report is not None:
                topology, report = self._tracker.served(topology, report)
        except DraError as error:
            self._cache.put_problem(name, str(error))
        except Exception as error:  # noqa: BLE001 (a listener logs it)
            # A fault of our code costs this node, not the others of the same change.
            self._faults.note(name, error)
            self._cache.put_problem(name, f"internal error: {type(error).__name__}")
        else:
            self._cache.put_record(
                topology, report, uid=agent.uid, age=self._clock() - agent.at, spoken=spoken
            )
