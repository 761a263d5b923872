"""The nodes for jobs, from groups of catalogue machines and from cluster files.

A :class:`Fleet` has their state in a simulation: what kube-scheduler counts, and what the kubelets
really hold.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.jobs import WHOLE_GPU, Ask
from scheduler_extender.files.clusterfile import ClusterFileError, load
from scheduler_extender.files.machinegroups import Allocatable
from topology.core.devices import Mask, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.core.requests import Constraints, GpuRequest
from topology.emulation import EmulatedKubelet

# The resources of a node whose source does not name them. CPU and memory then never run out.
ENDLESS = Allocatable(10**12, 10**18, 10**6)
MAX_NODES = 100_000


class ClusterError(ValueError):
    """The error that a source is no cluster. The message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and its allocatable resources."""

    topology: NodeTopology
    allocatable: Allocatable = ENDLESS


@lru_cache(maxsize=4)
def cluster(source: str) -> tuple[Node, ...]:
    """Return the empty nodes of a source, a list of groups and cluster files with commas between.

    A group is a machine and a number, such as ``dgx1-v100=16``. ``/v1/snapshot`` writes a cluster
    file, of which only the nodes are used, not the pods. Raises :class:`ClusterError`.
    """
    nodes: list[Node] = []
    for word in source.split(","):
        nodes += _nodes(Path(word.strip()))
        if len(nodes) > MAX_NODES:
            raise ClusterError(f"{source}: {len(nodes)} nodes; at most {MAX_NODES:,} are allowed")
    names = Counter(node.topology.name for node in nodes)
    for name, times in names.items():
        if times > 1:
            raise ClusterError(f"{source}: node {name} is listed twice")
    return tuple(nodes)


def _nodes(path: Path) -> Iterator[Node]:
    try:
        content = load(path)
    except ClusterFileError as error:
        raise ClusterError(str(error)) from error
    for record in content.records:
        node = record.topology
        serves = [(s.name, s.strategy) for s in node.resources if node.gpus]
        if serves != [(WHOLE_GPU, "none")]:
            said = ", ".join(f"{name} ({strategy})" for name, strategy in serves) or "no GPUs"
            raise ClusterError(
                f"{path}: node {node.name} serves {said}; allowed are whole GPUs, {WHOLE_GPU}"
            )
        yield Node(node, content.allocatable.get(node.name, ENDLESS))


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SimPod:
    """One pod of a job."""

    uid: PodUid
    name: str
    ask: Ask
    request: GpuRequest | None  # None if it requests no GPU


class Fleet:
    """All nodes of a cluster. Arrays have one entry for each node."""

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
        self.gpus = self.gpus_total.copy()  # GPUs that kube-scheduler counts as free
        self.slots = _ints(node.allocatable.pods for node in nodes)
        self._models: dict[tuple[str, ...], Bools] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def row(self, name: str) -> int:
        """Return a node's index in the arrays."""
        return self._row[name]

    def fitting(self, pod: SimPod, rows: Ints | None = None) -> Bools:
        """Return for each row whether the pod fits by CPU, memory, GPUs and the count of pods."""
        ask, at = pod.ask, slice(None) if rows is None else rows
        fits: Bools = self.cpu[at] >= ask.cpu
        fits = fits & (self.memory[at] >= ask.memory) & (self.slots[at] > 0)
        if ask.gpus:
            fits = fits & (self.gpus[at] >= ask.gpus) & self._has_models(pod)[at]
        return fits

    def _has_models(self, pod: SimPod) -> Bools:
        """Return for each node whether a node selector for the pod's GPU models would match."""
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
        """Start the pod on a node, and return its GPUs.

        Raises :class:`~topology.emulation.Refused` if the kubelet rejects it.
        """
        held = 0
        if pod.request is not None:
            self.kubelets[row].admit(pod.uid, "default", pod.name, pod.request)
            held = sum(1 << p for p in self.kubelets[row].held(pod.uid))
        self._count(row, pod, -1)
        return held

    def end(self, row: int, pod: SimPod) -> None:
        """End the pod and release its resources."""
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
