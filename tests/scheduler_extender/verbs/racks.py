"""Racks of GB200 trays, and a scheduler that offers all nodes and binds where it is told."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scheduler_extender.files.binder import FileBinder
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import filter_nodes, prioritize
from scheduler_extender.wire import BindingArgs, FilterResult, Pod
from tests.nodes import pod
from tests.scheduler_extender.binding import bind_error
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.machines import machine

RACK = {"group-domain": "nvlink-domain"}


def rack(name: str, trays: int = 18) -> list[str]:
    """The names of a rack's trays."""
    return [f"{name}-{i:02}" for i in range(trays)]


def member(
    name: str,
    group: str = "train",
    size: int = 18,
    gpus: int = 4,
    annotations: Mapping[str, str] = RACK,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod of a group, as kube-scheduler sends it; ``annotations`` without our prefix."""
    ours = {"link": "nvlink", "group": group, "group-size": str(size), **annotations}
    found = pod(gpus, {k: v for k, v in ours.items() if v}, name=name, uid=f"uid-{name}")
    found["metadata"]["labels"] = dict(labels or {})
    return found


class Scheduler:
    """kube-scheduler over a cluster: filter, prioritize and bind, each when the test says so."""

    def __init__(self, racks: Mapping[str, int]) -> None:
        self.cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self.binder = FileBinder(self.cluster)
        self.names = [tray for name, trays in racks.items() for tray in rack(name, trays)]
        for name in racks:
            for tray in rack(name, racks[name]):
                topology = machine("gb200-tray").topology(tray, group=name)
                self.cluster.put_record(topology, Report())

    def filter(self, manifest: dict[str, Any], names: Iterable[str] | None = None) -> FilterResult:
        """What filter answers about all nodes, or about some."""
        asked = msgspec.convert(manifest, Pod)
        self.binder.saw(asked)
        offered = list(self.names if names is None else names)
        found = filter_nodes(self.cluster, asked, offered)
        answered = [*(found.node_names or ()), *found.failed, *found.unresolvable]
        assert sorted(answered) == sorted(offered)
        return found

    def passing(self, manifest: dict[str, Any]) -> list[str]:
        """The nodes that filter lets pass."""
        return list(self.filter(manifest).node_names or ())

    def reasons(self, manifest: dict[str, Any]) -> set[str]:
        """The reasons of the nodes that filter refuses."""
        found = self.filter(manifest)
        return {*found.failed.values(), *found.unresolvable.values()}

    def scores(self, manifest: dict[str, Any], names: Iterable[str]) -> dict[str, int]:
        """The scores of some nodes."""
        found = prioritize(self.cluster, msgspec.convert(manifest, Pod), list(names))
        return {row.host: row.score for row in found}

    def bind(self, manifest: dict[str, Any], node: str) -> str:
        """Bind; the error, empty where it is done."""
        meta = manifest["metadata"]
        self.binder.saw(msgspec.convert(manifest, Pod))
        args = BindingArgs(meta["name"], meta["namespace"], meta["uid"], node)
        return bind_error(self.cluster, self.binder, args)

    def place(self, manifest: dict[str, Any]) -> str:
        """One cycle of scheduling: the node that the pod is bound to; empty where it fits none."""
        passing = self.passing(manifest)
        if not passing:
            return ""
        scored = self.scores(manifest, passing)
        node = max(passing, key=lambda name: scored[name])
        assert self.bind(manifest, node) == ""
        return node

    def node_of(self, manifest: dict[str, Any]) -> NodeName | None:
        """Where a pod is bound to."""
        found = self.cluster.pod(PodUid(manifest["metadata"]["uid"]))
        return found.node if found is not None else None
