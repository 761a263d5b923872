"""The policies of FGD's paper and ours, each a score per node and a GPU for a share.

A policy is one function of the nodes on which a pod can run. Scores are compared as they are given,
whole numbers where the published simulator has whole numbers: what they tie decides much. To add a
policy, write such a function and name it in :data:`POLICIES`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.fragmentation import Typical
from benchmarks.papers.model import MOST_GPUS, WHOLE, Floats, Ints, Nodes, PodKind, best_fit

LARGEST_CPU = 128_000
LARGEST_GPU = MOST_GPUS * WHOLE  # what the papers normalise by: the largest node


@dataclass(frozen=True, slots=True)
class Answer:
    """A score per node, and the column of the GPU that a share would take."""

    scores: Floats
    gpu: Ints


Policy = Callable[[Nodes, PodKind, Typical], Answer]  # Asked of nodes on which the pod can run


def random_(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Any node, any GPU: the simulation draws anew among them for each pod."""
    return Answer(np.zeros(len(nodes)), np.full(len(nodes), -1, dtype=np.int64))


def dot_product(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """The node whose free resources point least into the pod's direction."""
    cpu = nodes.cpu / LARGEST_CPU * (pod.cpu / LARGEST_CPU)
    gpu = nodes.free_gpu / LARGEST_GPU * (pod.gpu_milli / LARGEST_GPU)
    return Answer(np.floor(100 * (1 - (cpu + gpu) / 2)), best_fit(nodes, pod))


def best_fit_node(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """The node with the least left over."""
    cpu = (nodes.cpu - pod.cpu) / LARGEST_CPU
    gpu = (nodes.free_gpu - pod.gpu_milli) / LARGEST_GPU
    return Answer(100 * (1 - (cpu + gpu) / 2), best_fit(nodes, pod))


def packing(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """GPUs in use first, then free ones of nodes in use, then empty nodes."""
    gpu = best_fit(nodes, pod)
    if not pod.gpus:
        return Answer(np.zeros(len(nodes)), gpu)
    free = nodes.gpu[np.arange(len(nodes)), gpu]
    shared = 100 - free * 100 // WHOLE // 10
    opened = np.full(len(nodes), 50 - pod.gpus)
    scores = np.where(pod.is_share & (free < WHOLE), shared, opened)
    empty = np.maximum(33 - nodes.count, nodes.count)
    return Answer(np.where(nodes.unused, empty, scores).astype(float), gpu)


def clustering(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Beside pods of its own class: alone with them, among others, on an empty node, elsewhere."""
    gpu = best_fit(nodes, pod)
    if not pod.gpus:
        return Answer(np.zeros(len(nodes)), gpu)
    own, kinds = nodes.classes[:, pod.class_], nodes.classes.sum(axis=1)
    band = np.select([own & (kinds == 1), own, kinds == 0], [75, 50, 25], 0)
    full = 25 * (LARGEST_GPU - nodes.free_gpu) // LARGEST_GPU
    return Answer((band + full).astype(float), gpu)


def fgd(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Fragmentation gradient descent: where the fragmentation grows least, over every GPU."""

    def idle(cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        return -typical.fragmentation(cpu, gpu, model)

    return _descend(nodes, pod, idle, lambda gained: np.floor(100 / (1 + np.exp(-gained / 1000))))


def damage(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """Ours: where the worth for the usual pods falls least and nothing is left useless."""

    def value(cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        worth = typical.worth(cpu, gpu, model)
        return WORTH_PART * worth - (1 - WORTH_PART) * typical.fragmentation(cpu, gpu, model)

    return _descend(nodes, pod, value, lambda gained: np.floor(gained / STEP))


def worth(nodes: Nodes, pod: PodKind, typical: Typical) -> Answer:
    """The formula of :mod:`topology.core.scoring` alone: :func:`damage` without fragmentation."""
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


POLICIES: dict[str, Policy] = {
    "Random": random_,
    "DotProd": dot_product,
    "GpuClustering": clustering,
    "GpuPacking": packing,
    "BestFit": best_fit_node,
    "FGD": fgd,
    "Worth": worth,
    "Damage": damage,
}
