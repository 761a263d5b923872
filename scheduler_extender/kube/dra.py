"""Nodes whose GPUs are published through Dynamic Resource Allocation (DRA).

A node whose agent reports that no device plugin serves anything is put together with its
ResourceSlices and ResourceClaims (:func:`topology.core.dra.served`), whenever one of these changes.
Records of nodes with a device plugin pass through.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from scheduler_extender.annotations import managed_among
from scheduler_extender.kube.draobjects import Claim, DeviceClass, Slice
from scheduler_extender.kube.sinks import UNREADABLE, ObjectSink
from scheduler_extender.state.cluster.cluster import Cluster
from topology.core.devices import NodeName
from topology.core.dra import Claimed, DraError, Published, served
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.kubeapi.reflector import Sink

GROUP = "/apis/resource.k8s.io/v1"
MOST_DEVICES = 2000  # of a node's pool, its parts (MIG) included
Object = TypeVar("Object", DeviceClass, Slice, Claim)
Known = DeviceClass | Slice | Claim


@dataclass(frozen=True, slots=True)
class _AgentRecord:
    """What the agent of a node has written."""

    topology: NodeTopology
    report: Report | None
    uid: str
    age: float


class DraNodes:
    """All that is known of nodes under DRA; threads of several reflectors feed it."""

    def __init__(self, cluster: Cluster) -> None:
        self._feed, self._managed = cluster.feed, cluster.settings.managed
        self._lock = threading.Lock()
        self._agents: dict[NodeName, _AgentRecord] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._slices = defaultdict[NodeName, dict[str, Slice]](dict)
        self._claims = defaultdict[str, dict[tuple[str, str], list[Claimed]]](dict)  # by pool
        self._nodes_of = defaultdict[str, set[NodeName]](set)  # by pool

    @property
    def has_nodes(self) -> bool:
        """Whether there is a node without a device plugin that serves."""
        return bool(self._agents)

    # What agents say, as :class:`.Feed` takes it.

    def put_record(
        self, topology: NodeTopology, report: Report | None, *, uid: str = "", age: float = 0.0
    ) -> None:
        """Take in a record of a node."""
        name = topology.name
        with self._lock:
            if _has_plugin(topology, report):
                self._agents.pop(name, None)
                self._feed.put_record(topology, report, uid=uid, age=age)
            else:
                self._agents[name] = _AgentRecord(topology, report, uid, age)
                self._put(name, spoken=True)

    def put_problem(self, name: NodeName, problem: str) -> None:
        """A record cannot be used."""
        with self._lock:
            self._agents.pop(name, None)
            self._feed.put_problem(name, problem)

    def drop_record(self, name: NodeName) -> None:
        """A record is gone."""
        with self._lock:
            self._agents.pop(name, None)
            self._feed.drop_record(name)

    def keep_records(self, names: set[NodeName]) -> None:
        """All records but these are gone."""
        with self._lock:
            self._agents = {name: self._agents[name] for name in self._agents.keys() & names}
            self._feed.keep_records(names)

    # What the API server says.

    def change(self, before: Iterable[Known], after: Iterable[Known]) -> None:
        """Objects are as in ``after`` now, in place of those in ``before``."""
        with self._lock:
            names: set[NodeName] = set()
            for obj in before:
                names |= self._affected(obj)
                self._forget(obj)
            for obj in after:
                self._keep(obj)
                names |= self._affected(obj)
            for name in names:
                self._put(name, spoken=False)

    def _affected(self, obj: Known) -> set[NodeName]:
        if isinstance(obj, DeviceClass):
            return set(self._agents) if obj.spec.extended_resource_name else set()
        if isinstance(obj, Slice):
            return {NodeName(obj.spec.node_name)} if obj.spec.node_name else set()
        return {name for pool in obj.by_pool() for name in self._nodes_of.get(pool, ())}

    def _keep(self, obj: Known) -> None:
        if isinstance(obj, DeviceClass):
            self._classes[obj.metadata.name] = obj
        elif isinstance(obj, Claim):
            for pool, claimed in obj.by_pool().items():
                self._claims[pool][obj.key] = claimed
        elif obj.spec.node_name:
            name = NodeName(obj.spec.node_name)
            self._slices[name][obj.metadata.name] = obj
            self._nodes_of[obj.pool].add(name)

    def _forget(self, obj: Known) -> None:
        if isinstance(obj, DeviceClass):
            self._classes.pop(obj.metadata.name, None)
        elif isinstance(obj, Claim):
            for pool in obj.by_pool():
                self._claims[pool].pop(obj.key, None)
                if not self._claims[pool]:
                    del self._claims[pool]
        elif obj.spec.node_name:
            name = NodeName(obj.spec.node_name)
            self._slices[name].pop(obj.metadata.name, None)
            if all(other.pool != obj.pool for other in self._slices[name].values()):
                self._nodes_of[obj.pool].discard(name)
                if not self._nodes_of[obj.pool]:
                    del self._nodes_of[obj.pool]
            if not self._slices[name]:
                del self._slices[name]

    # A node, put together.

    def _put(self, name: NodeName, *, spoken: bool) -> None:
        """Feed what is known of a node; ``spoken``: its agent has reported."""
        agent = self._agents.get(name)
        if agent is None:
            return
        topology, report = agent.topology, agent.report
        try:
            if report is not None:
                topology, report = self._served(topology, report)
        except DraError as error:
            self._feed.put_problem(name, str(error))
        else:
            self._feed.put_record(topology, report, uid=agent.uid, age=agent.age, spoken=spoken)

    def _served(self, topology: NodeTopology, report: Report) -> tuple[NodeTopology, Report]:
        slices = self._slices.get(topology.name, {})
        named = {each.spec.extended_resource_name or "" for each in self._classes.values()}
        for resource in managed_among(sorted(named), self._managed) if slices else ():
            if published := list(_published(slices.values(), self._class_of(resource))):
                pools = dict.fromkeys(device.pool for device in published)
                claims = (c for pool in pools for c in self._claims.get(pool, {}).values())
                claimed = [device for claim in claims for device in claim]
                return served(topology, report, resource, published, claimed)
        return topology, report

    def _class_of(self, resource: str) -> DeviceClass:
        """The newest of the classes that serve a resource; of those, the first by name."""
        classes = [c for c in self._classes.values() if c.spec.extended_resource_name == resource]
        classes.sort(key=attrgetter("metadata.name"))
        return max(classes, key=lambda each: each.metadata.creation_timestamp or "")


def _has_plugin(topology: NodeTopology, report: Report | None) -> bool:
    """Whether a device plugin serves a node's GPUs. Where the kubelet hands nothing out, an agent
    names the usual resource all the same: the plugin may come back."""
    nothing = report is not None and report.allocatable == frozenset()
    return bool(topology.resources) and not nothing


def _published(slices: Iterable[Slice], wanted: DeviceClass) -> Iterator[Published]:
    """The devices of a class on a node, in the order in which kube-scheduler takes them: pools by
    driver and name, slices by name, devices as published."""
    pools = defaultdict[tuple[str, str], list[Slice]](list)
    for each in slices:
        pools[each.spec.driver, each.spec.pool.name].append(each)
    for (driver, pool), every in sorted(pools.items()):
        if sum(len(each.spec.devices or ()) for each in every) > MOST_DEVICES:
            raise DraError(f"the pool {pool[:64]} has more than {MOST_DEVICES} devices")
        newest = max(each.spec.pool.generation for each in every)
        current = [each for each in every if each.spec.pool.generation == newest]
        if any(each.spec.pool.resource_slice_count != len(current) for each in current):
            raise DraError(f"the pool {pool[:64]} of its ResourceSlices is not complete")
        for part in sorted(current, key=attrgetter("metadata.name")):
            for device in part.spec.devices or ():
                if wanted.selects(driver, device):
                    yield device.published(driver, pool)


class DraSink(ObjectSink, Generic[Object]):
    """The objects of one kind, put into :class:`DraNodes`."""

    def __init__(self, cluster: Cluster, nodes: DraNodes, kind: type[Object]) -> None:
        super().__init__(cluster)
        self._nodes = nodes
        self._decode: Callable[[Any], Object] = msgspec.json.Decoder(kind).decode
        self._known: dict[Hashable, Object] = {}

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        now: dict[Hashable, Object] = {}
        for raw in objects:
            try:
                found = self._decode(raw)
                now[found.key] = found
            except UNREADABLE as error:
                self._tell_bad(raw, error)
        before, self._known = self._known, now
        gone = [obj for key, obj in before.items() if now.get(key) != obj]
        new = [obj for key, obj in now.items() if before.get(key) != obj]
        self._nodes.change(gone, new)

    def _take(self, obj: msgspec.Raw) -> str:
        found = self._decode(obj)
        before = self._known.get(found.key)
        self._known[found.key] = found
        self._nodes.change([] if before is None else [before], [found])
        return found.metadata.name

    def delete(self, obj: msgspec.Raw) -> None:
        """Take a deletion."""
        gone = self._known.pop(self._decode(obj).key, None)
        self._nodes.change([] if gone is None else [gone], [])


def dra_sinks(cluster: Cluster, nodes: DraNodes) -> list[tuple[str, Sink]]:
    """A sink for each collection, by its path."""
    return [
        (f"{GROUP}/deviceclasses", DraSink(cluster, nodes, DeviceClass)),
        (f"{GROUP}/resourceslices", DraSink(cluster, nodes, Slice)),
        (f"{GROUP}/resourceclaims", DraSink(cluster, nodes, Claim)),
    ]
