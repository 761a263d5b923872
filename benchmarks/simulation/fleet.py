"""The nodes as they are: what kube-scheduler counts, and what the kubelets really hold."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.clusters import ClusterError, Node
from benchmarks.simulation.holders import restore, withhold
from benchmarks.simulation.jobs import SHARED_GPU, WHOLE_GPU, Ask
from topology.core.admission import Kubelet, kubelet_of
from topology.core.devices import GpuResource, Mask, PodUid
from topology.core.placement import satisfies
from topology.core.remembering import hashed_once
from topology.core.report import Report
from topology.core.requests import Constraints, GpuRequest
from topology.core.shape import Shape
from topology.emulation import EmulatedKubelet

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@hashed_once
@dataclass(frozen=True)
class State:
    """What a policy may know of a node's GPUs; nodes that are alike share one."""

    shape: Shape
    free: Mask  # GPUs of which nobody holds a device
    left: int  # devices, which are parts of GPUs where ``replicas`` is above 1
    replicas: int
    kubelet: Kubelet


@dataclass(frozen=True, slots=True)
class SimPod:
    """One pod of a job."""

    uid: PodUid
    name: str
    ask: Ask
    resource: str
    request: GpuRequest | None  # None if it asks for no GPU
    alone: bool = True  # whether the job has no other pod


class Fleet:
    """All nodes of a cluster; arrays have one entry per node."""

    def __init__(self, nodes: Sequence[Node], rng: random.Random) -> None:
        self.nodes = tuple(nodes)
        self.names = [str(node.topology.name) for node in nodes]
        self.name_of = np.array(self.names, dtype=object)
        self._row = {name: i for i, name in enumerate(self.names)}
        self.served = [_served(node) for node in nodes]
        self.kubelets = [
            EmulatedKubelet(n.topology, rng, served.name)
            for n, served in zip(nodes, self.served, strict=True)
        ]
        self.cpu_total = _ints(n.allocatable.cpu for n in nodes)
        self.memory_total = _ints(n.allocatable.memory // 2**20 for n in nodes)
        self.devices_total = _ints(
            len(n.topology.gpus) * s.replicas for n, s in zip(nodes, self.served, strict=True)
        )
        self.cpu = self.cpu_total.copy()
        self.memory = self.memory_total.copy()
        self.devices = self.devices_total.copy()
        self.slots = _ints(n.allocatable.pods for n in nodes)
        self.serves = {
            name: np.array([s.name == name for s in self.served], dtype=np.bool_)
            for name in (WHOLE_GPU, SHARED_GPU)
        }
        self._replicas = _ints(s.replicas for s in self.served)
        self._reports = [node.report for node in nodes]
        self._models: dict[tuple[str, ...], Bools] = {}
        self._states: dict[tuple[int, Mask, int], int] = {}
        self._shapes: dict[Kubelet, int] = {}
        self.states: list[State] = []
        self.state: Ints = np.zeros(len(nodes), dtype=np.int64)
        self._kubelet_numbers = [self._kubelet_number(i) for i in range(len(nodes))]
        for row, node in enumerate(nodes):
            self._restore(row, node)
            self._refresh(row)
        self.gpus = float((self.devices_total / self._replicas).sum())
        self.held = self.used  # GPUs that somebody held at the start

    def __len__(self) -> int:
        return len(self.nodes)

    def row(self, name: str) -> int:
        """A node's entry."""
        return self._row[name]

    @property
    def resources(self) -> set[str]:
        """The extended resources that nodes serve."""
        return {served.name for served in self.served}

    @property
    def shared(self) -> bool:
        """Whether some node serves parts of GPUs."""
        return bool(self.serves[SHARED_GPU].any())

    def resource(self, ask: Ask) -> str:
        """The extended resource that a pod asks for: a share is a replica where there are any."""
        return SHARED_GPU if ask.share is not None and self.shared else WHOLE_GPU

    def fitting(self, pod: SimPod, rows: Ints | None = None) -> Bools:
        """Where the pod fits by CPU, memory, devices and the count of pods; of all or some rows."""
        ask, at = pod.ask, slice(None) if rows is None else rows
        fits: Bools = self.cpu[at] >= ask.cpu
        fits = fits & (self.memory[at] >= ask.memory) & (self.slots[at] > 0)
        if ask.gpus:
            fits = fits & self.serves[pod.resource][at] & (self.devices[at] >= ask.gpus)
            fits = fits & self._has_models(pod)[at]
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

    def admit(self, row: int, pod: SimPod, mask: Mask | None) -> Mask:
        """The pod starts on a node; its GPUs come back.

        ``mask`` are the GPUs that a plugin of the policy's own gives; None leaves them to the stock
        plugin. Raises :class:`~topology.emulation.Refused`.
        """
        held = 0
        if pod.request is not None:
            kubelet = self.kubelets[row]
            if mask is None:
                kubelet.admit(pod.uid, "default", pod.name, pod.request)
            else:
                free = self.states[self.state[row]].free
                if mask & ~free or mask.bit_count() != pod.ask.gpus:
                    raise ValueError(
                        f"GPUs {mask:#b} for {pod.ask.text} on {self.names[row]}: "
                        f"{pod.ask.gpus} of the free ones {free:#b} are needed"
                    )
                devices = [(p, 0) for p in range(mask.bit_length()) if mask >> p & 1]
                given = {pod.request.containers[0].name: devices}
                kubelet.restore(pod.uid, "default", pod.name, pod.request, given)
            held = sum(1 << p for p in kubelet.held(pod.uid))
            self.devices[row] -= pod.ask.gpus
        self._count(row, pod, -1)
        self._refresh(row)
        return held

    def end(self, row: int, pod: SimPod) -> None:
        """The pod has ended and let go."""
        if pod.request is not None:
            self.kubelets[row].end(pod.uid)
            self.devices[row] += pod.ask.gpus
        self._count(row, pod, 1)
        self._refresh(row)

    def report(self, row: int) -> Report:
        """What the node's agent publishes now; what it said of health and the like stays true."""
        base = self._reports[row]
        return replace(
            self.kubelets[row].report(),
            allocatable=base.allocatable,
            health=base.health,
            conditions=base.conditions,
        )

    def replicas(self, row: int) -> int:
        """How many devices one GPU of the node is."""
        return self.served[row].replicas

    @property
    def used(self) -> float:
        """Devices held, in GPUs."""
        return float(((self.devices_total - self.devices) / self._replicas).sum())

    def _count(self, row: int, pod: SimPod, sign: int) -> None:
        self.cpu[row] += sign * pod.ask.cpu
        self.memory[row] += sign * pod.ask.memory
        self.slots[row] += sign

    def _kubelet_number(self, row: int) -> int:
        """A number for the node's hardware and allocator, the same for nodes that are alike."""
        kubelet = kubelet_of(self.nodes[row].topology, self.served[row])
        return self._shapes.setdefault(kubelet, len(self._shapes))

    def _refresh(self, row: int) -> None:
        replicas = self.served[row].replicas
        left = [0] * len(self.nodes[row].topology.gpus)
        for p, _ in self.kubelets[row].free():
            left[p] += 1
        free = sum(1 << p for p, n in enumerate(left) if n == replicas)
        key = (self._kubelet_numbers[row], free, sum(left))
        if key not in self._states:
            kubelet = list(self._shapes)[self._kubelet_numbers[row]]
            self._states[key] = len(self.states)
            self.states.append(State(kubelet.shape, free, sum(left), replicas, kubelet))
        self.state[row] = self._states[key]

    def _restore(self, row: int, node: Node) -> None:
        """Whoever held GPUs when the cluster was written down holds them to the end."""
        kubelet, served = self.kubelets[row], self.served[row]
        self.devices_total[row] -= withhold(node, kubelet) * served.replicas
        restore(node, served.name, kubelet)
        self.slots[row] -= len(node.pods)
        self.devices[row] = len(kubelet.free())


def _served(node: Node) -> GpuResource:
    """The resource that jobs ask for: whole GPUs, or parts of them."""
    by_name = {served.name: served for served in node.topology.resources}
    if not node.topology.gpus or not by_name.keys() & {WHOLE_GPU, SHARED_GPU}:
        raise ClusterError(
            f"{node.topology.name}: GPUs served as {WHOLE_GPU} or {SHARED_GPU} are needed, "
            f"not {', '.join(by_name) or 'none'}"
        )
    if any(served.strategy == "mig" for served in by_name.values()):
        raise ClusterError(f"{node.topology.name}: the simulation plays no MIG instances")
    return by_name.get(WHOLE_GPU) or by_name[SHARED_GPU]


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
