"""NVML through ``pynvml``, call by call: one that fails costs the one fact it was asked for.

What a GPU does not have (NotSupported for NVLinks, MIG, ECC, fabric) is an answer. What the driver
does not offer, does not allow or gets wrong is *unseen*, with NVML's own words as the cause.
"""

from __future__ import annotations

import uuid as uuids
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from ctypes import byref
from itertools import combinations
from typing import Any, Self

import pynvml

from topology.agent.decides.observed import (
    NvlinkEnd,
    Remote,
    SeenGpu,
    SeenNode,
    Unseen,
    Vitals,
    Xid,
)
from topology.core.devices import Bytes, Fabric, GpuUuid, MigInstance, bus_id
from topology.core.links import LinkKind

ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: LinkKind.BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: LinkKind.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: LinkKind.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: LinkKind.PHB,
    pynvml.NVML_TOPOLOGY_NODE: LinkKind.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: LinkKind.SYS,
}
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
NUMA_WORDS = 16
"""64-bit words of a NUMA node mask: more nodes than Linux runs with."""

_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND)
"""Errors that are an answer: the GPU has no such thing."""
_NO_SUCH_LINK = (*_ABSENT, pynvml.NVML_ERROR_INVALID_ARGUMENT)

Handle = Any


class NvmlDownError(Exception):
    """NVML cannot be used at all: no library, no driver, or it refuses to start."""


class EventsFailedError(Exception):
    """No more events can be waited for, as when one of the GPUs is lost: listen anew."""


class _Asker:
    """Asks, and notes what could not be had; a fact of many GPUs is one line."""

    def __init__(self) -> None:
        self._failures: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def ask(
        self,
        fact: str,
        of: str,
        function: Callable[..., Any],
        *args: Any,
        absent: Collection[int] = _ABSENT,
    ) -> Any:
        """The answer, None where there is none. A GPU that is lost raises all the same."""
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == _LOST:
                raise
            if code not in absent:
                self._failures[fact, _words(error)].append(of)
        except (UnicodeDecodeError, ValueError) as error:
            self._failures[fact, str(error)].append(of)
        return None

    def note(self, fact: str, cause: str, of: str) -> None:
        self._failures[fact, cause].append(of)

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        return tuple(
            Unseen(fact, cause, ", ".join(dict.fromkeys(filter(None, of))))
            for (fact, cause), of in self._failures.items()
        )


class Nvml:
    """An open NVML. Safe to use from several threads; a call may take as long as the driver does.

    ``driver`` is the driver's version. Raises :class:`NvmlDownError` where NVML cannot be used.
    """

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlDownError(_words(error)) from error
        self.driver = str(_Asker().ask("driver", "", pynvml.nvmlSystemGetDriverVersion) or "")
        self._events: Any = None
        self._uuids: dict[int, str] = {}  # a lost GPU does not tell its own any more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let NVML go."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def look(self) -> SeenNode:
        """Everything that changes rarely. Raises :class:`NvmlDownError` if not even GPUs count."""
        asker = _Asker()
        gpus: list[SeenGpu] = []
        handles: dict[int, Handle] = {}
        for index in range(self._count()):
            of = f"GPU {index}"
            try:
                handle = asker.ask("GPU", of, pynvml.nvmlDeviceGetHandleByIndex, index, absent=())
                if handle is not None and (gpu := self._gpu(asker, index, handle)) is not None:
                    gpus.append(gpu)
                    handles[index] = handle
            except pynvml.NVMLError:
                asker.note("GPU", "lost: it has fallen off the bus", of)
        pcie: dict[tuple[int, int], LinkKind] = {}
        p2p: dict[tuple[int, int], bool] = {}
        linked = {g.index for g in gpus if any(e.active for e in g.nvlinks)}
        for a, b in combinations(handles, 2):
            of = f"GPUs {a} and {b}"
            pair = (handles[a], handles[b])
            with suppress(pynvml.NVMLError):
                level = asker.ask(
                    "PCIe class", of, pynvml.nvmlDeviceGetTopologyCommonAncestor, *pair
                )
                if level in ANCESTORS:
                    pcie[a, b] = ANCESTORS[level]
                if a in linked and b in linked:
                    index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                    status = asker.ask(
                        "P2P status", of, pynvml.nvmlDeviceGetP2PStatus, *pair, index
                    )
                    if status is not None and status != pynvml.NVML_P2P_STATUS_UNKNOWN:
                        p2p[a, b] = status == pynvml.NVML_P2P_STATUS_OK
        return SeenNode(tuple(gpus), self.driver, pcie, p2p, asker.unseen)

    def vitals(self) -> tuple[Vitals, ...]:
        """What moves, for every GPU that was there when NVML was opened."""
        asker = _Asker()  # what cannot be had here has been noted by look() already
        found = []
        for index in range(self._count()):
            handle = uuid = None
            try:
                of = f"GPU {index}"
                handle = asker.ask("GPU", of, pynvml.nvmlDeviceGetHandleByIndex, index)
                if handle is None:
                    continue
                uuid = self._uuids.get(index) or pynvml.nvmlDeviceGetUUID(handle)
                self._uuids[index] = uuid
                found.append(self._vital(asker, handle, GpuUuid(uuid)))
            except pynvml.NVMLError:
                uuid = uuid or self._uuids.get(index)
                if uuid is not None:
                    found.append(Vitals(GpuUuid(uuid), lost=True))
        return tuple(found)

    def listen(self) -> bool:
        """Ask for Xid events of every GPU; false where the driver offers none.

        Once more, it leaves out those that have been lost meanwhile.
        """
        mask = pynvml.nvmlEventTypeXidCriticalError
        if self._events is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._events)
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return False
        heard = False
        for index in range(self._count()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(handle, mask, self._events)
                heard = True
            except pynvml.NVMLError:
                continue
        return heard

    def wait(self, seconds: float) -> Xid | None:
        """The next Xid, or None if none came in time. Raises :class:`EventsFailedError`."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise EventsFailedError(_words(error)) from error
        if not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return None
        try:
            uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(event.device))
        except pynvml.NVMLError:
            uuid = None
        return Xid(uuid, int(event.eventData))

    def _count(self) -> int:
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NvmlDownError(_words(error)) from error

    def _gpu(self, asker: _Asker, index: int, handle: Handle) -> SeenGpu | None:
        of = f"GPU {index}"
        uuid = asker.ask("GPU", of, pynvml.nvmlDeviceGetUUID, handle, absent=())
        if uuid is None:
            return None  # nobody could say which GPU this is
        self._uuids[index] = uuid
        product = asker.ask("product", of, pynvml.nvmlDeviceGetName, handle, absent=())
        pci = asker.ask("PCI address", of, pynvml.nvmlDeviceGetPciInfo, handle, absent=())
        mig_mode, instances = _mig(asker, of, handle)
        return SeenGpu(
            index=index,
            uuid=GpuUuid(uuid),
            product=product or "unknown",
            memory=_memory(asker, of, handle),
            pci_bus_id=_bus(pci.busId) if pci is not None else "",
            numa_node=_numa(asker, of, handle),
            mig_mode=mig_mode,
            mig_instances=instances,
            nvlinks=() if mig_mode == "enabled" else _nvlinks(asker, of, handle),
            fabric=_fabric(asker, of, handle),
        )

    def _vital(self, asker: _Asker, handle: Handle, uuid: GpuUuid) -> Vitals:
        def ask(function: Callable[..., Any], *args: Any) -> Any:
            return asker.ask("", "", function, handle, *args)

        # First what every driver offers: it tells a GPU that is lost.
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
        return Vitals(
            uuid,
            active_links=_active(handle),
            uncorrected_ecc=ecc,
            remap_pending=any(pending) if pending else None,
            remap_failed=None if rows is None else bool(rows[3]),
            energy=ask(pynvml.nvmlDeviceGetTotalEnergyConsumption),
            recovery=_recovery(ask),
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used=None if used is None else Bytes(used.used),
            processes=processes,
        )


def _memory(asker: _Asker, of: str, handle: Handle) -> Bytes:
    """Total memory; what an unknown one is worth to a constraint is nothing."""
    for version in (pynvml.nvmlMemory_v2, None):
        with suppress(pynvml.NVMLError):
            return Bytes(pynvml.nvmlDeviceGetMemoryInfo(handle, version).total)
    info = asker.ask("memory", of, pynvml.nvmlDeviceGetMemoryInfo, handle, absent=())
    return Bytes(info.total if info is not None else 0)


def _numa(asker: _Asker, of: str, handle: Handle) -> int | None:
    """The one NUMA node whose memory is nearest; sysfs knows it, too, where NVML does not."""
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


def _mig(asker: _Asker, of: str, handle: Handle) -> tuple[str, tuple[MigInstance, ...]]:
    mode = asker.ask("MIG mode", of, pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return "disabled", ()
    found = []
    count = asker.ask("MIG instances", of, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for i in range(count):
        part = asker.ask("MIG instances", of, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        uuid = part and asker.ask("MIG instances", of, pynvml.nvmlDeviceGetUUID, part)
        if uuid:
            info = asker.ask("MIG memory", of, pynvml.nvmlDeviceGetMemoryInfo, part)
            memory = Bytes(info.total if info is not None else 0)
            found.append(MigInstance(uuid, _profile(asker, of, part), memory))
    return "enabled", tuple(found)


def _profile(asker: _Asker, of: str, part: Handle) -> str:
    """The profile's usual name, ``3g.20gb``; NVML names the instance after it at its end."""
    name = asker.ask("MIG profile", of, pynvml.nvmlDeviceGetName, part)
    if name and " MIG " in name:
        return str(name.rpartition(" MIG ")[2])
    facts = asker.ask("MIG profile", of, pynvml.nvmlDeviceGetAttributes, part)
    if facts is None:
        return "unknown"
    slices, parts = facts.gpuInstanceSliceCount, facts.computeInstanceSliceCount
    memory = f"{slices}g.{round(facts.memorySizeMB / 1024)}gb"
    return memory if parts == slices else f"{parts}c.{memory}"


def _nvlinks(asker: _Asker, of: str, handle: Handle) -> tuple[NvlinkEnd, ...]:
    found = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = asker.ask(
            "NVLinks", of, pynvml.nvmlDeviceGetNvLinkState, handle, number, absent=_NO_SUCH_LINK
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


def _far_end(asker: _Asker, of: str, handle: Handle, number: int) -> tuple[Remote, str | None]:
    kind = asker.ask(
        "NVLink far ends",
        of,
        pynvml.nvmlDeviceGetNvLinkRemoteDeviceType,
        handle,
        number,
        absent=_NO_SUCH_LINK,
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
        absent=_NO_SUCH_LINK,
    )
    bus = _bus(info.busId) if info is not None else ""
    if not bus or bus.startswith("ffff") or bus == "0000:00:00.0":
        return Remote.UNKNOWN, None
    if kind is None and info.pciDeviceId & 0xFFFF == NVIDIA and _is_switch(info):
        return Remote.SWITCH, None
    # An address that no GPU of the node has is a far end that nobody can use.
    return Remote.GPU, bus


NVIDIA = 0x10DE
SWITCH_DEVICES = frozenset({0x1AC1, 0x1AC2, 0x1AF1, 0x22A3, 0x2900})
"""PCI device ids of NVSwitches, for drivers that do not tell a far end's type (pci-ids)."""


def _is_switch(info: Any) -> bool:
    return info.pciDeviceId >> 16 in SWITCH_DEVICES


def _active(handle: Handle) -> frozenset[int] | None:
    """The numbers of the links that are up; None where NVML does not say."""
    found = set()
    told = False
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, number):
                found.add(number)
            told = True
        except pynvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == _LOST:
                raise
            if code == pynvml.NVML_ERROR_INVALID_ARGUMENT or not told:
                break  # past the GPU's last link, or it has none, or it may not be asked
    return frozenset(found) if told else None


def _fabric(asker: _Asker, of: str, handle: Handle) -> Fabric | None:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    info.version = pynvml.nvmlGpuFabricInfo_v2
    done = asker.ask(
        "fabric", of, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info), absent=_ABSENT
    )
    if done is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0:
        asker.note("fabric", "its registration is not complete", of)
        return None
    cluster = uuids.UUID(bytes=bytes(info.clusterUuid))
    # A single HGX box registers with a cluster UUID of zeros: no fabric beyond the node.
    return None if cluster.int == 0 else Fabric(str(cluster), int(info.cliqueId))


def _recovery(ask: Callable[..., Any]) -> str | None:
    values = ask(pynvml.nvmlDeviceGetFieldValues, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return RECOVERY_ACTIONS.get(int(values[0].value.uiVal))


def _processes(ask: Callable[..., Any]) -> tuple[tuple[int, int], ...] | None:
    compute = ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3)
    graphics = ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3)
    if compute is None and graphics is None:
        return None
    both = {p.pid: p.usedGpuMemory or 0 for p in [*(graphics or ()), *(compute or ())]}
    return tuple(sorted(both.items()))


def _bus(text: str | bytes) -> str:
    word = text.decode() if isinstance(text, bytes) else text
    return bus_id(word) if word else ""


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
