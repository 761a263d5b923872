"""What the extender is compared with: stock schedulers, published policies, other promises."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.papers import policies as published
from benchmarks.papers.fragmentation import Typical
from benchmarks.papers.model import WHOLE, Nodes, PodKind
from benchmarks.simulation.fleet import Fleet, Ints, SimPod, State
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.policy import Base, ByState, Choice, Wait
from benchmarks.simulation.scheduler import WITH_GPUS
from topology.core.devices import Mask, positions, subsets
from topology.core.scoring import best_ring
from topology.core.shape import Shape


class Stock(Base):
    """kube-scheduler and NVIDIA's plugin, as they come: LeastAllocated or MostAllocated."""

    def __init__(self, *, most: bool) -> None:
        self._most = most

    def among(self, pod: SimPod, rows: Ints) -> Choice | Wait:
        """By NodeResourcesFit over CPU, memory and GPUs, and NodeResourcesBalancedAllocation."""
        scores = self.in_tree.scores(pod, rows, WITH_GPUS, most=self._most)
        return Choice(self.in_tree.best(rows, scores))


class Published(Base):
    """A policy of :mod:`benchmarks.papers`, which scores nodes; NVIDIA's plugin picks the GPUs.

    Where parts of GPUs are served, all that it knows of a node's GPUs is how much is left of each.
    """

    def __init__(self, policy: published.Policy) -> None:
        self._policy = policy

    def begin(self, fleet: Fleet, jobs: Sequence[Job], rng: random.Random) -> None:
        """Learn what pods usually come."""
        super().begin(fleet, jobs, rng)
        products = [node.topology.gpus[0].product for node in fleet.nodes]
        models = sorted(set(products))
        kinds = [pod_kind(job, models) for job in jobs for _ in range(min(job.pods, 64))]
        self._typical = Typical(kinds, models)
        self._kinds = {job.ask: pod_kind(job, models) for job in jobs}
        self._model = np.array([models.index(p) for p in products], dtype=np.int64)
        width = max(8, *(len(node.topology.gpus) for node in fleet.nodes))
        self._classes = np.zeros((len(fleet), width + 1), dtype=np.bool_)
        self._width = width
        self._there: list[list[int]] = [[0] * (width + 1) for _ in range(len(fleet))]

    def among(self, pod: SimPod, rows: Ints) -> Choice | Wait:
        """By the policy's score."""
        fleet = self.fleet
        nodes = Nodes(
            fleet.cpu[rows],
            fleet.memory[rows],
            np.array([self._milli(fleet.states[i]) for i in fleet.state[rows]], dtype=np.int64),
            np.array([fleet.states[i].shape.size for i in fleet.state[rows]], dtype=np.int64),
            self._model[rows],
            self._classes[rows],
        )
        scores = self._policy(nodes, self._kinds[pod.ask], self._typical).scores
        top = rows[scores == scores.max()]
        return Choice(int(top[self.rng.randrange(len(top))]))

    def _milli(self, state: State) -> tuple[int, ...]:
        return _milli(state, self._width)

    def admitted(self, pod: SimPod, row: int) -> None:
        """Count the pod's class for GpuClustering."""
        self._note(pod, row, 1)

    def left(self, pod: SimPod, row: int) -> None:
        """Count the pod's class down."""
        self._note(pod, row, -1)

    def _note(self, pod: SimPod, row: int, sign: int) -> None:
        kind = self._kinds[pod.ask]
        if kind.gpus:
            self._there[row][kind.class_] += sign
            self._classes[row, kind.class_] = self._there[row][kind.class_] > 0


@cache
def _milli(state: State, width: int) -> tuple[int, ...]:
    """Free thousandths of each GPU; of those in part held nothing is known but their sum."""
    found = [WHOLE if state.free >> p & 1 else 0 for p in range(state.shape.size)]
    parts = state.left - state.free.bit_count() * state.replicas
    for p, milli in enumerate(found):
        if not milli and parts > 0:
            take = min(parts, state.replicas - 1)
            found[p] = WHOLE * take // state.replicas
            parts -= take
    return tuple(found + [0] * (width - len(found)))


def pod_kind(job: Job, models: Sequence[str]) -> PodKind:
    """A pod of the job in the papers' model."""
    ask = job.ask
    globs = dict(ask.annotations).get("gpu-model", "")
    wanted = frozenset(globs.split(",")) & frozenset(models) if globs else frozenset()
    milli = WHOLE if ask.share is None else round(WHOLE * ask.share)
    return PodKind(ask.cpu, ask.memory, ask.gpus, milli if ask.gpus else 0, wanted)


class OwnPlugin(ByState):
    """A policy whose own plugin picks the GPUs; parts of GPUs go where least is left."""

    def best(self, pod: SimPod, state: State) -> tuple[tuple[float, float], Mask] | None:
        """A score, and the GPUs that the pod gets; None where it must not go."""
        raise NotImplementedError

    def score(self, pod: SimPod, state: State) -> Any:
        """The best set's."""
        if state.replicas > 1:
            return -state.left, 0.0
        found = self.best(pod, state)
        return None if found is None else found[0]

    def gpus(self, pod: SimPod, state: State) -> Mask | None:
        """The best set."""
        found = None if state.replicas > 1 else self.best(pod, state)
        return None if found is None else found[1]


class Preserve(OwnPlugin):
    """MAPA's policy of that name, a set of GPUs for each pod (Ranganath et al., SC 2021).

    A pod with NVLink demands is bandwidth-sensitive: it takes the free set with the best ring. Any
    other takes the set that leaves most NVLink bandwidth among the free GPUs. Nobody waits while
    GPUs are free.
    """

    def best(self, pod: SimPod, state: State) -> tuple[tuple[float, float], Mask] | None:
        """The best set of free GPUs."""
        sensitive = pod.request is not None and not pod.request.plain
        return _preserve(state.shape, state.free, pod.ask.gpus, sensitive)


MOST_SETS = 20_000


@cache
def _preserve(
    shape: Shape, free: Mask, count: int, sensitive: bool
) -> tuple[tuple[float, float], Mask] | None:
    best: tuple[tuple[float, float], Mask] | None = None
    before = nvlink_bandwidth(shape, free)
    for tried, mask in enumerate(subsets(free, count)):
        if tried == MOST_SETS:
            break
        lost = before - nvlink_bandwidth(shape, free & ~mask)
        ring = float(best_ring(shape, mask)) if count > 1 else 0.0
        score = (ring, -lost) if sensitive else (-lost, ring)
        if best is None or score > best[0]:
            best = (score, mask)
    return best


@cache
def nvlink_bandwidth(shape: Shape, mask: Mask) -> float:
    """GB/s of all NVLinks among these GPUs, both ways."""
    links = (shape.links[a][b] for a, b in combinations(positions(mask), 2))
    return float(sum(link.bandwidth for link in links if link is not None and link.nvlinks))


MOST_HALVES = 10_000


@cache
def cells(shape: Shape) -> tuple[Mask, ...]:
    """Every cell, the largest first.

    >>> from topology.machines import machine
    >>> dgx = machine("dgx1-v100").topology("n").shape
    >>> [f"{cell:08b}" for cell in cells(dgx)[:3]]
    ['11111111', '00001111', '11110000']
    """
    found: list[Mask] = []
    level = [shape.all_gpus]
    while level:
        found += level
        level = [half for cell in level if cell.bit_count() > 1 for half in _halves(shape, cell)]
    return tuple(found)


def _halves(shape: Shape, cell: Mask) -> tuple[Mask, Mask]:
    """The split into two with the most bandwidth inside the halves; the first of equal ones."""
    members = positions(cell)
    best: tuple[float, Mask] | None = None
    first, rest = members[0], members[1:]
    size = (len(members) + 1) // 2
    for tried, others in enumerate(combinations(rest, size - 1)):
        if tried == MOST_HALVES:
            break
        half = (1 << first) | sum(1 << p for p in others)
        inside = _bandwidth(shape, half) + _bandwidth(shape, cell & ~half)
        if best is None or inside > best[0]:
            best = (inside, half)
    assert best is not None
    return best[1], cell & ~best[1]


def _bandwidth(shape: Shape, mask: Mask) -> float:
    links = (shape.links[a][b] for a, b in combinations(positions(mask), 2))
    return float(sum(link.bandwidth for link in links if link is not None))


@cache
def free_cell(tree: tuple[Mask, ...], free: Mask, count: int) -> tuple[int, Mask] | None:
    """How large the free cell is that is taken or split, and the GPUs that it gives.

    The smallest free cell that holds ``count``; of a larger one the first part that does. None
    where no cell does.
    """
    whole = [cell for cell in tree if cell & ~free == 0 and cell.bit_count() >= count]
    if not whole:
        return None
    # A cell inside a larger free one is that one's part: taking it splits it.
    outer = [c for c in whole if not any(c != d and c & ~d == 0 for d in whole)]
    split = min(outer, key=lambda c: c.bit_count())
    inner = min((c for c in whole if c & ~split == 0), key=lambda c: c.bit_count())
    taken = sum(1 << p for p in positions(inner)[:count])
    return split.bit_count(), taken


class Buddy(OwnPlugin):
    """Buddy allocation of cells in HiveD's manner (Zhao et al., OSDI 2020).

    A node's GPUs are halved again and again along its links. A pod gets the smallest free cell that
    holds it, split off the smallest one that there is, so large cells stay whole; it waits while no
    cell is free, even if GPUs are.
    """

    def best(self, pod: SimPod, state: State) -> tuple[tuple[float, float], Mask] | None:
        """The smaller the cell that is taken or split, the better."""
        found = free_cell(cells(state.shape), state.free, pod.ask.gpus)
        return None if found is None else ((-found[0], 0.0), found[1])
