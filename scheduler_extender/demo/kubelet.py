"""The demo's kubelets: one emulated node each, and who holds what."""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from topology.core.devices import NodeName, PodUid, base_uuid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet


class Kubelets:
    """The nodes' own accounts: who holds which GPUs."""

    def __init__(self, nodes: Iterable[NodeTopology], seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311
        self.nodes = {node.name: node for node in nodes}
        self.pods: Counter[NodeName] = Counter()  # how many each node has admitted
        self._kubelets = {name: EmulatedKubelet(node, rng) for name, node in self.nodes.items()}

    def free(self, name: NodeName) -> int:
        """How many devices nobody holds."""
        return len(self._kubelets[name].free())

    def admit(self, name: NodeName, pod: dict[str, Any], request: GpuRequest) -> tuple[int, ...]:
        """Let the node hand out what a pod asks: the position of each device's GPU."""
        meta, kubelet = pod["metadata"], self._kubelets[name]
        kubelet.admit(PodUid(meta["uid"]), meta["namespace"], meta["name"], request)
        at = self.nodes[name].position_of_uuid
        ids = kubelet.held_ids(PodUid(meta["uid"]))
        taken = tuple(sorted(at[base_uuid(device)] for device in ids))
        self.pods[name] += 1
        return taken

    def overcommitted(self) -> int:
        """GPUs whose pods may use more memory than there is, by what they say, or else by their
        shares."""
        many = 0
        for name, kubelet in self._kubelets.items():
            gpus = {str(gpu.uuid): gpu for gpu in self.nodes[name].gpus}
            for uuid, there in kubelet.sharing().items():
                memory, replicas = gpus[uuid].memory, self.nodes[name].resources[0].replicas
                used = sum(
                    request.constraints.gpu_memory or memory * devices // replicas
                    for _, request, devices in there
                )
                many += used > memory
        return many

    def report(self, name: NodeName) -> Report:
        """What a node's agent says now."""
        return self._kubelets[name].report()
