"""What NVIDIA's device plugin asks of the fake NVML beyond the agent, through the real pynvml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml import MigInstance
from tests.fakes.nvml.machine import DRIVER
from tests.fakes.nvml.products import compute_capability
from tests.fakes.nvml.testing import handle, playing
from topology.core.devices import MIB
from topology.machines import MACHINES, machine

GIB = 1024 * MIB


def instance(name: str, profile: str, gib: int) -> MigInstance:
    return MigInstance(f"MIG-{name}", profile, gib * GIB)


def mig(index: int) -> list[Any]:
    """NVML's handles of a GPU's MIG devices."""
    found = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(index))):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(index), slot))
        except pynvml.NVMLError_NotFound:
            continue
    return found


def part(device: Any) -> Any:
    """The handle of a MIG device's GPU instance."""
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    return pynvml.nvmlDeviceGetGpuInstanceById(parent, pynvml.nvmlDeviceGetGpuInstanceId(device))


def compute_part(device: Any) -> Any:
    """The handle of its compute instance."""
    number = pynvml.nvmlDeviceGetComputeInstanceId(device)
    return pynvml.nvmlGpuInstanceGetComputeInstanceById(part(device), number)


@pytest.mark.parametrize(
    ("name", "capability"),
    [("dgx1-v100", (7, 0)), ("dgx-a100", (8, 0)), ("dgx-h100", (9, 0)), ("dgx-b200", (10, 0))],
)
def test_the_compute_capability(name: str, capability: tuple[int, int], tmp_path: Path) -> None:
    with playing(tmp_path, machine(name).topology("n")):
        assert pynvml.nvmlDeviceGetCudaComputeCapability(handle(0)) == capability


@pytest.mark.parametrize("name", MACHINES)
def test_the_plugin_learns_the_capability_of_every_machine(name: str) -> None:
    assert all(compute_capability(gpu.product) for gpu in machine(name).topology("n").gpus)


def test_a_mig_device_has_the_capability_of_its_gpu(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        fake.mig(0, [instance("a", "1g.5gb", 5)])
        (device,) = mig(0)
        assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (8, 0)


def test_both_forms_of_the_cuda_version(tmp_path: Path) -> None:
    with playing(tmp_path, machine("t4-1").topology("n")):
        assert pynvml.nvmlSystemGetCudaDriverVersion() == DRIVER[2]
        assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == DRIVER[2]


def test_an_instance_leads_to_its_profile(tmp_path: Path) -> None:
    """The way from a MIG device to the numbers of its profiles that NVIDIA's device plugin goes."""
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        fake.mig(
            0,
            [
                instance("a", "3g.20gb", 20),
                None,
                instance("b", "1g.5gb+me", 5),
                instance("c", "1c.2g.10gb", 10),
            ],
        )
        found = {}
        for device in mig(0):
            gpu_instance = pynvml.nvmlGpuInstanceGetInfo(part(device))
            compute = pynvml.nvmlComputeInstanceGetInfo(compute_part(device))
            assert gpu_instance.id == pynvml.nvmlDeviceGetGpuInstanceId(device)
            assert compute.id == pynvml.nvmlDeviceGetComputeInstanceId(device)
            found[pynvml.nvmlDeviceGetUUID(device)] = (gpu_instance.profileId, compute.profileId)
        assert found == {
            "MIG-a": (
                pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
                pynvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
            ),
            "MIG-b": (
                pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
                pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
            ),
            "MIG-c": (
                pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
                pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
            ),
        }


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("dgx-a100", {0: (1, 7, 5120), 1: (2, 3, 10240), 2: (3, 2, 20480), 3: (4, 1, 20480)}),
        ("a30-4-bridged", {0: (1, 4, 6144), 1: (2, 2, 12288), 3: (4, 1, 24576)}),
    ],
)
def test_the_profiles_that_a_gpu_offers(
    name: str, offered: dict[int, tuple[int, int, int]], tmp_path: Path
) -> None:
    """Slices, how many fit, and memory: the tables of NVIDIA's MIG user guide, media apart."""
    with playing(tmp_path, machine(name).topology("n")) as fake:
        fake.mig(0, [])
        found = {}
        for number in range(4):
            try:
                info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(0), number, version=1)
            except pynvml.NVMLError_NotSupported:
                continue
            found[number] = (info.sliceCount, info.instanceCount, info.memorySizeMB)
            assert info.id == number
        assert {n: (a, b) for n, (a, b, _) in found.items()} == {
            n: (a, b) for n, (a, b, _) in offered.items()
        }
        for number, (_, _, mib) in offered.items():
            assert found[number][2] == pytest.approx(mib, rel=0.01)


def test_the_compute_profiles_of_an_instance(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        fake.mig(0, [instance("a", "3g.20gb", 20)])
        (device,) = mig(0)
        found = {}
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    part(device), number, 0, version=1
                )
            except pynvml.NVMLError_NotSupported:
                continue
            found[number] = (info.id, info.sliceCount, info.instanceCount)
        assert found == {0: (0, 1, 3), 1: (1, 2, 1), 2: (2, 3, 1)}


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda _, p, c: pynvml.nvmlGpuInstanceGetInfo(p), id="GPU instance"),
        pytest.param(lambda _, p, c: pynvml.nvmlComputeInstanceGetInfo(c), id="compute instance"),
        pytest.param(
            lambda _, p, c: pynvml.nvmlGpuInstanceGetComputeInstanceById(p, 0), id="by number"
        ),
        pytest.param(
            lambda _, p, c: pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(p, 0, 0, version=1),
            id="profile",
        ),
    ],
)
def test_handles_of_a_destroyed_instance(
    ask: Callable[[Any, Any, Any], object], tmp_path: Path
) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        fake.mig(0, [instance("a", "1g.5gb", 5)])
        (device,) = mig(0)
        both = part(device), compute_part(device)
        ask(device, *both)
        fake.lose(0)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            ask(device, *both)
        fake.restore(0)
        ask(device, *both)
        fake.mig(0, [])
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            ask(device, *both)


def test_no_instance_of_that_number(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetGpuInstanceById(handle(0), 1)
        fake.mig(0, [instance("a", "1g.5gb", 5)])
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetGpuInstanceById(handle(0), 9)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlGpuInstanceGetComputeInstanceById(part(mig(0)[0]), 9)


def test_a_handle_of_one_kind_is_none_of_the_other(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        fake.mig(0, [instance("a", "1g.5gb", 5)])
        (device,) = mig(0)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpuInstanceGetInfo(compute_part(device))
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlComputeInstanceGetInfo(part(device))


def test_a_call_by_an_instances_handle_fails_on_its_gpu_alone(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-a100").topology("n")) as fake:
        for index in (0, 1):
            fake.mig(index, [instance(f"{index}", "1g.5gb", 5)])
        (here,), (there,) = mig(0), mig(1)
        fake.fail("nvmlGpuInstanceGetInfo", pynvml.NVML_ERROR_UNKNOWN, 0)
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlGpuInstanceGetInfo(part(here))
        assert pynvml.nvmlGpuInstanceGetInfo(part(there)).id == 1
