"""What the extender is compared with in a closed loop: scores, a simpler rule, and an oracle."""

from __future__ import annotations

from collections import Counter

from benchmarks.promises.extender import Extender
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.policy import Pick, PublishedReport
from benchmarks.promises.scene import Scene
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.wire import Pod
from topology.core import scoring
from topology.core.admission import kubelet_of
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology, subsets
from topology.core.placement import Verdict, assess, satisfies
from topology.core.requests import GpuRequest


def least_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with LeastAllocated, over GPUs: the emptiest node."""
    return {name: -scene.capacity.used_share(name) for name in names}


def most_allocated(scene: Scene, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with MostAllocated, over GPUs: the fullest node."""
    return {name: scene.capacity.used_share(name) for name in names}


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts reservations, and takes no outcome into account.
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
        merits: dict[str, scoring.Merit] = {}
        for name in offered:
            topology = self._scene.nodes[NodeName(name)]
            kubelet = kubelet_of(topology, topology.resources[0])
            free = sum(1 << p for p, _ in self._scene.kubelets[NodeName(name)].free())
            now = Availability(free)
            assessed = assess(kubelet, now, request)
            if assessed.fits and (assessed.verdict.holds or not request.required):
                merits[name] = scoring.merit(kubelet, now, request, assessed, scoring.PRIOR)
        if not merits:
            return Pick(None, Counter({"no node can keep it": 1}))
        scores = scoring.scores(request, merits.values())
        best = max(scores.values())
        chosen = self._rng.choice([n for n, m in merits.items() if scores[m] == best])
        return Pick(chosen, Counter())

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
