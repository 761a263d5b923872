"""The real extender in a closed loop. Everything that a closed loop asks of it goes through here.

That is: its verbs over its cluster, its binder and its settler, and how it reads a pod. The binder
talks to the emulated API server through :class:`~benchmarks.promises.apiserver.PodApi`.
"""

import random
from collections.abc import Hashable, Mapping

import msgspec

from benchmarks.promises.apiserver import ApiServer, PodApi
from benchmarks.promises.faults import STALE_AFTER
from benchmarks.promises.pods import GPU, PodEntry, PublishedReport
from benchmarks.promises.scene import Scene
from scheduler_extender.demo.kubescheduler import InProcess, Picked, pick
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.kube.dra import DraNodes, dra_sinks
from scheduler_extender.kube.settler import Settler
from scheduler_extender.state.answers.decision import Refusals, Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.cluster.freshness import Watch
from scheduler_extender.state.node.ledger import ledger
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.node.verification import Surprise
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.standing import amounts_of
from scheduler_extender.wire import Pod
from topology.core.availability import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report

ROUND = 1.0  # seconds between two rounds of the settler


class Extender:
    """The shipping verbs over the shipping cluster."""

    def __init__(self, seed: int, *, refusals: str = "certain") -> None:
        self._rng = random.Random(seed)
        self._refusals = Refusals(refusals)
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
        self._heard: dict[str, float] = {}
        self._failing: dict[str, float] = {}
        self._cluster = Cluster(
            lambda: timeline.now,
            Settings(stale_after=stale_after, refusals=self._refusals),
            self._watches,
        )
        self._cluster.faults.on_fault(lambda node, error: self.faults.append(f"{node}: {error!r}"))
        self._cluster.feed.on_surprise.append(self._hear_of)
        self._records = DraNodes(self._cluster)
        sinks = dra_sinks(self._cluster, self._records)
        self._sinks = {path.rpartition("/")[2]: sink for path, sink in sinks}
        for name in self._scene.nodes:
            self.put_node(name)
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

    def availability(self, node: NodeName) -> Availability | None:
        """What the extender knows of a node, with binds in flight; None where it knows nothing."""
        facts = self._cluster.facts(node)
        if facts.topology is None:
            return None
        return ledger(facts.topology, facts.report or Report(), facts.pods.every, GPU).availability

    def counted_free(self, node: NodeName) -> int:
        """The free devices of a node by kube-scheduler's count, as far as the extender knows."""
        now = self.availability(node)
        if now is None:
            return 0
        facts = self._cluster.facts(node)
        return now.devices_left + now.devices_ending + facts.overcounted(GPU)

    def living_on(self, nodes: list[NodeName]) -> list[PodUid]:
        """The pods that the extender takes to be bound there, and not to have ended."""
        return [uid for node in nodes for uid in self._cluster.facts(node).pods.bound.alive]

    def known_of(self, nodes: list[NodeName], but: frozenset[PodUid]) -> Hashable:
        """All that the extender's answers about some nodes depend on, without these pods.

        A claim may tell of a pod of which the extender has not heard: that is there as any other's.
        """
        binds, pod = self._cluster.binds, self._cluster.pod
        heard = frozenset(uid for uid in but if pod(uid) is not None or binds.of(uid) is not None)
        return tuple(self._cluster.facts(node).without(heard).key(GPU) for node in nodes)

    def _watches(self) -> list[Watch]:
        return [Watch(name, at, self._failing.get(name)) for name, at in self._heard.items()]

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

    def put_pod(self, record: PodRecord) -> None:
        """News of a pod."""
        self._cluster.feed.put_pod(record)

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """A pod is gone."""
        self._cluster.feed.drop_pod(uid, version)

    def put_node(self, name: NodeName) -> None:
        """News of a Node object."""
        node, by_dra = self._scene.nodes[name], name in self._scene.by_dra
        given = 0 if by_dra else self._scene.capacity.there(name)
        told = NodeObject(allocatable=amounts_of({node.resources[0].name: given}))
        self._cluster.feed.put_node(name, told)

    def put_object(self, kind: str, obj: msgspec.Raw) -> None:
        """News of an object of DRA."""
        self._sinks[kind].apply(obj)

    def drop_object(self, kind: str, obj: msgspec.Raw) -> None:
        """Such an object is gone."""
        self._sinks[kind].delete(obj)

    def list_objects(self, kind: str, objects: list[msgspec.Raw]) -> None:
        """All objects of a kind."""
        self._sinks[kind].replace(objects, "")

    def put_report(self, topology: NodeTopology, published: PublishedReport) -> None:
        """News of a node."""
        age = self._scene.timeline.now - published.looked
        self._records.put_record(topology, published.report, uid=published.record, age=age)

    def drop_record(self, name: NodeName) -> None:
        """A node's record is gone."""
        self._records.drop_record(name)

    def watch_heard(self, watch: str) -> None:
        """A watch has brought something."""
        self._heard[watch] = self._scene.timeline.now

    def watch_failing(self, watch: str, *, failing: bool) -> None:
        """A watch is broken, or works again."""
        self._failing.pop(watch, None)
        if failing:
            self._failing[watch] = self._scene.timeline.now
