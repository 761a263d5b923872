"""The real extender in a closed loop, and the rule that it is compared with.

Everything that a closed loop asks of the extender goes through here: its verbs over its cluster,
its binder and its settler, and how it reads a pod. The binder talks to the emulated API server
through :class:`~benchmarks.promises.apiserver.PodApi`.
"""

import random
from collections import Counter
from collections.abc import Mapping

from benchmarks.promises.apiserver import ApiServer, PodApi
from benchmarks.promises.faults import STALE_AFTER
from benchmarks.promises.pods import GPU, PodEntry
from benchmarks.promises.scene import Hearing, Scene
from scheduler_extender.demo.kubescheduler import InProcess, Picked, pick
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.kube.dra import DraNodes, dra_sinks
from scheduler_extender.kube.settler import Settler
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.verification import Surprise
from scheduler_extender.state.pods.standing import amounts_of
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid, subsets
from topology.core.placement import satisfies
from topology.core.report import Report
from topology.core.requests import GpuRequest

ROUND = 1.0  # seconds between two rounds of the settler


class Extender:
    """The shipping verbs over the shipping cluster."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.surprises: list[Surprise] = []
        self.faults: list[str] = []

    def start(self, scene: Scene, api: ApiServer) -> None:
        """A closed loop begins."""
        self._scene = scene
        self._api = api
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        timeline, faults = self._scene.timeline, self._scene.faults
        stale_after = STALE_AFTER if faults.dies_every else None
        self._cluster = Cluster(
            lambda: timeline.now,
            Settings(stale_after=stale_after),
            self._watches,
        )
        self._cluster.faults.on_fault(lambda node, error: self.faults.append(f"{node}: {error!r}"))
        feed, records = self._cluster.feed, DraNodes(self._cluster)
        feed.on_surprise.append(self._hear_of)
        sinks = dra_sinks(self._cluster, records)
        by_kind = {path.rpartition("/")[2]: sink for path, sink in sinks}
        self._scene.hearing = Hearing(feed, records, by_kind)
        for name, node in self._scene.nodes.items():
            given = 0 if name in self._scene.by_dra else self._scene.capacity.there(name)
            told = NodeObject(allocatable=amounts_of({node.resources[0].name: given}))
            feed.put_node(name, told)
        binder = KubeBinder(PodApi(self._scene, self._api), self._cluster)
        self._verbs = InProcess(self._cluster, binder)
        self._settler = Settler(self._cluster, binder, clock=lambda: timeline.now)
        self._in_rounds = False

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
        """filter, then prioritize; ties are broken at random, as in kube-scheduler."""
        return pick(self._verbs, pod, offered, self._any_best)

    def _any_best(self, scores: Mapping[str, float]) -> str:
        best = max(scores.values())
        return self._rng.choice([name for name, score in scores.items() if score == best])

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """bind, which decides anew."""
        before = self._cluster.tallies.vetoes
        refusal = self._verbs.bind(entry.pod.metadata, node)
        self._scene.tally.vetoes += self._cluster.tallies.vetoes - before
        if not self._in_rounds:
            self._in_rounds = True
            self._round(self._settler)
        return refusal

    def _watches(self) -> list[Watch]:
        now = self._scene.hearing
        return [Watch(name, at, now.failing.get(name)) for name, at in now.heard.items()]

    def _hear_of(self, surprise: Surprise) -> None:
        """Keep a surprise, unless the node has changed in a way that no report could show."""
        if not self._api.changed_since(surprise.pod.uid, NodeName(surprise.node)):
            self.surprises.append(surprise)

    def _round(self, settler: Settler) -> None:
        """The settler's rounds, as long as there is something to settle."""
        if settler is not self._settler:
            return  # the extender of this settler was killed
        settler.round(self._scene.timeline.now)
        self._in_rounds = bool(self._cluster.snapshot().in_flight)
        if self._in_rounds:
            self._scene.timeline.after(ROUND, lambda: self._round(settler))


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts binds in flight, and takes no outcome into account.
    """

    def pick(self, pod: Pod, offered: list[str]) -> Picked:
        """Nodes on which a satisfying set is free; the fullest first."""
        request = self._api.pods[PodUid(pod.metadata.uid)].request
        good = [name for name in offered if self._good(name, request)]
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
        facts = self._cluster.facts(NodeName(name))
        if facts.topology is None:
            return False
        now = ledger(facts.topology, facts.report or Report(), facts.pods.every, GPU).availability
        if now.devices_left < request.effective_count:
            return False
        shape = facts.topology.shape
        sets = subsets(now.free, request.count)
        return not request.required or any(satisfies(shape, request.constraints, s) for s in sets)
