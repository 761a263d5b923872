"""FGD's policy and ours, each a score per node and a GPU for a share.

A policy is one function of the nodes on which a pod can run. Scores are compared as they are given,
whole numbers where the published simulator has whole numbers: what they tie decides much.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.fragmentation import Typical
from benchmarks.papers.model import MOST_GPUS, WHOLE, Floats, Ints, Nodes, PodKind


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


def worth(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """The formula of :mod:`topology.core.scoring`: where the worth for the usual pods falls
    least."""
    return _descend(nodes, pod, typical.worth, lambda gained: np.floor(WORTH_PART * gained / STEP))


# Worth counts every pod that could come, fragmentation one: so it is some ten times as large.
WORTH_PART = 0.1
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
        after = value(cpu, _after_whole(nodes.gpu, pod.gpus), nodes.model)
        return Answer(score(after - before), np.zeros(n, dtype=np.int64))
    rows, columns = np.nonzero(nodes.gpu >= pod.milli)
    gpu = nodes.gpu[rows]
    gpu[np.arange(len(rows)), columns] -= pod.milli
    after = value(cpu[rows], gpu, nodes.model[rows])
    scores = np.full((n, MOST_GPUS), -np.inf)
    scores[rows, columns] = score(after - before[rows])
    return Answer(scores.max(axis=1), scores.argmax(axis=1))


def _after_whole(gpu: Ints, count: int) -> Ints:
    """The GPUs after the first so many free ones have been taken."""
    free = gpu == WHOLE
    taken = free & (np.cumsum(free, axis=1) <= count)
    return np.where(taken, 0, gpu)


POLICIES: dict[str, Policy] = {"FGD": fgd, "Worth": worth}
