"""Emulated kubelets and agents against the real API server, and whether promises are kept."""

import json

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.simulator.overapi import PlayedNodes
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.scene import Observer
from tests.e2e.cluster import RealCluster
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.kubeapi.apiserver import ApiServer

HEARTBEAT = 3.0  # seconds after which an agent reports though nothing has changed


class _Judge(Observer):
    """Which pods hold GPUs, which were refused, and whose promise is broken."""

    def __init__(self, nodes: list[NodeTopology]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self.held: set[str] = set()
        self.refusals: list[str] = []
        self.broken: list[str] = []

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        name, wanted = entry.record.name, entry.request
        self.held.add(name)
        promised = entry.manifest["metadata"].get("annotations", {}).get(PLACEMENT)
        shape, mask = self._nodes[entry.node].shape, sum(1 << p for p in held)
        if promised and wanted.required and not satisfies(shape, wanted.constraints, mask):
            verdict = json.loads(promised)["verdict"]
            self.broken.append(f"{verdict}: {name} on {entry.node}: {held}")

    def refused(self, entry: PodEntry, reason: str) -> None:
        self.refusals.append(f"{entry.record.name}: {reason}")


class Kubelets(PlayedNodes):
    """Plays the nodes while the context is open.

    ``held`` are the pods that have got GPUs, ``refused`` the pods that a kubelet refused, over all
    nodes. At the end no promise may be broken, and nothing may have failed.
    """

    def __init__(self, real: RealCluster, nodes: list[NodeTopology], seed: int) -> None:
        api = ApiServer.from_kubeconfig(real.control_plane.kubeconfig())
        self._judge = _Judge(nodes)
        self.held, self.refused = self._judge.held, self._judge.refusals
        super().__init__(api, nodes, seed, self._judge, HEARTBEAT)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if raised[0] is None:
            assert self.errors == []
            assert self._judge.broken == []

    def report_again(self, name: str) -> None:
        """Let a node's agent report soon, though nothing has changed."""
        self.clock.post(self.nodes[NodeName(name)].look)
