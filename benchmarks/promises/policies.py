"""Who chooses nodes in a world: the extender, and what it is compared with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from benchmarks.promises.closed_loop import STALE_AFTER, Entry, Heard, World
from benchmarks.promises.podapi import PodApi
from scheduler_extender import verbs
from scheduler_extender.kube.binder import KubeBinder
from scheduler_extender.kube.settler import Settler
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.decision import Settings, kubelet_of
from scheduler_extender.state.freshness import Watch
from scheduler_extender.state.ledger import availability
from scheduler_extender.state.pods import PodRecord
from scheduler_extender.state.verification import Surprise
from scheduler_extender.verbs import BindError
from scheduler_extender.wire import BindingArgs, Pod
from topology.core import scoring
from topology.core.belief import Availability
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology, subsets
from topology.core.placement import Verdict, assess, satisfies
from topology.core.requests import GpuRequest

GPU = "nvidia.com/gpu"
ROUND = 1.0
"""Seconds between two rounds of the settler."""

Score = Callable[[World, list[str]], dict[str, float]]
"""The score of each node; None of them is the extender's own."""


def least_allocated(world: World, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with LeastAllocated, over GPUs: the emptiest node."""
    return {name: -world.used_share(name) for name in names}


def most_allocated(world: World, names: list[str]) -> dict[str, float]:
    """kube-scheduler's NodeResourcesFit with MostAllocated, over GPUs: the fullest node."""
    return {name: world.used_share(name) for name in names}


class Extender:
    """The shipping verbs over the shipping cluster; ``score`` replaces prioritize where given."""

    def __init__(self, seed: int, *, score: Score | None = None) -> None:
        self._rng = random.Random(seed)
        self._score = score
        self.surprises: list[Surprise] = []
        self.faults: list[str] = []

    def start(self, world: World) -> None:
        """Begin in a world."""
        self._world = world
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        world = self._world
        stale_after = STALE_AFTER if world.faults.dies_every else None
        self._heard: dict[str, float] = {}
        self._failing: dict[str, float] = {}
        self.cluster = Cluster(lambda: world.now, Settings(stale_after=stale_after), self._watches)
        self.cluster.faults.on_fault(lambda node, error: self.faults.append(f"{node}: {error!r}"))
        self.cluster.on_surprise(self.surprises.append)
        self._binder = KubeBinder(PodApi(world), self.cluster)
        self._settler = Settler(self.cluster, self._binder, clock=lambda: world.now)
        self._in_rounds = False

    def pick(self, pod: Pod, offered: list[str], world: World) -> tuple[str | None, Counter[str]]:
        """filter, then prioritize; ties fall at random, as in kube-scheduler."""
        answer = verbs.filter_nodes(self.cluster, pod, offered)
        reasons = Counter([*answer.failed.values(), *answer.unresolvable.values()])
        passed = answer.node_names or []
        if not passed:
            return None, reasons
        scores: dict[str, float] = {}
        if self._score is not None:
            scores = self._score(world, passed)
        else:
            rows = verbs.prioritize(self.cluster, pod, passed)
            scores = {str(row["Host"]): float(str(row["Score"])) for row in rows}
        best = max(scores.values())
        return self._rng.choice([n for n in passed if scores[n] == best]), reasons

    def bind(self, entry: Entry, node: str, world: World) -> str | None:
        """bind, which decides anew."""
        meta = entry.pod.metadata
        args = BindingArgs(meta.name, meta.namespace, meta.uid, node)
        try:
            verbs.bind(self.cluster, self._binder, args, lambda: "")
        except BindError as error:
            return str(error)
        finally:
            if not self._in_rounds:
                self._in_rounds = True
                self._round(self._settler)
        return None

    def _watches(self) -> list[Watch]:
        return [Watch(name, at, self._failing.get(name)) for name, at in self._heard.items()]

    def _round(self, settler: Settler) -> None:
        """The settler's rounds, as long as there is something to settle."""
        if settler is not self._settler:
            return  # that extender is dead
        settler.round(self._world.now)
        self._in_rounds = bool(self.cluster.in_flight())
        if self._in_rounds:
            self._world.after(ROUND, lambda: self._round(settler))

    def put_pod(self, record: PodRecord) -> None:
        """News of a pod."""
        self.cluster.put_pod(record)

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """A pod is gone."""
        self.cluster.drop_pod(uid, version)

    def put_report(self, topology: NodeTopology, heard: Heard) -> None:
        """News of a node."""
        age = self._world.now - heard.looked
        self.cluster.put_record(topology, heard.report, uid=heard.record, age=age)

    def drop_record(self, name: NodeName) -> None:
        """A node's record is gone."""
        self.cluster.drop_record(name)

    def watch_heard(self, watch: str) -> None:
        """A watch has brought something."""
        self._heard[watch] = self._world.now

    def watch_failing(self, watch: str, *, failing: bool) -> None:
        """A watch is broken, or mended."""
        self._failing.pop(watch, None)
        if failing:
            self._failing[watch] = self._world.now


class Naive(Extender):
    """The rule of most topology-aware schedulers: a good set is free, so the node will do.

    It sees what the extender sees, counts reservations, and takes no outcome into account.
    """

    def pick(self, pod: Pod, offered: list[str], world: World) -> tuple[str | None, Counter[str]]:
        """Nodes on which a satisfying set is free; the fullest first."""
        request = world.pods[PodUid(pod.metadata.uid)].request
        good = [name for name in offered if self._good(name, request, world)]
        if not good:
            return None, Counter({"no good set is free": len(offered)})
        fullest = max(world.used_share(name) for name in good)
        return self._rng.choice([n for n in good if world.used_share(n) == fullest]), Counter()

    def bind(self, entry: Entry, node: str, world: World) -> str | None:
        """Bind where a good set is free still."""
        if not self._good(node, entry.request, world):
            return "no good set is free"
        world.write_bind(entry, node, "good set free")
        return None

    def _good(self, name: str, request: GpuRequest, world: World) -> bool:
        node = NodeName(name)
        facts = self.cluster.facts(node)
        topology, report = facts.topology, facts.report
        if topology is None:
            return False
        view = availability(topology, report, facts.all_pods, GPU)
        if view.devices_left < request.effective_count:
            return False
        if not request.required:
            return True
        sets = subsets(view.free, request.count)
        return any(satisfies(topology.shape, request.constraints, s) for s in sets)


class Oracle(Extender):
    """Knows what every node holds at this very moment, and binds by the same outcome rules.

    Run it in a world without delays: there is nothing that it could be wrong about.
    """

    def pick(self, pod: Pod, offered: list[str], world: World) -> tuple[str | None, Counter[str]]:
        """Nodes whose every outcome satisfies the pod, for least damage."""
        request = world.pods[PodUid(pod.metadata.uid)].request
        merits: dict[str, scoring.Merit] = {}
        for name in offered:
            topology = world.nodes[NodeName(name)]
            kubelet = kubelet_of(topology, topology.resources[0])
            free = sum(1 << p for p, _ in world.kubelets[NodeName(name)].free())
            now = Availability(free)
            assessed = assess(kubelet, now, request)
            if assessed.fits and (assessed.verdict.holds or not request.required):
                merits[name] = scoring.merit(kubelet, now, request, assessed, scoring.PRIOR)
        if not merits:
            return None, Counter({"no node can keep it": 1})
        scores = scoring.scores(request, merits.values())
        best = max(scores.values())
        return self._rng.choice([n for n, m in merits.items() if scores[m] == best]), Counter()

    def bind(self, entry: Entry, node: str, world: World) -> str | None:
        """Nothing can have changed."""
        world.write_bind(entry, node, Verdict.GUARANTEED.value)
        return None
