"""The policies that choose a node for a pod: kube-scheduler alone, or with the extender.

The extender is the shipping verbs over the shipping cache, behind kube-scheduler's own filters.
Scores are added up as kube-scheduler does with the configuration in ``manifests/scheduler``.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.simulation.fleet import Fleet, Ints, SimPod
from benchmarks.simulation.jobs import WHOLE_GPU
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.framework.equivalence import class_ids_of
from scheduler_extender.simulator.asking import InProcess, pick
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache

TOP = 100
# In scores a pod without requests counts as requesting 100m CPU and 200 MiB.
LEAST_CPU, LEAST_MEMORY = 100, 200

DEFAULT = {"cpu": 1, "memory": 1}  # the default weights of NodeResourcesFit
# The weights of the Kubernetes documentation on bin packing with an extended resource.
WITH_GPUS = {"cpu": 1, "memory": 1, "gpu": 3}
WEIGHT = 5  # `extenders[0].weight` of the shipped scheduler configuration
REFUSED = -1


def sample_size(nodes: int) -> int:
    """Return how many fitting nodes kube-scheduler looks for.

    >>> [sample_size(n) for n in (50, 100, 1000, 5000, 65000)]
    [50, 100, 420, 500, 3250]
    """
    if nodes < 100:
        return nodes
    percent = max(5, 50 - nodes // 125)
    return max(100, nodes * percent // 100)


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer that a pod gets no node now."""

    for_good: bool = False  # whether it stays so when other pods come or go


class Policy:
    """A policy of one simulation, which places one pod at a time.

    This base class is kube-scheduler's in-tree part: the nodes that it offers, and the scores of
    its own plugins. NodeResourcesFit and NodeResourcesBalancedAllocation are as in Kubernetes 1.36
    (``plugins/noderesources``), with whole numbers as there. Other score plugins make no difference
    between nodes here. kube-scheduler looks for :func:`sample_size` nodes that fit
    (``percentageOfNodesToScore: 0``), and begins for the next pod with the next node.
    """

    placing_may_help = False  # whether a pod that is refused may pass after another has been placed

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        self.fleet = fleet
        self._rng = rng
        self._next = 0

    def choose(self, pod: SimPod, only: Ints | None = None) -> int | Wait:
        """Return the row of the pod's node, or that it waits.

        kube-scheduler alone places pods without GPUs. ``only`` are the nodes that have changed
        since all nodes refused a pod with the same request.
        """
        wait = Wait(for_good=True)
        for rows in self.samples(pod, only):
            if not pod.ask.gpus:
                return self.best(rows, self.scores(pod, rows, DEFAULT, most=False))
            found = self.among(pod, rows)
            if not isinstance(found, Wait):
                return found
            if wait.for_good:  # if the answer of one sample may change, the pod waits
                wait = found
        return wait

    def samples(self, pod: SimPod, only: Ints | None = None) -> Iterator[Ints]:
        """Yield the nodes that pass the filters, one sample of kube-scheduler at a time.

        A caller that refuses a sample gets the next one. kube-scheduler's later tries begin where
        the last one ended, and here nothing happens in between. With ``only``, all other nodes are
        known to refuse the pod.
        """
        if only is not None:
            fitting = only[self.fleet.fitting(pod, only)]
            if len(fitting):
                yield fitting
            return
        n, limit, start = len(self.fleet), sample_size(len(self.fleet)), self._next
        fits = np.flatnonzero(self.fleet.fitting(pod))
        ahead = int(np.searchsorted(fits, start))
        fits = np.concatenate([fits[ahead:], fits[:ahead]])
        for first in range(0, len(fits), limit):
            rows: Ints = fits[first : first + limit]
            last = first + limit >= len(fits)
            self._next = start if last else (int(rows[-1]) + 1) % n
            yield rows

    def scores(self, pod: SimPod, rows: Ints, weights: Mapping[str, int], *, most: bool) -> Ints:
        """Return the sum of both plugins' scores, 0 to 200 a node; ``most`` is MostAllocated."""
        fleet, ask = self.fleet, pod.ask
        wanted = {
            "cpu": (fleet.cpu, fleet.cpu_total, ask.cpu or LEAST_CPU),
            "memory": (fleet.memory, fleet.memory_total, ask.memory or LEAST_MEMORY),
            "gpu": (fleet.gpus, fleet.gpus_total, ask.gpus),
        }
        total = np.zeros(len(rows), dtype=np.int64)
        for name, weight in weights.items():
            free, capacity, asked = (
                a[rows] if isinstance(a, np.ndarray) else a for a in wanted[name]
            )
            left = np.clip(free - asked, 0, capacity)
            share = (capacity - left if most else left) * TOP // np.maximum(capacity, 1)
            total += weight * share
        return total // sum(weights.values()) + self._balanced(pod, rows)

    def _balanced(self, pod: SimPod, rows: Ints) -> Ints:
        fleet, ask = self.fleet, pod.ask
        cpu = 1 - (fleet.cpu[rows] - ask.cpu) / np.maximum(fleet.cpu_total[rows], 1)
        memory = 1 - (fleet.memory[rows] - ask.memory) / np.maximum(fleet.memory_total[rows], 1)
        # For two resources the standard deviation is half the difference.
        found: Ints = ((1 - np.abs(cpu - memory) / 2) * TOP).astype(np.int64)
        return found

    def best(self, rows: Ints, scores: Ints) -> int:
        """Return one of the rows with the highest score, drawn at random."""
        top = rows[scores == scores.max()]
        return int(top[self._rng.randrange(len(top))])

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """Choose among nodes on which the pod fits by count."""
        raise NotImplementedError

    def admitted(self, pod: SimPod, row: int) -> None:
        """Note that the kubelet has admitted the pod, and that the agent has reported it."""

    def left(self, pod: SimPod, row: int) -> None:
        """Note that the pod ended, was rejected by the kubelet, or was removed with its gang."""


class Stock(Policy):
    """kube-scheduler without an extender, with LeastAllocated or MostAllocated."""

    def __init__(self, fleet: Fleet, rng: random.Random, *, most: bool) -> None:
        super().__init__(fleet, rng)
        self._most = most

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """Choose by NodeResourcesFit (CPU, memory, GPUs) and NodeResourcesBalancedAllocation."""
        return self.best(rows, self.scores(pod, rows, WITH_GPUS, most=self._most))


class Extender(Policy):
    """kube-scheduler with filter, prioritize and bind of :mod:`scheduler_extender.verbs`."""

    placing_may_help = True

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        """Report every node to a new cache."""
        super().__init__(fleet, rng)
        self._cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self._binder = FileBinder(self._cluster)
        self._verbs = InProcess(self._cluster, self._binder)
        self._changed = set(fleet.names)
        self._states = np.zeros(len(fleet), dtype=np.int64)
        self._cluster.on_change.append(self._changed.add)
        for row in range(len(fleet)):
            self._report(row)

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """Bind the pod to the best node that can keep its promise, by the scores of both.

        The verbs get only one node of each equivalence class, since they answer alike for all nodes
        of a class. Neither answer depends on the number of nodes in the request.
        """
        fleet = self.fleet
        manifest = pod.ask.pod(pod.name, pod.uid)
        changed = list(self._changed)
        states, _ = class_ids_of(self._cluster.snapshot(), WHOLE_GPU, changed)
        for name, state in zip(changed, states, strict=True):
            assert state is not None
            self._states[fleet.row(name)] = state
        self._changed.clear()
        _, first, back = np.unique(self._states[rows], return_index=True, return_inverse=True)
        names = fleet.name_of[rows[first]].tolist()
        picked = pick(
            self._verbs, manifest, names, lambda scores: self._best(pod, rows, names, back, scores)
        )
        if picked.node is None:
            return Wait(picked.for_good)
        self._binder.saw(manifest)
        refusal = self._verbs.bind(manifest.metadata, picked.node)
        return fleet.row(picked.node) if refusal is None else Wait()

    def _best(
        self, pod: SimPod, rows: Ints, names: list[str], back: Ints, scores: Mapping[str, float]
    ) -> str:
        """Return the best node by both scores; ``back`` has for each row the index of its class."""
        ours = np.array([scores.get(name, REFUSED) for name in names], dtype=np.int64)[back]
        passed = rows[ours != REFUSED]
        row = int(passed[0])
        if len(passed) > 1:
            both = ours[ours != REFUSED] * WEIGHT * 10
            both += self.scores(pod, passed, DEFAULT, most=False)
            row = self.best(passed, both)
        return self.fleet.names[row]

    def admitted(self, pod: SimPod, row: int) -> None:
        """Let the agent report what the kubelet gave."""
        if pod.request is not None:
            self._report(row)

    def left(self, pod: SimPod, row: int) -> None:
        """End the pod, let the agent report it, and delete the pod."""
        if pod.request is None:
            return
        record = self._cluster.pod(pod.uid)
        assert record is not None
        self._cluster.put_pod(replace(record, phase="Succeeded"))
        self._report(row)
        self._cluster.drop_pod(pod.uid)

    def _report(self, row: int) -> None:
        topology, kubelet = self.fleet.nodes[row].topology, self.fleet.kubelets[row]
        self._cluster.put_record(topology, kubelet.report())
