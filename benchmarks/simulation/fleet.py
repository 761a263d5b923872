"""The nodes as they are: what kube-scheduler counts, and what the kubelets really hold."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.clusters import Node
from benchmarks.simulation.jobs import Ask
from topology.core.devices import Mask, PodUid
from topology.core.placement import satisfies
from topology.core.requests import Constraints, GpuRequest
from topology.emulation import EmulatedKubelet

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SimPod:
    """One pod of a job."""

    uid: PodUid
    name: str
    ask: Ask
    request: GpuRequest | None  # None if it asks for no GPU


class Fleet:
    """All nodes of a cluster; arrays have one entry per node."""

    def __init__(self, nodes: Sequence[Node], rng: random.Random) -> None:
        self.nodes = tuple(nodes)
        self.names = [str(node.topology.name) for node in nodes]
        self.name_of = np.array(self.names, dtype=object)
        self._row = {name: i for i, name in enumerate(self.names)}
        self.kubelets = [EmulatedKubelet(node.topology, rng) for node in nodes]
        self.cpu_total = _ints(node.allocatable.cpu for node in nodes)
        self.memory_total = _ints(node.allocatable.memory // 2**20 for node in nodes)
        self.gpus_total = _ints(len(node.topology.gpus) for node in nodes)
        self.cpu = self.cpu_total.copy()
        self.memory = self.memory_total.copy()
        self.gpus = self.gpus_total.copy()  # that kube-scheduler counts as free
        self.slots = _ints(node.allocatable.pods for node in nodes)
        self._models: dict[tuple[str, ...], Bools] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def row(self, name: str) -> int:
        """A node's entry."""
        return self._row[name]

    def fitting(self, pod: SimPod, rows: Ints | None = None) -> Bools:
        """Where the pod fits by CPU, memory, GPUs and the count of pods; of all or some rows."""
        ask, at = pod.ask, slice(None) if rows is None else rows
        fits: Bools = self.cpu[at] >= ask.cpu
        fits = fits & (self.memory[at] >= ask.memory) & (self.slots[at] > 0)
        if ask.gpus:
            fits = fits & (self.gpus[at] >= ask.gpus) & self._has_models(pod)[at]
        return fits

    def _has_models(self, pod: SimPod) -> Bools:
        """Nodes with GPUs of the models that the pod asks for: what a node selector would say."""
        models = pod.request.constraints.models if pod.request else ()
        if models not in self._models:
            wanted = Constraints(models=models)
            fits = {
                shape: any(satisfies(shape, wanted, 1 << p) for p in range(shape.size))
                for shape in {node.topology.shape for node in self.nodes}
            }
            self._models[models] = np.array(
                [fits[node.topology.shape] for node in self.nodes], dtype=np.bool_
            )
        return self._models[models]

    def admit(self, row: int, pod: SimPod) -> Mask:
        """The pod starts on a node; its GPUs come back.

        Raises :class:`~topology.emulation.Refused`.
        """
        held = 0
        if pod.request is not None:
            self.kubelets[row].admit(pod.uid, "default", pod.name, pod.request)
            held = sum(1 << p for p in self.kubelets[row].held(pod.uid))
        self._count(row, pod, -1)
        return held

    def end(self, row: int, pod: SimPod) -> None:
        """The pod has ended and let go."""
        if pod.request is not None:
            self.kubelets[row].end(pod.uid)
        self._count(row, pod, 1)

    def _count(self, row: int, pod: SimPod, sign: int) -> None:
        self.cpu[row] += sign * pod.ask.cpu
        self.memory[row] += sign * pod.ask.memory
        self.gpus[row] += sign * pod.ask.gpus
        self.slots[row] += sign


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
