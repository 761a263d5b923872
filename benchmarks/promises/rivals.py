"""What the extender is compared with in a closed loop: scores, a simpler rule, and an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from benchmarks.promises.extender import Extender
from benchmarks.promises.pods import PodEntry, PublishedReport
from benchmarks.promises.scene import Pick, Scene
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core import scoring
from topology.core.admission import Kubelet, admissions, kubelet_of
from topology.core.availability import Availability
from topology.core.devices import GpuUuid, NodeName, PodUid, base_uuid, subsets
from topology.core.graph import NodeTopology
from topology.core.mig import served_devices
from topology.core.placement import Verdict, assess, satisfies
from topology.core.pools import Pool, count, pack
from topology.core.requests import GpuRequest


def least_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with LeastAllocated, over GPUs: the emptiest node."""
    return {name: -scene.capacity.used_share(name) for name in names}


def most_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with MostAllocated, over GPUs: the fullest node."""
    return {name: scene.capacity.used_share(name) for name in names}


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts binds in flight, and takes no outcome into account.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Pick:
        """Nodes on which a satisfying set is free; the fullest first."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        good = [name for name in offered if self._good(name, request)]
        if not good:
            return Pick(None, Counter({"no good set is free": len(offered)}))
        share = self._scene.capacity.used_share
        fullest = max(share(name) for name in good)
        return Pick(self._rng.choice([n for n in good if share(n) == fullest]), Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Bind where a good set is free still."""
        if not self._good(node, entry.request):
            return "no good set is free"
        self._api.write_bind(entry, node, "good set free")
        return None

    def _good(self, name: str, request: GpuRequest) -> bool:
        node = NodeName(name)
        now = self.availability(node)
        if now is None or now.devices_left < request.effective_count:
            return False
        if not request.required:
            return True
        shape = self._scene.nodes[node].shape
        sets = subsets(now.free, request.count)
        return any(satisfies(shape, request.constraints, s) for s in sets)


class Oracle(Extender):
    """Knows what every node holds at this very moment, and binds by the same outcome rules.

    Run it in a closed loop without delays: there is nothing that it could be wrong about.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Pick:
        """Nodes whose every outcome satisfies the pod, for least damage."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        return self.best_of(offered, request)

    def best_of(self, names: Iterable[str], request: GpuRequest) -> Pick:
        """The best of these nodes; ties are broken at random."""
        found = ((name, self.merit(NodeName(name), request)) for name in names)
        merits = {name: merit for name, merit in found if merit is not None}
        if not merits:
            return Pick(None, Counter({"no node can keep it": 1}))
        scores = scoring.scores(request, merits.values())
        best = max(scores.values())
        chosen = self._rng.choice([n for n, m in merits.items() if scores[m] == best])
        return Pick(chosen, Counter())

    def merit(self, name: NodeName, request: GpuRequest) -> scoring.Merit | None:
        """What a node is worth to a pod; None where it does not fit or may not keep its promise."""
        topology, (kubelet, free) = self._scene.nodes[name], self.standing(name)
        now = Availability(free, width=kubelet.width)
        assessed = assess(kubelet, now, request)
        kept = assessed.verdict.holds or not request.required
        if not (assessed.fits and kept and self._memory_suffices(topology, kubelet, free, request)):
            return None
        return scoring.merit(kubelet, now, request, assessed, scoring.PRIOR)

    def standing(self, name: NodeName) -> tuple[Kubelet, Pool]:
        """How a node hands out devices, and which of them nobody holds at this moment."""
        topology = self._scene.nodes[name]
        served = topology.resources[0]
        kubelet = kubelet_of(topology, served)
        position_of = served_devices(topology, served).position_of
        free = self._scene.kubelets[name].free_ids()
        places = Counter(position_of[base_uuid(device)] for device in free)
        return kubelet, pack((places[p] for p in range(kubelet.shape.size)), kubelet.width)

    def _memory_suffices(
        self, topology: NodeTopology, kubelet: Kubelet, free: Pool, request: GpuRequest
    ) -> bool:
        """Whether the pods on every GPU that may come use no more memory than it has."""
        if kubelet.replicas == 1:
            return True
        position_of = served_devices(topology, topology.resources[0]).position_of
        replicas, memory = kubelet.replicas, kubelet.shape.memory
        used = [0] * kubelet.shape.size
        for unit, pods in self._scene.kubelets[topology.name].sharing().items():
            p = position_of[GpuUuid(unit)]
            for _, other, devices in pods:
                declared = other.constraints.gpu_memory
                used[p] += declared * replicas if declared else devices * memory[p]
        sets = admissions(kubelet, free, request.counts).sets
        declared = request.constraints.gpu_memory
        return sets is not None and all(
            used[p] + (declared * replicas if declared else devices * memory[p])
            <= memory[p] * replicas
            for pool in sets
            for p in range(kubelet.shape.size)
            if (devices := count(pool, p, kubelet.width))
        )

    def put_pod(self, record: PodRecord) -> None:
        """It knows all pods at every moment."""

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """It knows that."""

    def put_report(self, topology: NodeTopology, published: PublishedReport) -> None:
        """It asks the kubelets themselves."""

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Nothing can have changed."""
        self._api.write_bind(entry, node, Verdict.GUARANTEED.value)
        return None
