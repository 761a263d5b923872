"""Closed loops to play, each described by a small value."""

import random
from collections import Counter
from dataclasses import dataclass

from benchmarks.promises.fleets import FLEETS, as_it_may_be
from benchmarks.promises.judge import Judge
from benchmarks.promises.outages import Outages
from benchmarks.promises.workloads import (
    CONTAINERS,
    EVERYTHING,
    SHARES,
    SLICES,
    Habits,
    group_jobs,
    jobs,
)
from scheduler_extender.simulator.asking import Picked
from scheduler_extender.simulator.clock import Clock
from scheduler_extender.simulator.cluster import PlayedCluster
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.simulator.pods import GPU, PodEntry
from scheduler_extender.simulator.scene import Scene, Tally
from scheduler_extender.state.node.ledger import ledger
from topology.core.devices import NodeName
from topology.core.patterns import subset_masks
from topology.core.placement import satisfies
from topology.core.report import Report
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet


class GoodSetFree(Extender):
    """The rule of most topology-aware schedulers, which accept a node where a good set is free.

    It has the same inputs as the extender and counts assumed pods. It considers no outcome.
    """

    def pick(self, entry: PodEntry, offered: list[str]) -> Picked:
        """Pick the fullest node on which a satisfying set is free; ties are broken at random."""
        good = [name for name in offered if self._good(name, entry.request)]
        if not good:
            return Picked(None, Counter())
        fraction = self._scene.capacity.used_fraction
        fullest = max(fraction(name) for name in good)
        return Picked(self._rng.choice([n for n in good if fraction(n) == fullest]), Counter())

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Bind the pod if a good set is still free. The rule considers that a guarantee."""
        if not self._good(node, entry.request):
            return "no good set is free"
        self._api.write_bind(entry, node)
        return None

    def _good(self, name: str, request: GpuRequest) -> bool:
        info = self.cluster.node_info(NodeName(name))
        if info.topology is None:
            return False
        now = ledger(info.topology, info.report or Report(), info.pods.every, GPU).availability
        if now.devices_left < request.effective_count:
            return False
        shape = info.topology.shape
        sets = subset_masks(now.free, request.count).tolist()
        return not request.required or any(satisfies(shape, request.constraints, s) for s in sets)


WORKLOADS = {
    "everything": EVERYTHING,
    "containers": CONTAINERS,
    "slices": SLICES,
    "shares": SHARES,
}


@dataclass(frozen=True, slots=True)
class Play:
    """One closed loop to play."""

    policy: str  # one of those that :func:`play` names
    pods: int
    seed: int
    nodes: str = "mixed"  # a key of FLEETS
    workload: str = "everything"  # one of WORKLOADS, or ``groups``
    rate: float = 0.8  # pods a second
    foreign: float = 0.02  # the fraction of pods that are bound without the extender
    restarts: int = 0  # of the extender
    runs: float = 60.0  # seconds that a pod runs, on average
    faults: Faults = Faults()  # noqa: RUF009 (it is frozen)
    delays: Delays = Delays()  # noqa: RUF009
    dra: float = 0.0  # the fraction of nodes with DRA


def play(what: Play) -> Tally:
    """Play a closed loop to its end."""
    policies = {"extender": Extender, "good set free": GoodSetFree}
    nodes = FLEETS[what.nodes]()
    if what.workload == "groups":
        work = group_jobs(what.pods, what.seed, rate=what.rate, runs=what.runs)
    else:
        habits = Habits(what.rate, what.runs, what.foreign, what.faults.whole_cpus)
        templates, resource = WORKLOADS[what.workload], nodes[0].resources[0].name
        work = jobs(what.pods, what.seed, habits, templates, resource)
    rng = random.Random(what.seed)
    restarts = tuple(sorted(rng.uniform(0, work[-1].arrives) for _ in range(what.restarts)))
    policy = policies[what.policy](what.seed)
    names = [node.name for node in nodes]
    dra_nodes = random.Random(what.seed).sample(names, round(what.dra * len(names)))
    chance = random.Random(what.seed)
    kubelets = {}
    for node in nodes:  # what the record leaves unknown about a kubelet is drawn
        drawn, resource = as_it_may_be(node, chance), node.resources[0].name
        kubelets[node.name] = EmulatedKubelet(drawn, chance, resource, foreign_hints=True)
    scene = Scene(
        Clock(chance),
        {node.name: node for node in nodes},
        kubelets,
        what.delays,
        what.faults,
        dra_nodes,
    )
    scene.observer = judge = Judge(scene)
    cluster = PlayedCluster(scene, work, policy)
    Outages(cluster, work[-1].arrives).begin()
    tally = cluster.run(restarts)
    tally.faults = policy.faults
    tally.mispredictions = Counter(s.kind for s in judge.mispredictions if not s.foreign)
    return tally
