"""NVML's answers about one GPU: what rarely changes (:func:`seen_gpu`), and what changes often.

:class:`Asker` makes the calls. If a call fails, only the one value that it requested is missing. A
thing that a GPU does not have (NotSupported for NVLinks, MIG, ECC, fabric) is an answer. A thing
that the driver does not offer, does not allow or gets wrong is *unseen*, with NVML's own message as
the cause.
"""

import uuid as uuids
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from ctypes import byref
from typing import Any

import pynvml

from topology.agent.model.observations import (
    FabricState,
    GpuProcess,
    InstanceVitals,
    NvlinkEnd,
    Remote,
    SeenGpu,
    Unseen,
    Vitals,
)
from topology.core.devices import MIB, Bytes, Fabric, Gpu, GpuUuid, MigInstance, bus_id

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
# Errors that are an answer, because the GPU has no such thing.
ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND)
# Errors that say nothing about the GPU's health: it has no such thing, or we may not read it.
NOT_TOLD = (
    *ABSENT,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)

Handle = Any  # a device as `pynvml` hands it out
REMOTES = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: Remote.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: Remote.SWITCH,
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: Remote.OTHER,
}
RECOVERY_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: "none",
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain-p2p",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain-and-reset",
}
# NVML_GPU_FABRIC_HEALTH_MASK of nvml.h; older versions of pynvml lack a part of it and have wrong
# widths. Each number is the position of a field of two bits: 0 (not supported), 1 (yes) or 2 (no).
DEGRADED_BANDWIDTH, ROUTE_RECOVERY, ROUTE_UNHEALTHY, TIMEOUT_RECOVERY = 0, 2, 4, 6
# The position of a field of four bits: 0 (not supported), 1 (correct), or what is wrong.
CONFIGURATION = 8
GIB = 1024 * MIB
EIGHTHS = 8  # the number of parts into which MIG cuts a GPU's memory
NUMA_WORDS = 16  # 64-bit words of a NUMA node mask, enough for more nodes than Linux supports
NVIDIA = 0x10DE
# PCI device ids of NVSwitches, for drivers that do not return a far end's type (pci-ids).
SWITCH_DEVICES = frozenset({0x1AC1, 0x1AC2, 0x1AF1, 0x22A3, 0x2900})
NO_SUCH_LINK = (*ABSENT, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class Asker:
    """The caller of NVML, which notes what the driver does not say, in one line for many GPUs."""

    def __init__(self) -> None:
        self._failures: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def ask(
        self,
        fact: str,
        of: str,
        function: Callable[..., Any],
        *args: Any,
        absent: Collection[int] = ABSENT,
    ) -> Any:
        """Return the answer, None if there is none. Raises pynvml's error only for a lost GPU."""
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == LOST:
                raise
            if code not in absent:
                self._failures[fact, words(error)].append(of)
        except (UnicodeDecodeError, ValueError) as error:
            self._failures[fact, str(error)].append(of)
        return None

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """The values that the driver has not returned so far."""
        return tuple(
            Unseen(fact, cause, ", ".join(dict.fromkeys(filter(None, of))))
            for (fact, cause), of in self._failures.items()
        )


def words(error: Exception) -> str:
    """Return NVML's own message of an error."""
    return str(error) or type(error).__name__


def seen_gpu(asker: Asker, index: int, uuid: GpuUuid, handle: Handle) -> SeenGpu:
    """Return what rarely changes of a GPU. Raises pynvml's error if it is lost."""
    of = f"GPU {index}"
    product = asker.ask("product", of, pynvml.nvmlDeviceGetName, handle, absent=())
    pci = asker.ask("PCI address", of, pynvml.nvmlDeviceGetPciInfo, handle, absent=())
    memory = _memory(asker, of, handle)
    mig_mode, instances = _mig(asker, of, handle, memory)
    gpu = Gpu(
        index,
        uuid,
        product or "unknown",
        memory,
        _numa(handle),
        _bus(pci.busId) or None if pci is not None else None,
        mig_mode=mig_mode,
        mig_instances=instances,
    )
    nvlinks = () if mig_mode == "enabled" else _nvlinks(asker, of, handle)
    return SeenGpu(gpu, nvlinks, _fabric(asker, of, handle))


def check_answers(handle: Handle) -> None:
    """Make the calls that every GPU answers. Raises pynvml's error if this GPU does not.

    If one of them fails, for whatever cause, NVIDIA's device plugin refuses a pod. A GPU that has
    fallen off the bus may fail with other errors than "GPU is lost".
    """
    for function in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetPciInfo):
        try:
            function(handle)
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) not in NOT_TOLD:
                raise
        except UnicodeDecodeError:
            pass  # the GPU has answered, but not with a text


def vitals_of(asker: Asker, handle: Handle, uuid: GpuUuid) -> Vitals:
    """Return what changes often on a GPU. Raises pynvml's error if it is lost."""

    def ask(function: Callable[..., Any], *args: Any) -> Any:
        return asker.ask("", "", function, handle, *args)

    # First, a call that every driver offers: it shows whether the GPU is lost.
    used = ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    rows = ask(pynvml.nvmlDeviceGetRemappedRows)
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
    ecc = ask(
        pynvml.nvmlDeviceGetTotalEccErrors,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    retired = ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)  # before Ampere
    processes = _processes(ask)
    pending = [bool(p) for p in (rows and rows[2], retired) if p is not None]
    sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    told = ask(pynvml.nvmlDeviceGetSramEccErrorStatus, byref(sram)) is not None
    return Vitals(
        uuid,
        active_links=_active(handle),
        uncorrected_ecc=ecc,
        remap_pending=any(pending) if pending else None,
        remap_failed=None if rows is None else bool(rows[3]),
        sram_exceeded=bool(sram.bThresholdExceeded) if told else None,
        fabric=_fabric_state(_fabric_info(asker, "", handle)),
        energy=ask(pynvml.nvmlDeviceGetTotalEnergyConsumption),
        recovery=_recovery(ask),
        utilisation=None if rates is None else rates.gpu / 100,
        memory_utilisation=None if rates is None else rates.memory / 100,
        memory_used=None if used is None else Bytes(used.used),
        processes=processes,
        # In MIG mode the driver has no utilisation. Other GPUs do not need these calls.
        instances=_instance_vitals(asker, handle) if rates is None else (),
    )


def _memory(asker: Asker, of: str, handle: Handle) -> Bytes:
    """Return the total memory; 0 if it is not known."""
    for version in (pynvml.nvmlMemory_v2, None):
        with suppress(pynvml.NVMLError):
            return Bytes(pynvml.nvmlDeviceGetMemoryInfo(handle, version).total)
    info = asker.ask("memory", of, pynvml.nvmlDeviceGetMemoryInfo, handle, absent=())
    return Bytes(info.total if info is not None else 0)


def _numa(handle: Handle) -> int | None:
    """Return the one NUMA node whose memory is nearest; None if NVML does not show exactly one.

    sysfs knows it if NVML does not.
    """
    with suppress(pynvml.NVMLError):
        words = pynvml.nvmlDeviceGetMemoryAffinity(
            handle, NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
        )
        nodes = [
            64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
        ]
        if len(nodes) == 1:
            return nodes[0]
    return None


def _mig(
    asker: Asker, of: str, handle: Handle, whole: Bytes
) -> tuple[str, tuple[MigInstance, ...]]:
    mode = asker.ask("MIG mode", of, pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return "disabled", ()
    found = []
    for uuid, part in _mig_devices(asker, of, handle):
        info = asker.ask("MIG memory", of, pynvml.nvmlDeviceGetMemoryInfo, part)
        memory = Bytes(info.total if info is not None else 0)
        found.append(MigInstance(uuid, _profile(asker, of, part, whole), memory))
    return "enabled", tuple(found)


def _mig_devices(asker: Asker, of: str, handle: Handle) -> Iterator[tuple[str, Handle]]:
    """Yield the UUID and the handle of each MIG instance of a GPU in MIG mode."""
    count = asker.ask("MIG instances", of, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for i in range(count):
        part = asker.ask("MIG instances", of, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        uuid = part and asker.ask("MIG instances", of, pynvml.nvmlDeviceGetUUID, part)
        if uuid:
            yield uuid, part


def _instance_vitals(asker: Asker, handle: Handle) -> tuple[InstanceVitals, ...]:
    """Return what changes often on each MIG instance; empty if the GPU is not in MIG mode."""
    mode = asker.ask("", "", pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return ()
    found = []
    for uuid, part in _mig_devices(asker, "", handle):
        running = asker.ask("", "", pynvml.nvmlDeviceGetComputeRunningProcesses_v3, part)
        info = asker.ask("", "", pynvml.nvmlDeviceGetMemoryInfo, part, pynvml.nvmlMemory_v2)
        processes = None if running is None else len(running)
        used = None if info is None else Bytes(info.used)
        found.append(InstanceVitals(uuid, processes, used))
    return tuple(found)


def _profile(asker: Asker, of: str, part: Handle, whole: Bytes) -> str:
    """Return the profile's usual name, such as ``3g.20gb``, with which NVML's name ends."""
    name = asker.ask("MIG profile", of, pynvml.nvmlDeviceGetName, part)
    if name and " MIG " in name:
        return str(name.rpartition(" MIG ")[2])
    config = asker.ask("MIG profile", of, pynvml.nvmlDeviceGetAttributes, part)
    if config is None or not whole:
        return "unknown"
    slices, parts = config.gpuInstanceSliceCount, config.computeInstanceSliceCount
    memory = f"{slices}g.{_named_gb(config.memorySizeMB * MIB, whole)}gb"
    return memory if parts == slices else f"{parts}c.{memory}"


def _named_gb(memory: int, whole: int) -> int:
    """Return the GB in a profile's name: its eighths of the GPU's memory, rounded up, in GiB.

    NVIDIA's plugin names resources in this way, by go-nvlib's ``getMigMemorySizeGB``. So an
    instance of 16 GiB on an H200 of 141 GiB is a ``1g.18gb``.
    """
    eighths = -(-memory * EIGHTHS // whole)
    return int(eighths / EIGHTHS * -(-whole // GIB) + 0.5)


def _nvlinks(asker: Asker, of: str, handle: Handle) -> tuple[NvlinkEnd, ...]:
    found = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = asker.ask(
            "NVLinks", of, pynvml.nvmlDeviceGetNvLinkState, handle, number, absent=NO_SUCH_LINK
        )
        if state is None:
            continue
        if not state:
            found.append(NvlinkEnd(number, active=False))
            continue
        remote, bus = _far_end(asker, of, handle, number)
        version = asker.ask("NVLink version", of, pynvml.nvmlDeviceGetNvLinkVersion, handle, number)
        found.append(NvlinkEnd(number, True, remote, bus, version))
    return tuple(found)


def _far_end(asker: Asker, of: str, handle: Handle, number: int) -> tuple[Remote, str | None]:
    kind = asker.ask(
        "NVLink far ends",
        of,
        pynvml.nvmlDeviceGetNvLinkRemoteDeviceType,
        handle,
        number,
        absent=NO_SUCH_LINK,
    )
    remote = REMOTES.get(kind, Remote.UNKNOWN)
    if remote in (Remote.SWITCH, Remote.OTHER):
        return remote, None
    info = asker.ask(
        "NVLink far ends",
        of,
        pynvml.nvmlDeviceGetNvLinkRemotePciInfo,
        handle,
        number,
        absent=NO_SUCH_LINK,
    )
    bus = _bus(info.busId) if info is not None else ""
    if not bus or bus.startswith("ffff") or bus == "0000:00:00.0":
        return Remote.UNKNOWN, None
    device, vendor = info.pciDeviceId >> 16, info.pciDeviceId & 0xFFFF
    if kind is None and vendor == NVIDIA and device in SWITCH_DEVICES:
        return Remote.SWITCH, None
    # If no GPU of the node has this address, the link leads to no GPU of the node.
    return Remote.GPU, bus


def _active(handle: Handle) -> frozenset[int] | None:
    """Return the numbers of the links that are up; None if NVML does not say."""
    found = set()
    told = False
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, number):
                found.add(number)
            told = True
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == LOST:
                raise
            if code == pynvml.NVML_ERROR_INVALID_ARGUMENT or not told:
                break  # past the last link, or the GPU has none, or we may not read them
    return frozenset(found) if told else None


def _fabric_info(asker: Asker, of: str, handle: Handle) -> Any:
    """Return what the driver shows of the GPU's fabric; None if the GPU can be in none."""
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    info.version = pynvml.nvmlGpuFabricInfo_v2
    done = asker.ask("fabric", of, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info))
    if done is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    return info


def _fabric_state(info: Any) -> FabricState | None:
    if info is None:
        return None

    def yes(question: int) -> bool:
        return bool(info.healthMask >> question & 0b11 == 1)

    return FabricState(
        info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == 0,
        misconfigured=(info.healthMask >> CONFIGURATION & 0b1111) > 1,
        route_unhealthy=yes(ROUTE_UNHEALTHY),
        degraded=yes(DEGRADED_BANDWIDTH),
        recovering=yes(ROUTE_RECOVERY) or yes(TIMEOUT_RECOVERY),
    )


def _fabric(asker: Asker, of: str, handle: Handle) -> Fabric | None:
    info = _fabric_info(asker, of, handle)
    state = _fabric_state(info)
    if state is None or not state.registered:
        return None
    cluster = uuids.UUID(bytes=bytes(info.clusterUuid))
    # A single HGX box registers with a cluster UUID of zeros. It has no fabric beyond the node.
    return None if cluster.int == 0 else Fabric(str(cluster), int(info.cliqueId))


def _recovery(ask: Callable[..., Any]) -> str | None:
    values = ask(pynvml.nvmlDeviceGetFieldValues, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return RECOVERY_ACTIONS.get(int(values[0].value.uiVal))


def _processes(ask: Callable[..., Any]) -> tuple[GpuProcess, ...] | None:
    compute = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    graphics = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3)
    if compute is None and graphics is None:
        return None
    both = {p.pid: p.usedGpuMemory or 0 for p in [*(graphics or ()), *(compute or ())]}
    return tuple(sorted(GpuProcess(pid, Bytes(used)) for pid, used in both.items()))


def _bus(text: str | bytes) -> str:
    word = text.decode() if isinstance(text, bytes) else text
    return bus_id(word) if word else ""
