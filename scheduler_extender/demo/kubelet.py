"""The demo's kubelets: one emulated node each, and who holds what."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from topology import codec
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet


class Kubelets:
    """The nodes' own accounts: who holds which GPUs."""

    def __init__(self, nodes: Iterable[NodeTopology], seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311
        self.nodes = {node.name: node for node in nodes}
        self.holders: dict[NodeName, dict[str, Mask]] = {name: {} for name in self.nodes}
        self._kubelets = {name: EmulatedKubelet(node, rng) for name, node in self.nodes.items()}

    def free(self, name: NodeName) -> Mask:
        """The GPUs that nobody holds."""
        return sum(1 << p for p, _ in self._kubelets[name].free())

    def admit(self, name: NodeName, pod: dict[str, Any], request: GpuRequest) -> Mask:
        """Let the node hand out what a pod asks."""
        meta, kubelet = pod["metadata"], self._kubelets[name]
        kubelet.admit(PodUid(meta["uid"]), meta["namespace"], meta["name"], request)
        taken = sum(1 << p for p in kubelet.held(PodUid(meta["uid"])))
        self.holders[name][meta["name"]] = taken
        return taken

    def report(self, name: NodeName) -> dict[str, Any]:
        """The body of POST /v1/reports for a node as it is now."""
        return {"node": name, "status": codec.encode_report(self._kubelets[name].report())}
