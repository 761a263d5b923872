"""The rule that the extender is compared with."""

from collections import Counter

from scheduler_extender.simulator.asking import Picked
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.pods import GPU, PodEntry
from scheduler_extender.state.node.ledger import ledger
from topology.core.devices import NodeName, subsets
from topology.core.placement import satisfies
from topology.core.report import Report
from topology.core.requests import GpuRequest


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts binds in flight, and takes no outcome into account.
    """

    def pick(self, entry: PodEntry, offered: list[str]) -> Picked:
        """Nodes on which a satisfying set is free; the fullest first."""
        good = [name for name in offered if self._good(name, entry.request)]
        if not good:
            return Picked(None, Counter())
        share = self._scene.capacity.used_share
        fullest = max(share(name) for name in good)
        return Picked(self._rng.choice([n for n in good if share(n) == fullest]), Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Bind where a good set is free still. The rule takes that for a guarantee."""
        if not self._good(node, entry.request):
            return "no good set is free"
        self._api.write_bind(entry, node, "guaranteed")
        return None

    def _good(self, name: str, request: GpuRequest) -> bool:
        facts = self.cluster.facts(NodeName(name))
        if facts.topology is None:
            return False
        now = ledger(facts.topology, facts.report or Report(), facts.pods.every, GPU).availability
        if now.devices_left < request.effective_count:
            return False
        shape = facts.topology.shape
        sets = subsets(now.free, request.count)
        return not request.required or any(satisfies(shape, request.constraints, s) for s in sets)
