"""Plays the kubelet of every demo node: admits bound pods and reports what it handed out.

It hands out any free GPUs at random. No device plugin is worse than that, so a promise that
survives it does not lean on the plugin's good will.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from topology import codec
from topology.devices import DeviceId, Mask, NodeName, PodUid, positions
from topology.graph import NodeTopology
from topology.report import Allocation, Report


class Kubelets:
    """The nodes' own accounts: who holds which GPUs."""

    def __init__(self, nodes: Iterable[NodeTopology], seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311
        self.nodes = {node.name: node for node in nodes}
        self.holders: dict[NodeName, dict[str, Mask]] = {name: {} for name in self.nodes}
        self._allocations: dict[NodeName, tuple[Allocation, ...]] = dict.fromkeys(self.nodes, ())
        self._sequence = 0

    def free(self, name: NodeName) -> Mask:
        """The GPUs that nobody holds."""
        mask = (1 << len(self.nodes[name].gpus)) - 1
        for held in self.holders[name].values():
            mask &= ~held
        return mask

    def admit(self, name: NodeName, pod: dict[str, Any], count: int) -> Mask:
        """Hand out ``count`` GPUs to a pod."""
        node, meta = self.nodes[name], pod["metadata"]
        taken = sum(1 << p for p in self._rng.sample(positions(self.free(name)), count))
        self.holders[name][meta["name"]] = taken
        ids = tuple(DeviceId(node.gpus[p].uuid) for p in positions(taken))
        allocation = Allocation(
            PodUid(meta["uid"]), meta["namespace"], meta["name"], "main", "nvidia.com/gpu", ids
        )
        self._allocations[name] = (*self._allocations[name], allocation)
        return taken

    def report(self, name: NodeName) -> dict[str, Any]:
        """The body of POST /v1/reports for a node as it is now."""
        self._sequence += 1
        report = Report("demo-boot", self._sequence, allocations=self._allocations[name])
        return {"node": name, "status": codec.encode_report(report)}
