"""Pods whose GPUs lie further apart than their machine requires."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from topology.core.admission import DeviceManager, device_manager_of
from topology.core.devices import GpuResource, Mask, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.placement.constraints import satisfies
from topology.core.placement.rejections import hardware_rejection
from topology.core.report import Allocation
from topology.core.requests import Constraints, gpu_request

NVLINKED = Constraints(link=LinkKind.NVLINK)
ONE_NUMA_NODE = Constraints(same_numa=True)


class SeveralGpus(NamedTuple):
    """A pod that holds several whole GPUs.

    It lacks something only if as many GPUs of the empty machine could have it.
    """

    uid: PodUid
    gpus: Mask
    unlinked: bool  # two of its GPUs have no NVLink
    over_numa_nodes: bool  # its GPUs are on several NUMA nodes


def pods_with_several(
    topology: NodeTopology, allocations: Iterable[Allocation]
) -> list[SeveralGpus]:
    """Return the pods that hold several whole GPUs of a node, and what each lacks.

    >>> from topology.core.devices import DeviceId
    >>> from topology.machines import machine
    >>> dgx1 = machine("dgx1-v100").topology("n")
    >>> def held(*gpus):
    ...     ids = tuple(DeviceId(dgx1.gpus[p].uuid) for p in gpus)
    ...     return Allocation(PodUid("u"), "ns", "pod", "main", "nvidia.com/gpu", ids)
    >>> [pods_with_several(dgx1, [held(*gpus)])[0][2:] for gpus in ((0, 4), (0, 5), range(8))]
    [(False, True), (True, True), (False, False)]
    """
    position = {str(gpu.uuid): 1 << p for p, gpu in enumerate(topology.gpus)}
    held: defaultdict[PodUid, Mask] = defaultdict(int)
    for allocation in allocations:
        for device in allocation.device_ids:  # shares and MIG instances have other ids
            held[allocation.pod_uid] |= position.get(device, 0)
    whole = device_manager_of(topology, GpuResource())
    return [
        SeveralGpus(uid, gpus, _lacks(whole, gpus, NVLINKED), _lacks(whole, gpus, ONE_NUMA_NODE))
        for uid, gpus in held.items()
        if uid and gpus.bit_count() > 1
    ]


def lacking(topology: NodeTopology | None, allocations: Iterable[Allocation]) -> Counter[str]:
    """Return how many pods lack NVLinks (``nvlink``) and how many one NUMA node (``numa``)."""
    pods = pods_with_several(topology, allocations) if topology is not None else []
    unlinked = sum(pod.unlinked for pod in pods)
    return Counter(nvlink=unlinked, numa=sum(pod.over_numa_nodes for pod in pods))


def _lacks(kubelet: DeviceManager, gpus: Mask, wanted: Constraints) -> bool:
    possible = hardware_rejection(kubelet, gpu_request(gpus.bit_count(), wanted)) is None
    return possible and not satisfies(kubelet.shape, wanted, gpus)
