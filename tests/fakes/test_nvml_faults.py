"""What changes and what breaks while a process looks: the fake NVML's faults and events."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml import RECOVERY_ACTIONS, FakeNvml, MigInstance, fake_nvml, symbols
from tests.fakes.nvml.testing import handle, playing
from tests.nodes import GIB, bridged, line, pcie, switched
from tests.programs import started
from tests.waiting import PATIENCE, eventually
from topology.machines import machine

XID = pynvml.nvmlEventTypeXidCriticalError
RECOVERY = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

# Every function about a device, by the symbol behind it.
CALLS: dict[str, Callable[[Any], Any]] = {
    "nvmlDeviceGetUUID": pynvml.nvmlDeviceGetUUID,
    "nvmlDeviceGetName": pynvml.nvmlDeviceGetName,
    "nvmlDeviceGetIndex": pynvml.nvmlDeviceGetIndex,
    "nvmlDeviceGetMinorNumber": pynvml.nvmlDeviceGetMinorNumber,
    "nvmlDeviceGetMemoryInfo": pynvml.nvmlDeviceGetMemoryInfo,
    "nvmlDeviceGetMemoryInfo_v2": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h, pynvml.nvmlMemory_v2),
    "nvmlDeviceGetPciInfo_v3": pynvml.nvmlDeviceGetPciInfo,
    "nvmlDeviceGetMemoryAffinity": lambda h: pynvml.nvmlDeviceGetMemoryAffinity(h, 1, 0),
    "nvmlDeviceGetNumaNodeId": pynvml.nvmlDeviceGetNumaNodeId,
    "nvmlDeviceGetPersistenceMode": pynvml.nvmlDeviceGetPersistenceMode,
    "nvmlDeviceGetNvLinkState": lambda h: pynvml.nvmlDeviceGetNvLinkState(h, 0),
    "nvmlDeviceGetNvLinkVersion": lambda h: pynvml.nvmlDeviceGetNvLinkVersion(h, 0),
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda h: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(h, 0),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (
        lambda h: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(h, 0)
    ),
    "nvmlDeviceGetTopologyCommonAncestor": (
        lambda h: pynvml.nvmlDeviceGetTopologyCommonAncestor(h, handle(1))
    ),
    "nvmlDeviceGetP2PStatus": lambda h: pynvml.nvmlDeviceGetP2PStatus(h, handle(1), 2),
    "nvmlDeviceGetGpuFabricInfo": (
        lambda h: pynvml.nvmlDeviceGetGpuFabricInfo(h, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_t()))
    ),
    "nvmlDeviceGetGpuFabricInfoV": (
        lambda h: pynvml.nvmlDeviceGetGpuFabricInfoV(
            h, ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v2_t())
        )
    ),
    "nvmlDeviceGetMigMode": pynvml.nvmlDeviceGetMigMode,
    "nvmlDeviceGetMaxMigDeviceCount": pynvml.nvmlDeviceGetMaxMigDeviceCount,
    "nvmlDeviceGetMigDeviceHandleByIndex": (
        lambda h: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
    ),
    "nvmlDeviceIsMigDeviceHandle": pynvml.nvmlDeviceIsMigDeviceHandle,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": (
        pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    ),
    "nvmlDeviceGetGpuInstanceId": pynvml.nvmlDeviceGetGpuInstanceId,
    "nvmlDeviceGetComputeInstanceId": pynvml.nvmlDeviceGetComputeInstanceId,
    "nvmlDeviceGetAttributes_v2": pynvml.nvmlDeviceGetAttributes,
    "nvmlDeviceGetGpuInstanceById": lambda h: pynvml.nvmlDeviceGetGpuInstanceById(h, 1),
    "nvmlDeviceGetGpuInstanceProfileInfo": (
        lambda h: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(h, 0, version=1)
    ),
    "nvmlDeviceGetCudaComputeCapability": pynvml.nvmlDeviceGetCudaComputeCapability,
    "nvmlDeviceGetUtilizationRates": pynvml.nvmlDeviceGetUtilizationRates,
    "nvmlDeviceGetComputeRunningProcesses_v3": pynvml.nvmlDeviceGetComputeRunningProcesses,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    "nvmlDeviceGetTotalEnergyConsumption": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "nvmlDeviceGetTotalEccErrors": lambda h: pynvml.nvmlDeviceGetTotalEccErrors(h, 1, 0),
    "nvmlDeviceGetRetiredPages_v2": lambda h: pynvml.nvmlDeviceGetRetiredPages_v2(h, 1),
    "nvmlDeviceGetRetiredPagesPendingStatus": pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    "nvmlDeviceGetRemappedRows": pynvml.nvmlDeviceGetRemappedRows,
    "nvmlDeviceGetFieldValues": lambda h: pynvml.nvmlDeviceGetFieldValues(h, [RECOVERY]),
    "nvmlDeviceGetSupportedEventTypes": pynvml.nvmlDeviceGetSupportedEventTypes,
    "nvmlDeviceRegisterEvents": (
        lambda h: pynvml.nvmlDeviceRegisterEvents(h, XID, pynvml.nvmlEventSetCreate())
    ),
}
# Every other function, but for those that begin and end, and the texts of errors.
SYSTEM: dict[str, Callable[[], Any]] = {
    "nvmlSystemGetDriverVersion": pynvml.nvmlSystemGetDriverVersion,
    "nvmlSystemGetNVMLVersion": pynvml.nvmlSystemGetNVMLVersion,
    "nvmlSystemGetCudaDriverVersion": pynvml.nvmlSystemGetCudaDriverVersion,
    "nvmlSystemGetCudaDriverVersion_v2": pynvml.nvmlSystemGetCudaDriverVersion_v2,
    "nvmlDeviceGetCount_v2": pynvml.nvmlDeviceGetCount,
    "nvmlDeviceGetHandleByIndex_v2": lambda: handle(0),
    "nvmlDeviceGetHandleByUUID": lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0"),
    "nvmlDeviceGetHandleByPciBusId_v2": lambda: pynvml.nvmlDeviceGetHandleByPciBusId("01:00.0"),
    "nvmlEventSetCreate": pynvml.nvmlEventSetCreate,
    "nvmlEventSetFree": lambda: pynvml.nvmlEventSetFree(pynvml.nvmlEventSetCreate()),
    "nvmlEventSetWait_v2": lambda: pynvml.nvmlEventSetWait(pynvml.nvmlEventSetCreate(), 0),
}

# Functions about a part of a GPU; test_nvml_mig.py asks them.
OF_PARTS = {
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetInfo",
}


def code_of(call: Callable[..., Any], *arguments: Any) -> int:
    """What the library answered the call with."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def again() -> None:
    """Shut down and initialise again: what a process that starts now would see."""
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()


def test_the_tables_are_complete() -> None:
    ends = {"nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}
    assert symbols() == ends | CALLS.keys() | SYSTEM.keys() | OF_PARTS


# --- GPUs that are lost or gone -------------------------------------------------------------------


def test_a_lost_gpu_answers_nothing(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device, other = handle(0), handle(1)
        bus = pynvml.nvmlDeviceGetPciInfo(device).busId
        fake.lose(0)
        for name, call in CALLS.items():
            assert code_of(call, device) == pynvml.NVML_ERROR_GPU_IS_LOST, name
        for find in (
            lambda: handle(0),
            lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0"),
            lambda: pynvml.nvmlDeviceGetHandleByPciBusId(bus),
            lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(other, device),
        ):
            assert code_of(find) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert pynvml.nvmlDeviceGetCount() == 4
        assert pynvml.nvmlDeviceGetUUID(other) == "GPU-1"
        again()
        assert pynvml.nvmlDeviceGetCount() == 4
        assert code_of(handle, 0) == pynvml.NVML_ERROR_GPU_IS_LOST
        fake.restore(0)
        assert pynvml.nvmlDeviceGetUUID(device) == "GPU-0"


def test_a_gpu_that_is_gone_is_missed_at_the_next_init(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(1)
        fake.remove(1)
        assert code_of(pynvml.nvmlDeviceGetUUID, device) == pynvml.NVML_ERROR_GPU_IS_LOST
        assert pynvml.nvmlDeviceGetCount() == 4
        again()
        assert pynvml.nvmlDeviceGetCount() == 3
        uuids = [pynvml.nvmlDeviceGetUUID(handle(i)) for i in range(3)]
        assert uuids == ["GPU-0", "GPU-2", "GPU-3"]
        assert [pynvml.nvmlDeviceGetMinorNumber(handle(i)) for i in range(3)] == [0, 2, 3]
        assert code_of(handle, 3) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert code_of(pynvml.nvmlDeviceGetUUID, device) == (pynvml.NVML_ERROR_INVALID_ARGUMENT)
        fake.restore(1)
        absent = code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-1")
        assert absent == pynvml.NVML_ERROR_NOT_FOUND
        again()
        assert pynvml.nvmlDeviceGetUUID(handle(1)) == "GPU-1"


def test_a_node_comes_back_as_another(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(3)
        fake.fail("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        fake.replace(line())
        assert code_of(pynvml.nvmlDeviceGetUUID, device) == pynvml.NVML_ERROR_GPU_IS_LOST
        again()
        assert pynvml.nvmlDeviceGetCount() == 3
        assert fake.topology == line()


def test_handles_that_are_none(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()):
        for value in (None, 0xDEAD):
            device = ctypes.cast(ctypes.c_void_p(value), pynvml.c_nvmlDevice_t)
            for name, call in CALLS.items():
                found = code_of(call, device)
                assert found == pynvml.NVML_ERROR_INVALID_ARGUMENT, name
        unknown = code_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-9")
        assert unknown == pynvml.NVML_ERROR_NOT_FOUND
        elsewhere = code_of(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:fe:00.0")
        assert elsewhere == pynvml.NVML_ERROR_NOT_FOUND
        nowhere = code_of(pynvml.nvmlDeviceGetHandleByPciBusId, "here")
        assert nowhere == pynvml.NVML_ERROR_INVALID_ARGUMENT


# --- Links ----------------------------------------------------------------------------------------


def test_a_link_goes_down_at_both_ends(tmp_path: Path) -> None:
    def states(index: int) -> list[int]:
        device = handle(index)
        return [pynvml.nvmlDeviceGetNvLinkState(device, link) for link in range(12)]

    def nvlink(a: int, b: int) -> int:
        return int(pynvml.nvmlDeviceGetP2PStatus(handle(a), handle(b), 2))

    with playing(tmp_path, bridged()) as fake:
        assert fake.links(0) == [1, 1, 1, 1] + [None] * 8
        assert states(0) == states(1) == [1] * 4 + [0] * 8
        fake.drop_link(0, 2)
        assert states(0) == states(1) == [1, 1, 0, 1] + [0] * 8
        gone = code_of(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle(1), 2)
        assert gone == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert nvlink(0, 1) == pynvml.NVML_P2P_STATUS_OK
        for link in (0, 1, 3):
            fake.drop_link(1, link)
        assert nvlink(0, 1) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        assert nvlink(2, 3) == pynvml.NVML_P2P_STATUS_OK
        fake.raise_link(0, 3)
        assert states(0) == states(1) == [0, 0, 0, 1] + [0] * 8
        fake.raise_link(0, 7)  # nothing is plugged in there
        assert states(0)[7] == 0
        fake.reset(1)
        assert states(0) == states(1) == [1] * 4 + [0] * 8


def test_a_link_into_a_switch_goes_down_alone(tmp_path: Path) -> None:
    with playing(tmp_path, switched()) as fake:
        fake.drop_link(2, 11)
        assert pynvml.nvmlDeviceGetNvLinkState(handle(2), 11) == 0
        assert pynvml.nvmlDeviceGetNvLinkState(handle(1), 11) == 1
        for link in range(11):
            fake.drop_link(2, link)
        off = pynvml.nvmlDeviceGetP2PStatus(handle(1), handle(2), 2)
        assert off == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED


# --- Functions that misbehave ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, *SYSTEM])
def test_a_function_fails(name: str, tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(0)
        call = SYSTEM.get(name) or (lambda: CALLS[name](device))
        usual = code_of(call)
        fake.fail(name, pynvml.NVML_ERROR_NO_PERMISSION)
        assert code_of(call) == pynvml.NVML_ERROR_NO_PERMISSION
        fake.fail(name, pynvml.NVML_ERROR_UNKNOWN)
        assert code_of(call) == pynvml.NVML_ERROR_UNKNOWN
        fake.lift(name)
        assert code_of(call) == usual


def test_a_function_fails_on_one_gpu(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        fake.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_UNKNOWN, 2)
        for version in (None, pynvml.nvmlMemory_v2):
            found = [code_of(pynvml.nvmlDeviceGetMemoryInfo, handle(i), version) for i in range(4)]
            assert found == [0, 0, pynvml.NVML_ERROR_UNKNOWN, 0]
        fake.lift(index=2)
        pynvml.nvmlDeviceGetMemoryInfo(handle(2))


def test_a_function_that_it_never_had(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, line())
    with pytest.raises(ValueError, match="no nvmlDeviceGetBrand"):
        fake.hang("nvmlDeviceGetBrand")


def test_init_fails(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, line())
    with fake.in_process():
        fake.fail("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        fake.lift()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 3


def under_way(pool: ThreadPoolExecutor, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """The call in a thread of its own, given the time to do what it can."""
    future = pool.submit(call, *arguments)
    time.sleep(0.3)
    return future


def test_a_function_hangs(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake, ThreadPoolExecutor(2) as pool:
        device = handle(1)
        fake.hang("nvmlDeviceGetUUID", 1)
        stuck = under_way(pool, pynvml.nvmlDeviceGetUUID, device)
        assert not stuck.done()
        # Neither the same function on another GPU nor another function waits for it.
        assert pynvml.nvmlDeviceGetUUID(handle(0)) == "GPU-0"
        assert pynvml.nvmlDeviceGetName(device)
        fake.used(1, GIB)
        assert not stuck.done()
        fake.lift("nvmlDeviceGetUUID")
        assert stuck.result(PATIENCE) == "GPU-1"


def test_a_hanging_call_of_a_gpu_that_is_lost_meanwhile(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake, ThreadPoolExecutor(2) as pool:
        device = handle(1)
        fake.hang("nvmlDeviceGetUUID")
        stuck = under_way(pool, code_of, pynvml.nvmlDeviceGetUUID, device)
        fake.lose(1)
        assert not stuck.done()
        fake.lift()
        assert stuck.result(PATIENCE) == pynvml.NVML_ERROR_GPU_IS_LOST


def test_init_hangs_and_the_end_lets_go(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, line())
    with ThreadPoolExecutor(1) as pool:
        with fake.in_process():
            fake.hang("nvmlInit")
            stuck = under_way(pool, code_of, pynvml.nvmlInit)
            assert not stuck.done()
        ended = (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        assert stuck.result(PATIENCE) in ended
    with fake.in_process(), pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


# --- Events ---------------------------------------------------------------------------------------


def registered(*indices: int) -> Any:
    events = pynvml.nvmlEventSetCreate()
    for index in indices:
        pynvml.nvmlDeviceRegisterEvents(handle(index), XID, events)
    return events


def drained(events: Any) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while True:
        try:
            data = pynvml.nvmlEventSetWait(events, 0)
        except pynvml.NVMLError_Timeout:
            return found
        assert data.eventType == XID
        assert data.gpuInstanceId == data.computeInstanceId == 0xFFFFFFFF
        found.append((pynvml.nvmlDeviceGetUUID(data.device), data.eventData))


def test_events_come_once_to_every_set_that_asked_before(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        both, one, nothing = registered(0, 1), registered(1), pynvml.nvmlEventSetCreate()
        fake.xid(0, 31)
        late = registered(0)
        fake.xid(1, 63)
        fake.xid(0, 94)
        assert drained(both) == [("GPU-0", 31), ("GPU-1", 63), ("GPU-0", 94)]
        assert drained(one) == [("GPU-1", 63)]
        assert drained(late) == [("GPU-0", 94)]
        assert drained(nothing) == []
        assert drained(both) == drained(one) == drained(late) == []
        pynvml.nvmlDeviceRegisterEvents(handle(0), XID, one)
        assert drained(one) == []
        fake.xid(0, 13)
        assert drained(one) == drained(both) == [("GPU-0", 13)]


def test_an_event_wakes_who_waits(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake, ThreadPoolExecutor(1) as pool:
        events = registered(0, 1, 2, 3)
        waiting = under_way(pool, pynvml.nvmlEventSetWait, events, 600_000)
        assert not waiting.done()
        fake.xid(3, 79)
        data = waiting.result(PATIENCE)
        assert (pynvml.nvmlDeviceGetIndex(data.device), data.eventData) == (3, 79)


def test_a_wait_ends(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()):
        before = time.monotonic()
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait(registered(0), 200)
        assert time.monotonic() - before >= 0.2


def test_the_last_words_of_a_gpu_that_falls_off_the_bus(tmp_path: Path) -> None:
    """Its Xid is delivered, although nothing else about it can be asked; then the wait fails."""
    with playing(tmp_path, bridged()) as fake:
        events, others = registered(0, 1), registered(2)
        device = handle(1)
        fake.lose(1)
        fake.xid(1, 79)
        data = pynvml.nvmlEventSetWait(events, 0)
        assert data.eventData == 79
        assert ctypes.addressof(data.device.contents) == ctypes.addressof(device.contents)
        for _ in range(2):
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                pynvml.nvmlEventSetWait(events, 600_000)
        assert drained(others) == []
        fake.restore(1)
        assert drained(events) == []


def test_event_sets_that_are_none(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()):
        events = registered(0)
        pynvml.nvmlEventSetFree(events)
        for call in (
            lambda: pynvml.nvmlEventSetWait(events, 0),
            lambda: pynvml.nvmlEventSetFree(events),
            lambda: pynvml.nvmlDeviceRegisterEvents(handle(0), XID, events),
        ):
            assert code_of(call) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        strange = pynvml.nvmlEventTypeClock
        unsupported = code_of(
            lambda: pynvml.nvmlDeviceRegisterEvents(handle(0), strange, pynvml.nvmlEventSetCreate())
        )
        assert unsupported == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetSupportedEventTypes(handle(0)) & XID


def test_a_set_is_freed_or_nvml_shut_down_under_who_waits(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()), ThreadPoolExecutor(2) as pool:
        for end, expected in (
            (pynvml.nvmlEventSetFree, pynvml.NVML_ERROR_INVALID_ARGUMENT),
            (lambda _: pynvml.nvmlShutdown(), pynvml.NVML_ERROR_UNINITIALIZED),
        ):
            events = registered(0)
            waiting = under_way(pool, code_of, pynvml.nvmlEventSetWait, events, 600_000)
            assert not waiting.done()
            end(events)
            assert waiting.result(PATIENCE) == expected


# --- What is measured -----------------------------------------------------------------------------


def test_load(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(0)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
        fake.used(0, 3 * GIB)
        fake.utilisation(0, 87)
        fake.processes(0, [(100, GIB), (200, 2 * GIB)])
        assert pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2).used == 3 * GIB
        assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 87
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        assert [(each.pid, each.usedGpuMemory) for each in found] == [(100, GIB), (200, 2 * GIB)]
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(device) == []
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(1)) == []
        with pytest.raises(ValueError, match="GPU 0 has no"):
            fake.used(0, fake.topology.gpus[0].memory)


def test_health(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(1)
        fake.ecc(1, 7)
        fake.remapped(1, pending=True, failure=False)
        for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC):
            kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
            assert pynvml.nvmlDeviceGetTotalEccErrors(device, kind, counter) == 7
        corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        assert pynvml.nvmlDeviceGetTotalEccErrors(device, corrected, 0) == 0
        assert pynvml.nvmlDeviceGetRemappedRows(device) == (0, 0, 1, 0)
        fake.remapped(1, pending=False, failure=True)
        assert pynvml.nvmlDeviceGetRemappedRows(device) == (0, 0, 0, 1)
        assert pynvml.nvmlDeviceGetRemappedRows(handle(0)) == (0, 0, 0, 0)
        pages = code_of(pynvml.nvmlDeviceGetRetiredPages_v2, device, 1)
        assert pages == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_retired_pages(tmp_path: Path) -> None:
    with playing(tmp_path, machine("dgx1-v100").topology("n")) as fake:
        device = handle(0)
        assert pynvml.nvmlDeviceGetRetiredPages_v2(device, 1) == []
        assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(device) == 0
        fake.remapped(0, pending=True, failure=False)
        assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(device) == 1
        assert code_of(pynvml.nvmlDeviceGetRemappedRows, device) == (
            pynvml.NVML_ERROR_NOT_SUPPORTED
        )
        file = Path(fake.environment["FAKE_NVML"])
        file.write_text(file.read_text().replace("pages 0 1\n", "pages 0 0 0x1000:5 8192:6\n"))
        assert pynvml.nvmlDeviceGetRetiredPages_v2(device, 1) == [
            {"address": 4096, "timestamp": 5},
            {"address": 8192, "timestamp": 6},
        ]
        assert pynvml.nvmlDeviceGetRetiredPages_v2(device, 0) == []


def test_a_gaming_card_reports_no_health(tmp_path: Path) -> None:
    with playing(tmp_path, machine("rtx3090-2-bridged").topology("n")):
        for name in (
            "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetRetiredPages_v2",
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetMigMode",
        ):
            found = code_of(CALLS[name], handle(0))
            assert found == pynvml.NVML_ERROR_NOT_SUPPORTED, name
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(0)) == 0


def test_recovery_actions(tmp_path: Path) -> None:
    with playing(tmp_path, pcie()) as fake:
        fields = [RECOVERY, 1, pynvml.NVML_FI_MAX]
        for word, number in RECOVERY_ACTIONS.items():
            fake.recovery_action(3, word)
            known, other, strange = pynvml.nvmlDeviceGetFieldValues(handle(3), fields)
            assert (known.nvmlReturn, known.value.uiVal) == (pynvml.NVML_SUCCESS, number)
            assert known.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            assert known.timestamp > 0
            assert other.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
            assert strange.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT
        with pytest.raises(KeyError):
            fake.recovery_action(3, "pray")


def test_energy_goes_up_until_a_reset(tmp_path: Path) -> None:
    def shown() -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0)))

    with playing(tmp_path, pcie()) as fake:
        fake.energy(0, 10**12)
        first = shown()
        assert first >= 10**12
        eventually(lambda: shown() > first)
        assert shown() < 10**12 + 3600 * 70_000
        fake.reset(0)
        assert shown() < 3600 * 70_000
    with playing(tmp_path, machine("dgx1-p100").topology("n")):
        assert code_of(shown) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_reset_takes_the_faults_of_its_gpu_away(tmp_path: Path) -> None:
    with playing(tmp_path, bridged()) as fake:
        device = handle(0)
        for index in (0, 1):
            fake.ecc(index, 3)
            fake.remapped(index, pending=True, failure=False)
            fake.recovery_action(index, "gpu-reset")
            fake.fail("nvmlDeviceGetName", pynvml.NVML_ERROR_UNKNOWN, index)
        fake.fail("nvmlDeviceGetCount", pynvml.NVML_ERROR_UNKNOWN)
        fake.lose(0)
        fake.reset(0)
        assert pynvml.nvmlDeviceGetTotalEccErrors(device, 1, 0) == 0
        assert pynvml.nvmlDeviceGetRemappedRows(device) == (0, 0, 0, 0)
        assert pynvml.nvmlDeviceGetFieldValues(device, [RECOVERY])[0].value.uiVal == 0
        assert code_of(pynvml.nvmlDeviceGetName, device) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetTotalEccErrors(handle(1), 1, 0) == 3
        assert code_of(pynvml.nvmlDeviceGetName, handle(1)) == pynvml.NVML_ERROR_UNKNOWN
        assert code_of(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNKNOWN


# --- MIG ------------------------------------------------------------------------------------------

INSTANCES = (
    MigInstance("MIG-a", "3g.20gb", 20 * GIB),
    None,
    MigInstance("MIG-c", "1c.2g.10gb", 10 * GIB),
)


def test_mig_instances(tmp_path: Path) -> None:
    with playing(tmp_path, switched()) as fake:
        device = handle(0)
        assert pynvml.nvmlDeviceGetMigMode(device) == [0, 0]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 0
        none = code_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, 0)
        assert none == pynvml.NVML_ERROR_NOT_FOUND
        assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 0

        fake.mig(0, INSTANCES)
        assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 7
        for gap in (1, 3, 6):
            with pytest.raises(pynvml.NVMLError_NotFound):
                pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, gap)
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 2)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(mig).value == 1
        assert pynvml.nvmlDeviceGetUUID(mig) == "MIG-c"
        assert pynvml.nvmlDeviceGetIndex(mig) == 2
        assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA A100-SXM4-40GB MIG 1c.2g.10gb"
        assert pynvml.nvmlDeviceGetMemoryInfo(mig).total == 10 * GIB
        attributes = pynvml.nvmlDeviceGetAttributes(mig)
        assert attributes.memorySizeMB == 10 * 1024
        assert attributes.gpuInstanceSliceCount == 2
        assert attributes.computeInstanceSliceCount == 1
        assert attributes.multiprocessorCount == 14
        assert pynvml.nvmlDeviceGetGpuInstanceId(mig) == 3
        assert pynvml.nvmlDeviceGetComputeInstanceId(mig) == 0
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        assert pynvml.nvmlDeviceGetUUID(parent) == "GPU-0"
        again_mig = pynvml.nvmlDeviceGetHandleByUUID("MIG-c")
        assert pynvml.nvmlDeviceGetIndex(again_mig) == 2
        whole_only = code_of(pynvml.nvmlDeviceGetPciInfo, mig)
        assert whole_only == pynvml.NVML_ERROR_INVALID_ARGUMENT

        fake.lose(0)
        assert code_of(pynvml.nvmlDeviceGetUUID, mig) == pynvml.NVML_ERROR_GPU_IS_LOST
        fake.restore(0)
        fake.mig(0, None)
        assert code_of(pynvml.nvmlDeviceGetUUID, mig) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID("MIG-c")


def test_mig_takes_nvlink_and_utilisation_away(tmp_path: Path) -> None:
    with playing(tmp_path, switched()) as fake:
        fake.mig(0, ())
        device = handle(0)
        for name in (
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetNvLinkVersion",
            "nvmlDeviceGetNvLinkRemotePciInfo_v2",
            "nvmlDeviceGetNvLinkRemoteDeviceType",
            "nvmlDeviceGetUtilizationRates",
        ):
            found = code_of(CALLS[name], device)
            assert found == pynvml.NVML_ERROR_NOT_SUPPORTED, name
        status = pynvml.nvmlDeviceGetP2PStatus(handle(1), device, 2)
        assert status == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        count = pynvml.nvmlDeviceGetFieldValues(device, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0]
        assert count.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetNvLinkState(handle(1), 0) == 1


def test_mig_where_there_is_none(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, pcie())
    with pytest.raises(ValueError, match="can have 0 MIG instances"):
        fake.mig(0, INSTANCES)
    with pytest.raises(ValueError, match="no MIG profile"):
        MigInstance("MIG-a", "half", GIB)


# --- Many at a time -------------------------------------------------------------------------------


def test_readers_while_the_description_is_rewritten(tmp_path: Path) -> None:
    """Eight threads read; each answer is one that the machine had at some time."""
    few, many = [(1, 1)], [(pid, pid) for pid in range(20)]
    over = threading.Event()
    rounds = [0] * 8

    def read(fake: FakeNvml, number: int) -> None:
        while not over.is_set():
            for gpu in fake.topology.gpus:
                device = handle(gpu.index)
                assert pynvml.nvmlDeviceGetUUID(device) == gpu.uuid
                memory = pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
                assert memory.used in (0, GIB)
                assert memory.total == memory.reserved + memory.free + memory.used == gpu.memory
                try:
                    found = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
                except pynvml.NVMLError_InsufficientSize:
                    continue  # more processes came between pynvml's two calls than it allows for
                assert [(each.pid, each.usedGpuMemory) for each in found] in ([], few, many)
            rounds[number] += 1

    with playing(tmp_path, bridged()) as fake, ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, fake, number) for number in range(8)]
        turns = itertools.count()

        def enough() -> bool:
            """A turn, and whether there were 200 and every reader has read, or failed."""
            turn = next(turns)
            index = turn % 4
            fake.used(index, GIB * (turn // 4 % 2))
            fake.processes(index, many if turn // 4 % 2 else few)
            read_or_failed = zip(rounds, readers, strict=True)
            return turn >= 200 and all(n or reader.done() for n, reader in read_or_failed)

        try:
            eventually(enough, every=0)
        finally:
            over.set()
        for reader in readers:
            reader.result(PATIENCE)


def test_every_change_is_seen_at_once(tmp_path: Path) -> None:
    """Also where two files have the same size and the first one's inode is used again."""
    with playing(tmp_path, bridged()) as fake:
        device = handle(0)
        for turn in range(500):
            fake.utilisation(0, turn % 10)
            assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == turn % 10


def test_a_running_process_sees_its_gpu_vanish(tmp_path: Path) -> None:
    fake = fake_nvml(tmp_path, bridged())
    program = (
        "import pynvml as n, sys; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)\n"
        "for line in sys.stdin:\n"
        "    try: print(n.nvmlDeviceGetUUID(h), flush=True)\n"
        "    except n.NVMLError as error: print(error.value, flush=True)\n"
    )
    with started(
        [sys.executable, "-c", program],
        env={**os.environ, **fake.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked() -> str:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        assert asked() == "GPU-1"
        fake.lose(1)
        assert asked() == "15"
        fake.restore(1)
        assert asked() == "GPU-1"
        process.stdin.close()
