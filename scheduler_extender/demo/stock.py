"""Plays the same pods without us: kube-scheduler as it comes, which counts GPUs.

It is given what people give it today: a node selector on the labels of GPU feature discovery for
the model and the memory of the GPUs. Among the nodes that are left and have enough GPUs free it
takes one with the fewest pods, as its default score does where pods ask for equal CPU and memory.
Ties fall at random. What it cannot be told are links, NUMA nodes, NICs and the memory that pods
use of GPUs that they share.
"""

import random
from typing import Any

import msgspec

from scheduler_extender.annotations import Asks, Malformed, parse
from scheduler_extender.demo.kubelet import Kubelets
from scheduler_extender.demo.scheduler import Outcome, met
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.core.requests import Constraints, GpuRequest


class StockScheduler:
    """One pod after the other on kubelets of its own."""

    def __init__(self, kubelets: Kubelets, seed: int) -> None:
        self._kubelets = kubelets
        self._rng = random.Random(seed)  # noqa: S311

    def schedule(self, pod: dict[str, Any]) -> Outcome:
        """Place one pod by its count and its node selector, and let its kubelet admit it."""
        name = pod["metadata"]["name"]
        asks = parse(msgspec.convert(pod, Pod))
        understood = isinstance(asks, Asks)
        if isinstance(asks, Malformed):  # an annotation that stands for nothing here
            bare = {**pod, "metadata": {**pod["metadata"], "annotations": {}}}
            asks = parse(msgspec.convert(bare, Pod))
        assert isinstance(asks, Asks)  # noqa: S101 (every demo pod asks for GPUs)
        request = asks.request
        nodes = [
            node
            for node, topology in self._kubelets.nodes.items()
            if self._kubelets.free(node) >= request.count and _selected(topology, request)
        ]
        if not nodes:
            return Outcome(name)
        node = min(nodes, key=self._order)
        taken = self._kubelets.admit(node, pod, request)
        answer = met(self._kubelets.nodes[node], request, taken) if understood else None
        return Outcome(name, request.text, node, request.required, answer)

    def _order(self, node: NodeName) -> tuple[int, float]:
        return self._kubelets.pods[node], self._rng.random()


def _selected(topology: NodeTopology, request: GpuRequest) -> bool:
    """Whether a node selector for the model and the memory of the GPUs lets the pod there."""
    asked = request.constraints
    labels = Constraints(models=asked.models, min_gpu_memory=asked.min_gpu_memory)
    return satisfies(topology.shape, labels, topology.shape.all_gpus)
