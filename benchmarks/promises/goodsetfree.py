"""What the extender is compared with in a closed loop: the rule of most other schedulers."""

from collections import Counter

from benchmarks.promises.extender import Extender
from benchmarks.promises.pods import PodEntry
from scheduler_extender.demo.kubescheduler import Picked
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid, subsets
from topology.core.placement import satisfies
from topology.core.requests import GpuRequest


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts binds in flight, and takes no outcome into account.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
        """Nodes on which a satisfying set is free; the fullest first."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        good = [name for name in offered if self._good(name, request)]
        if not good:
            return Picked(None, Counter({"no good set is free": len(offered)}))
        share = self._scene.capacity.used_share
        fullest = max(share(name) for name in good)
        return Picked(self._rng.choice([n for n in good if share(n) == fullest]), Counter())

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
