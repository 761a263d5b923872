"""Emulated kubelets and agents that go on while the API server is away, and their history."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler_extender.simulator.overapi import SOON, PlayedNodes
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.scene import Observer
from tests.chaos import history
from tests.chaos.history import Recorder
from tests.e2e.controlplane import ControlPlane
from topology.core.graph import NodeTopology
from topology.kubeapi.apiserver import ApiServer

RESOURCE = "nvidia.com/gpu"
WRITE_TIMEOUT = 2.0
# Seconds after which an agent reports though nothing has changed; the real one takes a minute.
HEARTBEAT = 15.0


class _Recorded(Observer):
    """Writes down what kubelets do with pods that ask for GPUs."""

    def __init__(self, recorder: Recorder, nodes: Sequence[NodeTopology]) -> None:
        self._recorder = recorder
        self._nodes = {node.name: node for node in nodes}
        recorder.extend(_described(node) for node in nodes)

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        gpus = self._nodes[entry.node].gpus
        devices = [str(gpus[p].uuid) for p in held]
        self._recorder.add(history.Given(*self._where(entry), devices))

    def refused(self, entry: PodEntry, reason: str) -> None:
        self._recorder.add(history.Refused(*self._where(entry), reason))

    def released(self, entry: PodEntry) -> None:
        self._recorder.add(history.Released(*self._where(entry)))

    def _where(self, entry: PodEntry) -> tuple[float, str, str]:
        return self._recorder.now, entry.node, entry.record.uid


def played(
    plane: ControlPlane, nodes: Sequence[NodeTopology], seed: int, recorder: Recorder, look: float
) -> PlayedNodes:
    """The nodes; their agents take ``look`` seconds, on average, to report a change."""
    api = ApiServer.from_kubeconfig(plane.kubeconfig())
    delays = replace(SOON, look=look)
    return PlayedNodes(api, nodes, seed, _Recorded(recorder, nodes), HEARTBEAT, delays)


def _described(node: NodeTopology) -> history.Node:
    uuids = [str(gpu.uuid) for gpu in node.gpus]
    linked = [[uuids[link.a], uuids[link.b]] for link in node.links if link.nvlinks]
    return history.Node(str(node.name), uuids, linked)
