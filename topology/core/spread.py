"""Pods whose GPUs lie further apart than their machine requires.

The agent counts them, too, so this module uses only what the agent's image has.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from topology.core.devices import Mask, PodUid, positions
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.memo import memoized
from topology.core.report import Allocation
from topology.core.shape import Shape, numa_nodes

LACKS = ("nvlink", "numa")  # NVLinks between all its GPUs, or one NUMA node
CLIQUE_STEPS = 20_000  # of a search for linked GPUs; after it a pod of this size lacks no NVLinks


def spread_pods(
    topology: NodeTopology, allocations: Iterable[Allocation]
) -> Iterator[tuple[PodUid, Mask, tuple[str, ...]]]:
    """Yield each pod that holds several whole GPUs: its UID, its GPUs, and what it lacks.

    It lacks something only if as many GPUs of the empty machine could have it.

    >>> from topology.core.devices import DeviceId
    >>> from topology.machines import machine
    >>> dgx1 = machine("dgx1-v100").topology("n")
    >>> def held(*gpus):
    ...     ids = tuple(DeviceId(dgx1.gpus[p].uuid) for p in gpus)
    ...     return Allocation(PodUid("u"), "ns", "pod", "main", "nvidia.com/gpu", ids)
    >>> [next(spread_pods(dgx1, [held(*gpus)]))[2] for gpus in ((0, 4), (0, 5), range(8))]
    [('numa',), ('nvlink', 'numa'), ()]
    """
    position = {str(gpu.uuid): 1 << p for p, gpu in enumerate(topology.gpus)}
    pods = defaultdict[PodUid, Mask](int)
    for allocation in allocations:
        for device in allocation.device_ids:  # shares and MIG instances have other ids
            pods[allocation.pod_uid] |= position.get(device, 0)
    for uid, gpus in pods.items():
        if uid and gpus.bit_count() > 1:
            could = _possible(topology.shape, gpus.bit_count())
            both = zip(LACKS, could, _has(topology.shape, gpus), strict=True)
            yield uid, gpus, tuple(word for word, could, has in both if could and not has)


def lacking(topology: NodeTopology | None, allocations: Iterable[Allocation]) -> Counter[str]:
    """Return how many pods lack each of :data:`LACKS`."""
    pods = spread_pods(topology, allocations) if topology is not None else ()
    found = Counter(dict.fromkeys(LACKS, 0))
    found.update(word for *_, lacks in pods for word in lacks)
    return found


def _rows(shape: Shape) -> tuple[Mask, ...]:
    """Return for each GPU the GPUs that it has NVLinks to."""
    return shape.rows(frozenset(k for k in shape.distinct_links if k.kind is LinkKind.NVLINK))


def _has(shape: Shape, gpus: Mask) -> tuple[bool, bool]:
    """Check whether all pairs of the GPUs have NVLinks, and whether one NUMA node has them all."""
    rows = _rows(shape)
    linked = all(not gpus & ~(rows[p] | 1 << p) for p in positions(gpus))
    return linked, any(not gpus & ~node for node in numa_nodes(shape))


@memoized
def _possible(shape: Shape, count: int) -> tuple[bool, bool]:
    """Check the same for any ``count`` whole GPUs of the machine."""
    whole, rows = shape.all_gpus & ~shape.in_mig_mode, _rows(shape)
    # Depth first: the GPUs that may still join a set of linked GPUs, and how many it still lacks.
    left = [(whole, count)]
    for _ in range(CLIQUE_STEPS):
        if not left or not left[-1][1]:
            break
        candidates, missing = left.pop()
        if candidates.bit_count() >= missing:
            first = candidates & -candidates
            joined = candidates & rows[first.bit_length() - 1]
            left += [(candidates ^ first, missing), (joined, missing - 1)]
    linked = bool(left) and not left[-1][1]
    return linked, any((node & whole).bit_count() >= count for node in numa_nodes(shape))
