"""A record of the agent's hardware, of slices and claims; and what contradicts itself."""

from dataclasses import replace

import pytest

from tests.nodes import bridged
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.dra import Claimed, DraError, Published, first_published, served
from topology.core.report import Allocation, Report

GPU = "nvidia.com/gpu"
BARE = replace(bridged(), resources=())


def device(index: int, *, tainted: bool = False) -> Published:
    return Published("pool", f"gpu-{index}", f"GPU-{index}", tainted=tainted)


def test_slices_and_claims_are_resources_and_allocations() -> None:
    plugins = Allocation(PodUid("a"), "n", "a", "main", "gpu.nvidia.com", ())
    report = Report("boot", 7, allocations=(plugins,))
    published = [device(3), device(1), device(0, tainted=True)]
    claimed = [
        Claimed("pool", "gpu-1", PodUid("a"), "n", "a"),
        Claimed("pool", "gpu-3", PodUid("a"), "n", "a"),
        Claimed("pool", "mig-0", PodUid("b"), "n", "b"),
        Claimed("nics", "gone", PodUid("b"), "n", "b"),
    ]
    others = [Published("pool", "mig-0", "MIG-0")]
    topology, found = served(BARE, report, GPU, published, claimed, others)
    assert [each.name for each in topology.resources] == [GPU]
    assert topology.allocator.published == (3, 1, 0)
    assert found.allocatable == frozenset(map(DeviceId, ("GPU-3", "GPU-1")))
    ids = (DeviceId("GPU-1"), DeviceId("GPU-3"))
    assert found.allocations == (Allocation(PodUid("a"), "n", "a", "", GPU, ids),)
    assert (found.boot_id, found.sequence) == ("boot", 7)
    again = codec.decode(codec.encode(topology, found))
    assert (again.topology, again.report) == (topology, found)


def test_a_device_is_known_by_its_pci_address_too() -> None:
    gpus = tuple(replace(gpu, pci_bus_id=f"0000:0{gpu.index}:00.0") for gpu in BARE.gpus)
    node = replace(BARE, gpus=gpus)
    published = [Published("pool", "x", pci_bus_id="00000000:02:00.0")]
    assert served(node, Report(), GPU, published, ())[0].allocator.published == (2,)


def test_a_part_is_no_gpu_though_it_has_the_pci_address_of_one() -> None:
    """A MIG instance has that of its GPU, and a GPU that was exchanged that of the former one."""
    gpus = tuple(replace(gpu, pci_bus_id=f"0000:0{gpu.index}:00.0") for gpu in BARE.gpus)
    part = Published("pool", "x", "MIG-0", "0000:02:00.0")
    with pytest.raises(DraError, match="device x of a ResourceSlice is not among the GPUs of"):
        served(replace(BARE, gpus=gpus), Report(), GPU, [part], ())


@pytest.mark.parametrize(
    ("published", "message"),
    [
        (
            [Published("pool", "gpu-9", "GPU-9")],
            "device gpu-9 of a ResourceSlice is not among the GPUs of",
        ),
        (
            [device(1), Published("other", "gpu-1", "GPU-1")],
            "two devices .* name the same GPU GPU-1",
        ),
        (
            [device(1), Published("pool", "gpu-1", "GPU-2")],
            "two devices .* name the same GPU GPU-2",
        ),
    ],
)
def test_what_contradicts_the_record_is_an_error(published: list[Published], message: str) -> None:
    with pytest.raises(DraError, match=message):
        served(BARE, Report(), GPU, published, ())


def test_a_published_gpu_that_a_plugin_gave_to_a_pod_is_named() -> None:
    """kube-scheduler does not know of it, and would give the GPU away once more."""
    left = Allocation(PodUid("a"), "team", "old", "main", GPU, (DeviceId("GPU-1"),))
    report = Report("boot", 7, allocations=(left,))
    with pytest.raises(
        DraError, match="publishes GPU GPU-1, but a pod holds it through a device plugin"
    ):
        served(BARE, report, GPU, [device(1)], ())
    served(BARE, report, GPU, [device(2)], ())


def test_the_devices_of_a_claim_come_first() -> None:
    topology, _ = served(BARE, Report(), GPU, [device(i) for i in range(4)], ())
    assert first_published(
        topology, [DeviceId("GPU-3"), DeviceId("GPU-0")]
    ).allocator.published == (3, 0, 1, 2)
