"""FGD's policy and ours, each a score per node and a GPU for a share.

A policy is one function of the nodes on which a pod can run. Scores are compared as they are given,
whole numbers where the published simulator has whole numbers: what they tie decides much. Both
score what a node's idle resources are good for, by the pods that usually come.

**Fragmentation** is FGD's: how much of a node's idle GPU the usual pods could not use.

Weng et al., "Beware of Fragmentation" (USENIX ATC 2023): F_n(M) = Σ_m p_m · F_n(m) over typical
pods m with popularity p_m. Where m cannot run on n, or asks for no GPU, all that is idle counts;
else what is idle on GPUs with less left than m asks of one.

**Guaranteed capacity** is ours, the idea of :mod:`topology.core.scoring` in this model: how many
more of each usual pod would fit, alone, times the GPU it asks for. Fragmentation sees that a node
has run out of CPU for a pod only when it has; guaranteed capacity falls with every CPU that idle
GPUs will need.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.model import MOST_GPUS, WHOLE, Bools, Floats, Ints, Nodes, PodKind

COVERED = 0.95


class Typical:
    """The most frequent pods that together make 95 % of a workload, with their popularity."""

    def __init__(self, pods: Iterable[PodKind], models: Sequence[str]) -> None:
        # Memory is no part of the definition.
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
        # Whole numbers, divided at the end: equal nodes are equal to the last bit, and what is lost
        # is never more than what is idle.
        self._count = np.array([n for _, n in chosen], dtype=np.float64)
        self._allowed = np.array(
            [[not k[3] or model in k[3] for k, _ in chosen] for model in models], dtype=np.bool_
        )

    def fragmentation(self, cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        """F of each row: free CPU (n), free GPU milli (n × GPUs), model (n); in milli."""
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
        """W of each row, given as to :meth:`fragmentation`; in milli.

        Σ_m p_m · g_m · k_m: popularity, GPU milli of one, and how many fit with nothing else there.
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
    """A score per node, and the column of the GPU that a share would take."""

    scores: Floats
    gpu: Ints


Policy = Callable[[Nodes, PodKind, Typical], Answer]  # Asked of nodes on which the pod can run


def fgd(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Fragmentation gradient descent: where the fragmentation grows least, over every GPU."""

    def idle(cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        return -typical.fragmentation(cpu, gpu, model)

    return _descend(nodes, pod, idle, lambda gained: np.floor(100 / (1 + np.exp(-gained / 1000))))


def guaranteed_capacity(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """The formula of :mod:`topology.core.scoring`: where the guaranteed capacity for the usual pods
    falls least."""
    return _descend(
        nodes,
        pod,
        typical.guaranteed_capacity,
        lambda gained: np.floor(CAPACITY_PART * gained / STEP),
    )


# Guaranteed capacity counts every pod that could come, fragmentation one: so it is some ten times
# as large.
CAPACITY_PART = 0.1
# Milli that are no difference: FGD's floored sigmoid has as coarse a step where it is steepest.
STEP = 40.0


def _descend(
    nodes: Nodes,
    pod: PodKind,
    value: Callable[[Ints, Ints, Ints], Floats],
    score: Callable[[Floats], Floats],
) -> Answer:
    """Scores of what each node's value gains by the pod, on its best GPU if it wants a share."""
    n = len(nodes)
    before = value(nodes.cpu, nodes.gpu, nodes.model)
    cpu = nodes.cpu - pod.cpu
    if not pod.is_share:
        free = nodes.gpu == WHOLE
        taken = free & (np.cumsum(free, axis=1) <= pod.gpus)  # the first so many free ones
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
