"""NVML through ``pynvml``: what it shows of the whole node, and the events that it reports."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any, Self

import pynvml

from topology.agent.model.observations import SeenGpu, SeenNode, Vitals, Xid
from topology.agent.probes.nvmlgpu import (
    NOT_TOLD,
    Asker,
    Handle,
    check_answers,
    seen_gpu,
    vitals_of,
    words,
)
from topology.core.devices import GpuUuid
from topology.core.links import LinkKind

ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: LinkKind.BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: LinkKind.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: LinkKind.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: LinkKind.PHB,
    pynvml.NVML_TOPOLOGY_NODE: LinkKind.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: LinkKind.SYS,
}

# The most Xids that are taken from an earlier request, far more than a working driver holds.
MOST_UNHEARD = 1024


class NvmlDownError(Exception):
    """The failure of NVML as a whole: no library, no driver, or it refuses to start."""


class EventsFailedError(Exception):
    """The failure of a wait for events, for example because a GPU is lost: listen again."""


class Nvml:
    """An open NVML. It is thread-safe. A call may take as long as the driver does.

    ``hung`` are GPUs over which another thread's call hangs. It maps the driver's number of each to
    its UUID (empty if that is not known). These GPUs are not asked. Raises :class:`NvmlDownError`
    if NVML cannot be used.
    """

    def __init__(self, hung: Mapping[int, str] | None = None) -> None:
        # Any thread may replace it at any time, so that GPUs that answer again are asked again.
        self.hung: Mapping[int, str] = hung or {}
        # The GPU that the present call is about; None if the call is about no GPU or several.
        self.asking: int | None = None
        # A callback, called before each call about another GPU or pair of GPUs.
        self.on_progress: Callable[[], None] = lambda: None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlDownError(words(error)) from error
        self._events: Any = None
        self._waiting: list[Xid] = []
        # Kept because a lost GPU no longer returns its UUID.
        self._uuids = {index: uuid for index, uuid in self.hung.items() if uuid}
        # GPUs that the driver counted at the last reading of the vitals, and whose UUID is unknown.
        self.nameless: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close NVML."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def look(self) -> SeenNode:
        """Return everything that changes rarely.

        Raises :class:`NvmlDownError` if the driver does not count GPUs.
        """
        asker = Asker()
        gpus: list[SeenGpu] = []
        handles: dict[int, Handle] = {}
        for index in self._each():
            if self._silent(index):
                continue  # its former answers say more than an incomplete one
            of = f"GPU {index}"
            with suppress(pynvml.NVMLError):  # the vitals show that it does not answer
                handle = asker.ask("GPU", of, pynvml.nvmlDeviceGetHandleByIndex, index, absent=())
                if handle is None:
                    continue
                uuid = asker.ask("GPU", of, pynvml.nvmlDeviceGetUUID, handle, absent=())
                if uuid is not None:  # the driver has identified the GPU
                    self._uuids[index] = uuid
                    gpus.append(seen_gpu(asker, index, GpuUuid(uuid), handle))
                    handles[index] = handle
        pcie: dict[tuple[int, int], LinkKind] = {}
        p2p: dict[tuple[int, int], bool] = {}
        linked = {g.gpu.index for g in gpus if any(e.active for e in g.nvlinks)}
        for a, b in combinations(handles, 2):
            self.on_progress()
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
        return SeenNode(tuple(gpus), pcie, p2p, asker.unseen)

    def vitals(self) -> tuple[Vitals, ...]:
        """Return the values that change on every GPU that was there when NVML was opened."""
        asker = Asker()  # look() has already noted what the driver does not say
        found = [Vitals(GpuUuid(uuid), hung=True) for uuid in self.hung.values() if uuid]
        nameless = [index for index, uuid in self.hung.items() if not uuid]
        for index in self._each():
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._uuids.setdefault(index, pynvml.nvmlDeviceGetUUID(handle))
                check_answers(handle)
                found.append(vitals_of(asker, handle, GpuUuid(uuid)))
            except pynvml.NVMLError as error:
                if getattr(error, "value", None) in NOT_TOLD:
                    continue
                if index in self._uuids:
                    found.append(Vitals(GpuUuid(self._uuids[index]), lost=True))
                else:
                    nameless.append(index)
        self.nameless = tuple(sorted(nameless))
        return tuple(found)

    def uuid_of(self, index: int) -> str:
        """Return the UUID of the GPU with this number; empty if it is not known."""
        return self._uuids.get(index, "")

    def listen(self) -> bool:
        """Request Xid events of every GPU. Returns False if the driver offers none.

        A later call leaves out GPUs that have been lost since. It makes the new request before it
        frees the earlier one, and keeps the events that are left there for :meth:`wait`. So no Xid
        is lost in between, but one may be returned twice.
        """
        asked = self._asked()
        if asked is None:
            return False
        self._waiting += self._let_go()
        self._events = asked
        return True

    def wait(self, seconds: float) -> Xid | None:
        """Return the next Xid; None if none came in time. Raises :class:`EventsFailedError`."""
        if self._waiting:
            return self._waiting.pop(0)
        try:
            return self._next(self._events, seconds)
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise EventsFailedError(words(error)) from error

    def _asked(self) -> Any:
        """Request the events of every GPU that answers. Returns the request; None if none does."""
        try:
            asked = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return None
        heard = False
        for index in self._each():
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, asked)
                heard = True
        if not heard:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(asked)
        return asked if heard else None

    def _let_go(self) -> list[Xid]:
        """Free the present request for events. Returns the Xids that have not been returned yet."""
        found: list[Xid] = []
        if self._events is None:
            return found
        with suppress(pynvml.NVMLError):  # the last call fails because nothing is left
            for _ in range(MOST_UNHEARD):
                if (xid := self._next(self._events, 0)) is not None:
                    found.append(xid)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)
        return found

    def _next(self, events: Any, seconds: float) -> Xid | None:
        """Return the next event; None if it is no Xid. Raises pynvml's error."""
        event = pynvml.nvmlEventSetWait_v2(events, int(seconds * 1000))
        if not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return None
        try:
            uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(event.device))
        except pynvml.NVMLError:
            uuid = None
        return Xid(uuid, int(event.eventData))

    def _each(self) -> Iterator[int]:
        """Yield the driver's numbers of the GPUs that may be asked; ``asking`` is each in turn."""
        try:
            for index in range(self._count()):
                if index not in self.hung:
                    self.asking = index
                    self.on_progress()
                    yield index
                self.asking = None
        finally:
            self.asking = None

    def _count(self) -> int:
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NvmlDownError(words(error)) from error

    def _silent(self, index: int) -> bool:
        """Check whether a GPU whose UUID is known no longer answers."""
        if index not in self._uuids:
            return False
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceGetUUID(handle)
            check_answers(handle)
        except pynvml.NVMLError as error:
            return getattr(error, "value", None) not in NOT_TOLD
        return False
