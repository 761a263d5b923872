"""The fake NVML through the real pynvml: machines read back, faults do as NVML does."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml import (
    CompilerMissing,
    address,
    building,
    fake_nvml,
    library,
    symbols,
)
from tests.fakes.nvml.testing import handle, playing
from tests.nodes import line, pcie
from tests.waiting import FOREVER
from topology.core.graph import NodeTopology
from topology.core.links import Link, LinkKind, Via, nvlink_port
from topology.machines import MACHINES, machine

LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: LinkKind.BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: LinkKind.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: LinkKind.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: LinkKind.PHB,
    pynvml.NVML_TOPOLOGY_NODE: LinkKind.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: LinkKind.SYS,
}


def linked(index: int) -> list[tuple[int, str]]:
    """The remote type and PCI address of every link of a GPU that is up."""
    device, found = handle(index), []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(device, link):
                continue
            kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(device, link)
            found.append((kind, pynvml.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
    return found


# --- Every machine of the catalogue ---------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_reads_back(name: str, tmp_path: Path) -> None:
    topology = machine(name).topology("n")
    with playing(tmp_path, topology):
        assert pynvml.nvmlDeviceGetCount() == len(topology.gpus)
        for gpu in topology.gpus:
            device = handle(gpu.index)
            assert pynvml.nvmlDeviceGetIndex(device) == gpu.index
            assert pynvml.nvmlDeviceGetMinorNumber(device) == gpu.index
            assert pynvml.nvmlDeviceGetUUID(device) == gpu.uuid
            assert pynvml.nvmlDeviceGetName(device) == gpu.product
            assert gpu.pci_bus_id is not None
            pci = pynvml.nvmlDeviceGetPciInfo(device)
            assert pci.busIdLegacy == gpu.pci_bus_id.upper()
            assert pci.busId == f"0000{gpu.pci_bus_id.upper()}"
            assert f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" == gpu.pci_bus_id
            for spelling in (pci.busId, pci.busIdLegacy, gpu.pci_bus_id):
                same = pynvml.nvmlDeviceGetHandleByPciBusId(spelling)
                assert pynvml.nvmlDeviceGetUUID(same) == gpu.uuid
            same = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            assert pynvml.nvmlDeviceGetIndex(same) == gpu.index
            memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
            assert memory.total == gpu.memory == memory.reserved + memory.free + memory.used
            older = pynvml.nvmlDeviceGetMemoryInfo(device)
            assert (older.total, older.free) == (memory.total, memory.free)
            assert older.used == memory.used + memory.reserved
            if gpu.numa_node is None:
                with pytest.raises(pynvml.NVMLError_NotSupported):
                    pynvml.nvmlDeviceGetMemoryAffinity(device, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
            else:
                nodes = pynvml.nvmlDeviceGetMemoryAffinity(device, 1, 0)
                assert list(nodes) == [1 << gpu.numa_node]


@pytest.mark.parametrize("name", MACHINES)
def test_the_joins_of_a_machine_read_back(name: str, tmp_path: Path) -> None:
    topology = machine(name).topology("n")
    with playing(tmp_path, topology):
        remotes = {gpu.index: linked(gpu.index) for gpu in topology.gpus}
        gpus = {pynvml.nvmlDeviceGetPciInfo(handle(gpu.index)).busId for gpu in topology.gpus}
        for link in topology.links:
            a, b = handle(link.a), handle(link.b)
            for one, other in ((a, b), (b, a)):
                level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
                assert LEVELS[level] is link.pcie
                status = pynvml.nvmlDeviceGetP2PStatus(
                    one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                )
                assert (status == pynvml.NVML_P2P_STATUS_OK) == (link.nvlinks > 0)
            for here, there, device in ((link.a, link.b, b), (link.b, link.a, a)):
                direct = (
                    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU,
                    pynvml.nvmlDeviceGetPciInfo(device).busId,
                )
                expected = link.nvlinks if link.via is Via.DIRECT else 0
                assert remotes[here].count(direct) == expected, (here, there)
        for gpu in topology.gpus:
            into = [bus for kind, bus in remotes[gpu.index] if kind == 2]
            attached = [
                k.nvlinks for k in topology.links if k.via is Via.SWITCH and gpu.index in (k.a, k.b)
            ]
            assert len(into) == max(attached, default=0)
            assert not gpus & set(into)


@pytest.mark.parametrize("name", MACHINES)
def test_link_counts_and_versions(name: str, tmp_path: Path) -> None:
    topology = machine(name).topology("n")
    port = nvlink_port(topology.gpus[0].product)
    fields = [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
    with playing(tmp_path, topology):
        count, speed = pynvml.nvmlDeviceGetFieldValues(handle(0), fields)
        if port is None or not port.links:
            assert count.nvmlReturn == speed.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetNvLinkState(handle(0), 0)
            return
        assert count.value.uiVal == port.links
        assert speed.value.uiVal == pytest.approx(port.one_way * 1000, rel=0.07)
        version = pynvml.nvmlDeviceGetNvLinkVersion(handle(0), 0)
        expected = {20: {1}, 25: {2, 4, 6}, 14.0625: {5}, 50: {7}}[port.one_way]
        assert version in expected
        for beyond in (port.links, pynvml.NVML_NVLINK_MAX_LINKS):
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                pynvml.nvmlDeviceGetNvLinkState(handle(0), beyond)


def fabric_of(index: int, make: Callable[[], Any] = pynvml.c_nvmlGpuFabricInfo_v2_t) -> Any:
    info = make()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle(index), ctypes.byref(info))
    return info


@pytest.mark.parametrize(
    "make", [pynvml.c_nvmlGpuFabricInfo_v2_t, pynvml.c_nvmlGpuFabricInfo_v3_t], ids=["v2", "v3"]
)
def test_a_tray_knows_its_fabric(make: Callable[[], Any], tmp_path: Path) -> None:
    topology = machine("gb200-tray").topology("n", group="rack-7")
    assert topology.fabric is not None
    with playing(tmp_path, topology):
        info = fabric_of(3, make)
        older = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle(3), ctypes.byref(older))
        for each in (info, older):
            assert bytes(each.clusterUuid).hex() == topology.fabric.cluster_uuid.replace("-", "")
            assert each.cliqueId == topology.fabric.clique_id
            assert each.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
            assert each.status == pynvml.NVML_SUCCESS
        # The GPU's memory is a NUMA node there, and not the one next to it.
        assert pynvml.nvmlDeviceGetNumaNodeId(handle(3)) != topology.gpus[3].numa_node


def test_a_fabric_that_ends_with_the_node_has_no_cluster(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx-h100").topology("n")):
        info = fabric_of(0)
        assert info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        assert not any(info.clusterUuid)


def test_no_fabric(tmp_path: Path) -> None:
    with playing(tmp_path, machine("h100-pcie-1").topology("n")) as fake:
        assert fabric_of(0).state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
        fake.replace(machine("dgx-a100").topology("n"))
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_NotSupported):
            fabric_of(0)
        wrong = pynvml.c_nvmlGpuFabricInfo_v2_t()
        wrong.version = 1
        fake.replace(machine("dgx-h100").topology("n"))
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
            pynvml.nvmlDeviceGetGpuFabricInfoV(handle(0), ctypes.byref(wrong))


def test_what_a_topology_does_not_say(tmp_path: Path) -> None:
    """A pair of unknown PCIe class has no answer; GPUs without an address get one."""
    gpus = pcie(3).gpus
    with playing(tmp_path, NodeTopology(pcie().name, gpus, (Link(0, 1, LinkKind.PIX),))):
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(1)) == 10
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(2))
        buses = {pynvml.nvmlDeviceGetPciInfo(handle(i)).busIdLegacy for i in range(3)}
        assert buses == {address(gpu) for gpu in gpus}
        assert len(buses) == 3


# --- Beginning and ending -------------------------------------------------------------------------


def test_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_nvml(tmp_path, line())
    with fake.in_process():
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 3
        device = handle(0)
        pynvml.nvmlShutdown()
        for call in (pynvml.nvmlDeviceGetCount, lambda: pynvml.nvmlDeviceGetUUID(device)):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                call()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    assert "FAKE_NVML" not in os.environ
    # glibc knows the name by now, but it is no library that anybody could use.
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    with pytest.raises(pynvml.NVMLError_LibraryNotFound):
        pynvml.nvmlInit()


def test_one_machine_after_the_other(tmp_path: Path) -> None:
    for name in ("dgx1-v100", "l40s-4", "dgx1-v100"):
        folder = tmp_path / f"{name}-{time.monotonic_ns()}"
        folder.mkdir()
        with playing(folder, machine(name).topology("n")):
            assert pynvml.nvmlDeviceGetCount() == machine(name).size


def test_one_machine_at_a_time(tmp_path: Path) -> None:
    with (
        playing(tmp_path, line()) as fake,
        pytest.raises(RuntimeError, match="already"),
        fake.in_process(),
    ):
        pass


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """Nothing but two environment variables: the loader finds the library by its name."""
    fake = fake_nvml(tmp_path, machine("dgx-a100").topology("n"))
    program = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(7);"
        "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetPciInfo(h).busId,"
        "n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(),"
        "n.nvmlSystemGetCudaDriverVersion_v2(), n.nvmlErrorString(3), sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **fake.environment},
        capture_output=True,
        text=True,
        timeout=FOREVER,
        check=True,
    )
    assert done.stdout.strip() == (
        "8|NVIDIA A100-SXM4-40GB|00000000:BD:00.0|570.124.06|12.570.124.06|12080|Not Supported"
    )
    assert not done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no driver line"),
        ("driver 1 1 1\nwhat 0\n", "line 2: begins with an unknown word"),
        ("driver 1 1 1\nlost 4\n", "line 2: there is no such GPU"),
        ("driver 1 1\n", "line 1: ends too early"),
        ("driver 1 1 1 1\n", "line 1: says too much"),
        ("driver 1 1 -1\n", "line 1: a number is not one"),
        ("driver 1 1 1\ngpu 0 GPU-0 7:0\n", "line 2: a PCI address is not one"),
        (f"driver {'1' * 96} 1 1\n", "line 1: a word is too long"),
        (None, "it cannot be opened"),
    ],
    ids=lambda value: str(value)[:20].replace("\n", "-"),
)
def test_a_description_that_cannot_be_read(
    text: str | None, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = fake_nvml(tmp_path, line())
    file = Path(fake.environment["FAKE_NVML"])
    file.unlink()
    if text is not None:
        file.write_text(text)
    with fake.in_process(), pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()
    assert capfd.readouterr().err.splitlines()[0] == f"fake nvml: {file}: {reason}"


def test_a_description_that_breaks_while_it_is_played(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with playing(tmp_path, line()) as fake:
        device = handle(0)
        Path(fake.environment["FAKE_NVML"]).write_text("nonsense\n")
        for _ in range(3):
            assert pynvml.nvmlDeviceGetUUID(device) == "GPU-0"
        assert len(capfd.readouterr().err.splitlines()) == 1
        fake.lose(0)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetUUID(device)


# --- The library itself ---------------------------------------------------------------------------


def fake_library() -> Path:
    try:
        return library()
    except CompilerMissing as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_nothing_leaks_out_of_the_library() -> None:
    """It exports NVML's names and no others."""
    folder = fake_library()
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(folder / building.SONAME)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {row.split()[-1] for row in done.stdout.splitlines()} == symbols()


def test_the_library_is_built_once() -> None:
    first = fake_library()
    before = (first / building.SONAME).stat().st_ino
    assert library() == first
    assert (first / building.SONAME).stat().st_ino == before
    assert library({"nvmlDeviceGetNumaNodeId"}) != first


def test_builders_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_library()
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: library(), range(3)))
    (folder,) = folders
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing):
        library()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no C compiler"):
        fake_nvml(tmp_path, line())
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no C compiler"):
        fake_nvml(tmp_path, line())


def test_a_missing_symbol(tmp_path: Path) -> None:
    old = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumaNodeId")
    with playing(tmp_path, machine("gb200-tray").topology("n"), without=old):
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetNumaNodeId(handle(0))
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            fabric_of(0)
        pynvml.nvmlDeviceGetGpuFabricInfo(handle(0), ctypes.byref(pynvml.c_nvmlGpuFabricInfo_t()))
    with playing(tmp_path, machine("gb200-tray").topology("n")):
        pynvml.nvmlDeviceGetNumaNodeId(handle(0))


def test_a_symbol_that_was_never_there() -> None:
    with pytest.raises(ValueError, match="no nvmlDeviceGetBrand"):
        library({"nvmlDeviceGetBrand"})
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetBrand(None)
