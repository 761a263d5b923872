"""Places pods one after the other in a simulated cluster in which nothing takes time.

The extender may be the real one behind its ports, or :class:`Stock`, which is kube-scheduler
without an extender. Stock counts GPUs. Its pods have what people use today: a node selector for the
model and the memory of the GPUs, on the labels of GPU feature discovery. Among the selected nodes
with enough free GPUs, Stock takes a node with the fewest pods, as kube-scheduler's default score
does if pods request equal CPU and memory. Ties are broken at random. Stock cannot take account of
links, NUMA nodes, NICs and the memory that pods use of shared GPUs.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import msgspec
import urllib3

from scheduler_extender.annotations import PLACEMENT, PREFIX, Malformed
from scheduler_extender.explain.gpustates import NodeState, node_state
from scheduler_extender.simulator.asking import Picked
from scheduler_extender.simulator.clock import Clock
from scheduler_extender.simulator.cluster import PlayedCluster
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.faults import AT_ONCE, Faults
from scheduler_extender.simulator.pods import Job, Manifest, PodEntry
from scheduler_extender.simulator.scene import Observer, Scene
from scheduler_extender.wire import (
    BindingArgs,
    BindingResult,
    FilterResult,
    HostPriority,
    ObjectMeta,
    Pod,
)
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.core.requests import Constraints, GpuRequest
from topology.emulation import EmulatedKubelet

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one pod. ``node`` is None if the pod waits.

    ``required`` says whether the pod requires more than a number of GPUs. ``met`` says whether its
    GPUs meet its request; None if the request cannot be read.
    """

    pod: str
    request: str
    node: str | None = None
    required: bool = False
    met: bool | None = None
    verdict: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the pod got GPUs that do not meet its required constraints."""
        return self.required and self.met is False


class Placing(Observer):
    """One simulation. The seed decides the random choices of the kubelets."""

    def __init__(self, nodes: Sequence[NodeTopology], seed: int, extender: Extender) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._outcome: Outcome | None = None
        self._extender = extender
        rng = random.Random(seed)  # noqa: S311
        self._kubelets = {name: EmulatedKubelet(node, rng) for name, node in self._nodes.items()}
        clock = Clock(random.Random(seed))  # noqa: S311
        self._scene = Scene(clock, self._nodes, self._kubelets, AT_ONCE, Faults(), observer=self)
        self._played = PlayedCluster(self._scene, [], extender)

    def place(self, pod: Manifest) -> Outcome:
        """Let a pod arrive, run all events that follow at the same time, and return its result.

        The pod is tried once.
        """
        self._outcome = None
        entry = self._played.arrive(Job(0.0, inf, pod, patience=inf))
        self._scene.clock.run(until=0.0)
        return self._outcome or Outcome(entry.record.name, _asks(entry))

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        """Compare the pod's GPUs with its request, and record the result."""
        topology, request = self._nodes[entry.node], entry.request
        met = None
        if isinstance(entry.record.request, GpuRequest):
            met = satisfies(
                topology.shape,
                request.constraints,
                sum(1 << p for p in held),
                count=request.effective_count,
                replicas=topology.resources[0].replicas,
            )
        promised = entry.manifest["metadata"]["annotations"].get(PLACEMENT)
        self._outcome = Outcome(
            entry.record.name,
            _asks(entry),
            entry.node,
            request.required,
            met,
            json.loads(promised)["verdict"] if promised else "",
        )

    def states(self) -> list[NodeState]:
        """Return the current state of each node's GPUs."""
        return [node_state(self._extender.cluster.node_info(name)) for name in self._nodes]

    def overcommitted(self) -> int:
        """Return the number of GPUs whose pods may together use more memory than the GPU has.

        A pod's memory is its ``gpu-memory`` if it has this annotation, else that of its shares.
        """
        many = 0
        for name, kubelet in self._kubelets.items():
            gpus = {str(gpu.uuid): gpu for gpu in self._nodes[name].gpus}
            for uuid, there in kubelet.sharing().items():
                memory, replicas = gpus[uuid].memory, self._nodes[name].resources[0].replicas
                used = sum(
                    request.constraints.gpu_memory or memory * devices // replicas
                    for _, request, devices in there
                )
                many += used > memory
        return many


def _asks(entry: PodEntry) -> str:
    """Return the text of a pod's request. A malformed annotation is repeated as it was written."""
    if not isinstance(entry.record.request, Malformed):
        return entry.request.text
    notes = entry.manifest["metadata"]["annotations"]
    written = " ".join(f"{key.removeprefix(PREFIX)}={value}" for key, value in notes.items())
    return f"{entry.request.count} GPUs {written}"


class OverHttp:
    """The verbs over one persistent connection. ``spent`` has each answer's seconds, by verb."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = urllib3.PoolManager(retries=False)
        self.spent: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}

    def filter(self, pod: Pod, names: list[str]) -> FilterResult:
        """Return which of these nodes can take the pod."""
        return self._post("filter", {"Pod": pod, "NodeNames": names}, FilterResult)

    def prioritize(self, pod: Pod, names: list[str]) -> Mapping[str, float]:
        """Return the score of each node."""
        rows = self._post("prioritize", {"Pod": pod, "NodeNames": names}, list[HostPriority])
        return {row.host: row.score for row in rows}

    def bind(self, pod: ObjectMeta, node: str) -> str | None:
        """Bind the pod, and return why the bind was refused; None if it was written."""
        args = BindingArgs(pod.name, pod.namespace, pod.uid, node)
        return self._post("bind", args, BindingResult).error or None

    def _post(self, verb: str, body: object, answers: type[Answer]) -> Answer:
        payload = msgspec.json.encode(body)
        started = time.perf_counter()
        answer = self._http.request("POST", f"{self._url}/scheduler/{verb}", body=payload)
        self.spent[verb].append(time.perf_counter() - started)
        if answer.status != 200:
            raise RuntimeError(f"{verb}: {answer.status} {answer.data!r}")
        return msgspec.json.decode(answer.data, type=answers)


class FirstBest(Extender):
    """The real extender, with a kube-scheduler that takes the first of the best nodes."""

    def choose(self, scores: Mapping[str, float]) -> str:
        """Return the first node with the best score."""
        return max(scores, key=scores.__getitem__)


class Stock(Extender):
    """kube-scheduler without an extender. The inherited parts only observe the cluster."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._pods: Counter[str] = Counter()

    def pick(self, entry: PodEntry, offered: list[str]) -> Picked:
        """Return one of the nodes with the fewest pods, among those that a node selector allows."""
        nodes = self._scene.nodes
        fit = [name for name in offered if _selected(nodes[NodeName(name)], entry.request)]
        fewest = min(fit, key=lambda name: (self._pods[name], self._rng.random()), default=None)
        return Picked(fewest, Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Bind the pod, without regard to the GPUs that it will get."""
        self._pods[node] += 1
        self._api.bind(entry, NodeName(node), {})
        return None


def _selected(topology: NodeTopology, request: GpuRequest) -> bool:
    """Check whether a node selector for the GPUs' model and memory allows this node."""
    asked = request.constraints
    labels = Constraints(models=asked.models, min_gpu_memory=asked.min_gpu_memory)
    return satisfies(topology.shape, labels, topology.shape.all_gpus)
