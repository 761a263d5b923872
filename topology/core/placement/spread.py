"""Pods whose GPUs lie further apart than their machine requires."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from topology.core.admission import device_manager_of
from topology.core.devices import GpuResource, Mask, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.placement.constraints import satisfies
from topology.core.placement.rejections import hardware_rejection
from topology.core.report import Allocation
from topology.core.requests import Constraints, gpu_request

WANTED = {"nvlink": Constraints(link=LinkKind.NVLINK), "numa": Constraints(same_numa=True)}
"""What a pod may lack: NVLinks between all its GPUs, or one NUMA node."""


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
    held = defaultdict[PodUid, Mask](int)
    for allocation in allocations:
        for device in allocation.device_ids:  # shares and MIG instances have other ids
            held[allocation.pod_uid] |= position.get(device, 0)
    whole = device_manager_of(topology, GpuResource())
    for uid, gpus in held.items():
        if uid and gpus.bit_count() > 1:
            yield (
                uid,
                gpus,
                tuple(
                    name
                    for name, wanted in WANTED.items()
                    if hardware_rejection(whole, gpu_request(gpus.bit_count(), wanted)) is None
                    and not satisfies(whole.shape, wanted, gpus)
                ),
            )


def lacking(topology: NodeTopology | None, allocations: Iterable[Allocation]) -> Counter[str]:
    """Return how many pods lack each of :data:`WANTED`."""
    pods = spread_pods(topology, allocations) if topology is not None else ()
    found = Counter(dict.fromkeys(WANTED, 0))
    found.update(word for *_, lacks in pods for word in lacks)
    return found
