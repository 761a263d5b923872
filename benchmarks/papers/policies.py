"""FGD's policy and ours. Each gives a score for each node, and a GPU for a share.

A policy is one function of the nodes on which a pod can run. Scores are compared without rounding.
They are whole numbers where the published simulator has whole numbers, because ties decide much.
Both policies score the use of a node's idle resources for the pods that usually come.

**Fragmentation** is FGD's measure: how much of a node's idle GPU the usual pods could not use.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023): F_n(M) = Σ_m p_m · F_n(m) over typical
pods m with popularity p_m. If m cannot run on n, or requests no GPU, all idle GPU counts. Otherwise
the idle part of those GPUs counts that have less left than m requests of one.

**Guaranteed capacity** is our measure, the idea of :mod:`topology.core.scoring` in this model: how
many more of each usual pod would fit, alone, times the GPU that it requests. Fragmentation changes
only when a node has no CPU left for a pod. Guaranteed capacity falls with every CPU that idle GPUs
will need.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.model import MOST_GPUS, WHOLE, Bools, Floats, Ints, Nodes, PodKind

COVERED = 0.95


class Typical:
    """The most frequent pods, which together are 95 % of a workload, with their popularity."""

    def __init__(self, pods: Iterable[PodKind], models: Sequence[str]) -> None:
        # The paper's definition does not include memory.
        counts = Counter((p.cpu, p.gpus, p.milli, p.models) for p in pods)
        total = sum(counts.values())
        chosen: list[tuple[tuple[int, int, int, frozenset[str]], int]] = []
        for kind, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
            chosen.append((kind, count))
            if sum(n for _, n in chosen) >= COVERED * total:
                break
        self._weight = sum(n for _, n in chosen)
        self.size = len(chosen)
        self._cpu = np.array([k[0] for k, _ in chosen], dtype=np.int64)
        self._gpus = np.array([k[1] for k, _ in chosen], dtype=np.int64)
        self._milli = np.array([k[2] for k, _ in chosen], dtype=np.int64)
        # Whole numbers that are divided at the end. So equal nodes are equal to the last bit, and
        # the loss never exceeds what is idle.
        self._count = np.array([n for _, n in chosen], dtype=np.float64)
        self._allowed = np.array(
            [[not k[3] or model in k[3] for k, _ in chosen] for model in models], dtype=np.bool_
        )

    def fragmentation(self, cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        """Return F of each row, in milli.

        The arguments are the free CPU (n), the free GPU milli (n × GPUs) and the model (n).
        """
        short = gpu[:, None, :] < self._milli[None, :, None]
        fits: Bools = (~short).sum(axis=2) >= self._gpus[None, :]
        runs = fits & (cpu[:, None] >= self._cpu[None, :]) & self._allowed[model]
        runs &= self._gpus[None, :] > 0
        idle = gpu.sum(axis=1)
        useless = (gpu[:, None, :] * short).sum(axis=2)
        lost = np.where(runs, useless, idle[:, None])
        found: Floats = (lost @ self._count) / self._weight
        return found

    def guaranteed_capacity(self, cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        """Return W of each row in milli; the arguments are those of :meth:`fragmentation`.

        W = Σ_m p_m · g_m · k_m, with the popularity p_m, the GPU milli g_m of one pod, and the
        number k_m of pods that fit if no others come.
        """
        share = (self._gpus == 1) & (self._milli < WHOLE)
        parts = (gpu[:, None, :] // np.maximum(self._milli, 1)[None, :, None]).sum(axis=2)
        wholes = (gpu == WHOLE).sum(axis=1)[:, None] // np.maximum(self._gpus, 1)[None, :]
        room = np.where(share[None, :], parts, wholes)
        room = np.minimum(room, cpu[:, None] // np.maximum(self._cpu, 1)[None, :])
        room = np.where(self._allowed[model] & (self._gpus > 0)[None, :], room, 0)
        found: Floats = (room @ (self._count * self._gpus * self._milli)) / self._weight
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """A score for each node, and the column of the GPU that a share would take."""

    scores: Floats
    gpu: Ints


Policy = Callable[[Nodes, PodKind, Typical], Answer]  # gets only nodes on which the pod can run


def fgd(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Score nodes by fragmentation gradient descent: the least growth over every GPU is best."""

    def idle(cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        return -typical.fragmentation(cpu, gpu, model)

    return _descend(nodes, pod, idle, lambda gained: np.floor(100 / (1 + np.exp(-gained / 1000))))


def guaranteed_capacity(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Score nodes by the formula of :mod:`topology.core.scoring`.

    The node is best whose guaranteed capacity for the usual pods falls least.
    """
    return _descend(
        nodes,
        pod,
        typical.guaranteed_capacity,
        lambda gained: np.floor(CAPACITY_PART * gained / STEP),
    )


# Guaranteed capacity counts every pod that could come, and fragmentation counts one, so guaranteed
# capacity is about ten times as large.
CAPACITY_PART = 0.1
# Smaller differences, in milli, count as ties. FGD's floored sigmoid has a step as coarse where it
# is steepest.
STEP = 40.0


def _descend(
    nodes: Nodes,
    pod: PodKind,
    value: Callable[[Ints, Ints, Ints], Floats],
    score: Callable[[Floats], Floats],
) -> Answer:
    """Score what each node's value gains by the pod, on the best GPU if the pod wants a share."""
    n = len(nodes)
    before = value(nodes.cpu, nodes.gpu, nodes.model)
    cpu = nodes.cpu - pod.cpu
    if not pod.is_share:
        free = nodes.gpu == WHOLE
        taken = free & (np.cumsum(free, axis=1) <= pod.gpus)  # the first free ones
        after = value(cpu, np.where(taken, 0, nodes.gpu), nodes.model)
        return Answer(score(after - before), np.zeros(n, dtype=np.int64))
    rows, columns = np.nonzero(nodes.gpu >= pod.milli)
    gpu = nodes.gpu[rows]
    gpu[np.arange(len(rows)), columns] -= pod.milli
    after = value(cpu[rows], gpu, nodes.model[rows])
    scores = np.full((n, MOST_GPUS), -np.inf)
    scores[rows, columns] = score(after - before[rows])
    return Answer(scores.max(axis=1), scores.argmax(axis=1))


POLICIES: dict[str, Policy] = {"FGD": fgd, "Guaranteed capacity": guaranteed_capacity}
