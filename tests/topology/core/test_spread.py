"""Which pods have GPUs that lie too far apart, beside the constraints that pods may require."""

from itertools import combinations

import pytest

from topology.core.admission import device_manager_of
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind
from topology.core.placement import satisfies
from topology.core.placement.rejections import hardware_rejection
from topology.core.report import Allocation
from topology.core.requests import Constraints, gpu_request
from topology.core.spread import spread_pods
from topology.machines import MACHINES, machine

WANTED = {"nvlink": Constraints(link=LinkKind.NVLINK), "numa": Constraints(same_numa=True)}


def lacks(node: NodeTopology, gpus: tuple[int, ...]) -> tuple[str, ...]:
    ids = tuple(DeviceId(node.gpus[gpu].uuid) for gpu in gpus)
    held = Allocation(PodUid("u"), "ns", "pod", "main", "nvidia.com/gpu", ids)
    return next(spread_pods(node, [held]))[2]


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_pod_lacks_what_the_machine_could_give_as_a_constraint(name: str) -> None:
    node = machine(name).topology(NodeName("n"))
    manager = device_manager_of(node, GpuResource())
    for size in range(2, len(node.gpus) + 1):
        possible = [
            word
            for word, wanted in WANTED.items()
            if hardware_rejection(manager, gpu_request(size, wanted)) is None
        ]
        for gpus in list(combinations(range(len(node.gpus)), size))[:200]:
            mask = sum(1 << gpu for gpu in gpus)
            missing = tuple(w for w in possible if not satisfies(node.shape, WANTED[w], mask))
            assert lacks(node, gpus) == missing, gpus
