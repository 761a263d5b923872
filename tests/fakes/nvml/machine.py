"""A node as the driver of its GPUs sees it: played to NVML, and broken at will."""

import ctypes
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from tests.fakes.nvml.building import SONAME, library, symbols
from tests.fakes.nvml.products import compute_capability, generation
from topology.core.devices import MIB, Gpu
from topology.core.graph import NodeTopology
from topology.core.links import LinkKind, Via, nvlink_port

# Of the driver, of NVML, and of the CUDA that the driver serves.
DRIVER = ("570.124.06", "12.570.124.06", 12080)

RECOVERY_ACTIONS = {
    "none": 0,
    "gpu-reset": 1,
    "node-reboot": 2,
    "drain-p2p": 3,
    "drain-and-reset": 4,
}
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3
NO_INSTANCE = 0xFFFFFFFF
RESERVED_SHARE = 128  # one part in so many of a GPU's memory is the driver's own
IDLE_MILLIWATTS = 70_000
ENERGY_AT_START = 3_600_000
FIRST_SWITCH_BUS = 0xC4
SWITCHES = 4

_PROFILE = re.compile(r"(?:(\d)c\.)?(\d)g\.\d+gb(?:[+-]\S+)?$")


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device: its UUID (``MIG-…``), a profile such as ``1g.10gb``, and its bytes.

    Raises ``ValueError`` for a profile that is none.
    """

    uuid: str
    profile: str
    memory: int

    def __post_init__(self) -> None:
        if not _PROFILE.match(self.profile):
            raise ValueError(f"{self.profile!r} is no MIG profile such as 1g.10gb")

    @property
    def slices(self) -> tuple[int, int]:
        """GPU slices and compute slices: ``1c.3g.20gb`` has three and one of them."""
        found = _PROFILE.match(self.profile)
        assert found is not None
        whole = int(found[2])
        return whole, int(found[1] or whole)


@dataclass(slots=True)
class _Link:
    """One end of an NVLink: where it goes in the description's words, and its other end."""

    remote: str
    up: bool = True
    other: tuple[int, int] | None = None


@dataclass(slots=True)
class _State:
    """Everything about a GPU that can change."""

    used: int = 0
    busy: int = 0
    pending: bool = False
    failure: bool = False
    millijoules: int = ENERGY_AT_START
    since: int = field(default_factory=time.monotonic_ns)
    recovery: int = 0
    lost: bool = False
    gone: bool = False
    mig: bool = False
    instances: tuple[MigInstance | None, ...] = ()
    processes: tuple[tuple[int, int], ...] = ()
    # Processes on MIG instances, by slot.
    inside: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Fault:
    function: str
    code: int | None  # None: it hangs
    index: int | None


class FakeNvml:
    """A machine that the real ``pynvml`` sees through the fake ``libnvidia-ml.so.1``.

    Methods name GPUs by their index in the topology. NVML numbers those that are there in the same
    order: after :meth:`remove` the later ones move up at the next ``nvmlInit``, as in reality, and
    only the minor number stays. Subprocesses see the machine by :attr:`environment`, this process
    by :meth:`in_process`, every change at once. Methods may be called from any thread.

    ``without`` names symbols that the library lacks (an older driver's). Raises
    :class:`~tests.fakes.nvml.CompilerMissing` where the library cannot be built.
    """

    def __init__(
        self, folder: Path, topology: NodeTopology, *, without: Collection[str] = ()
    ) -> None:
        self._library = library(without)
        self._file = folder / "nvml.txt"
        self._lock = threading.RLock()
        self._stamp = 0
        self._serial = 0
        self._xids: list[tuple[int, int, int]] = []
        self._faults: list[_Fault] = []
        self._play(topology)

    @property
    def environment(self) -> dict[str, str]:
        """What a subprocess needs beside its own environment to see this machine."""
        folders = [str(self._library), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
            "FAKE_NVML": str(self._file),
        }

    @property
    def topology(self) -> NodeTopology:
        """What is being played, faults aside."""
        return self._topology

    @contextmanager
    def in_process(self) -> Iterator[None]:
        """Within it, this process's ``pynvml`` sees the machine; one machine at a time.

        The library is put where pynvml would put it, by absolute path, so that libraries with
        different symbols can take turns. At the end hanging calls are let go, NVML is shut down
        however often it was initialised, and pynvml forgets that it ever had a library. Raises
        ``RuntimeError`` where pynvml has one at the start.
        """
        module: Any = pynvml
        if module.nvmlLib is not None:
            raise RuntimeError("pynvml has loaded a library already")
        before = os.environ.get("FAKE_NVML")
        os.environ["FAKE_NVML"] = str(self._file)
        fake = ctypes.CDLL(str(self._library / SONAME))
        _shut_down(fake)  # a call that was let go at the end of another machine may have got in
        module.nvmlLib = fake
        module._nvmlGetFunctionPointer_cache.clear()
        try:
            yield
        finally:
            self.lift()
            _shut_down(fake)
            module.nvmlLib = None
            module._nvmlGetFunctionPointer_cache.clear()
            module._nvmlLib_refcount = 0
            del os.environ["FAKE_NVML"]
            if before is not None:
                os.environ["FAKE_NVML"] = before

    # --- Losing and finding GPUs --------------------------------------------------------------

    def lose(self, index: int) -> None:
        """The GPU has fallen off the bus: every call on it answers GPU_IS_LOST."""
        with self._changing(index) as gpu:
            gpu.lost = True

    def remove(self, index: int) -> None:
        """As :meth:`lose`, and programs that call ``nvmlInit`` from now on do not see it at all."""
        with self._changing(index) as gpu:
            gpu.gone = True

    def restore(self, index: int) -> None:
        """The GPU is back, with all it had; a process that never saw it has to initialise again."""
        with self._changing(index) as gpu:
            gpu.lost = gpu.gone = False

    def reset(self, index: int) -> None:
        """A GPU reset: present, no faults, no processes, energy and volatile errors from 0 again.

        What hangs or fails on this GPU alone is lifted and its links are up; MIG stays as it was.
        """
        with self._changing(index) as gpu:
            self._state[index] = _State(mig=gpu.mig, instances=gpu.instances, millijoules=0)
            self._faults = [fault for fault in self._faults if fault.index != index]
            for number in range(len(self._links[index])):
                self._switch(index, number, up=True)

    def replace(self, topology: NodeTopology) -> None:
        """The node comes up again as another machine; faults of functions are lifted.

        What a running process still holds handles of answers GPU_IS_LOST where it is no more.
        """
        with self._lock:
            self._faults, self._xids = [], []
            self._play(topology)

    # --- Links, events ------------------------------------------------------------------------

    def drop_link(self, index: int, link: int) -> None:
        """The GPU's NVLink of that number is inactive, at both ends where it joins two GPUs."""
        with self._changing(index):
            self._switch(index, link, up=False)

    def xid(self, index: int, number: int) -> None:
        """An Xid event on the GPU, which may be lost."""
        with self._changing(index):
            self._serial += 1
            self._xids.append((self._serial, index, number))

    # --- Functions that misbehave -------------------------------------------------------------

    def hang(self, function: str, index: int | None = None) -> None:
        """Calls of ``function`` (on one GPU, or all) do not return until this is lifted.

        Its version may be left out: ``nvmlDeviceGetMemoryInfo`` stands for ``_v2`` as well. For a
        function of two GPUs ``index`` is the first. Raises ``ValueError`` for a function that the
        fake has not.
        """
        self._fault(function, None, index)

    def fail(self, function: str, code: int, index: int | None = None) -> None:
        """Calls of ``function`` (on one GPU, or all) answer ``code``, an ``NVML_ERROR_…``."""
        self._fault(function, code, index)

    def lift(self, function: str | None = None, index: int | None = None) -> None:
        """Undo :meth:`hang` and :meth:`fail`: of a function, of a GPU, or all."""
        with self._lock:
            self._faults = [
                fault
                for fault in self._faults
                if (function is not None and fault.function != function)
                or (index is not None and fault.index != index)
            ]
            self._write()

    # --- What is measured ---------------------------------------------------------------------

    def processes(
        self, index: int, processes: Sequence[tuple[int, int]], slot: int | None = None
    ) -> None:
        """The compute processes on the GPU, or on the MIG instance in a slot: process id and bytes
        each. :meth:`used` is apart; of an instance it is what its processes use."""
        with self._changing(index) as gpu:
            if slot is None:
                gpu.processes = tuple(processes)
            else:
                gpu.inside[slot] = tuple(processes)

    def used(self, index: int, used: int) -> None:
        """Bytes of its memory in use, the driver's own not counted."""
        with self._changing(index) as gpu:
            if not 0 <= used <= self._gpu(index).memory - _reserved(self._gpu(index)):
                raise ValueError(f"GPU {index} has no {used} bytes to use")
            gpu.used = used

    def utilisation(self, index: int, percent: int) -> None:
        """How busy the GPU is."""
        with self._changing(index) as gpu:
            gpu.busy = percent

    def remapped(self, index: int, pending: bool, failure: bool) -> None:
        """Whether a row remapping waits for a reset, and whether one has failed.

        For GPUs before Ampere ``pending`` is that of page retirement.
        """
        with self._changing(index) as gpu:
            gpu.pending, gpu.failure = pending, failure

    def energy(self, index: int, millijoules: int) -> None:
        """What the energy counter shows now; it goes on counting from there, at 70 W."""
        with self._changing(index) as gpu:
            gpu.millijoules, gpu.since = millijoules, time.monotonic_ns()

    def mig(self, index: int, instances: Sequence[MigInstance | None] | None) -> None:
        """MIG mode on, with these instances in their slots (None is a gap); None: MIG mode off.

        Raises ``ValueError`` for a GPU without MIG, or with too many instances.
        """
        most = generation(self._gpu(index).product).most_instances
        if instances is not None and len(instances) > most:
            raise ValueError(f"GPU {index} can have {most} MIG instances, not {len(instances)}")
        with self._changing(index) as gpu:
            gpu.mig, gpu.instances = instances is not None, tuple(instances or ())

    def recovery_action(self, index: int, word: str) -> None:
        """What the driver says must be done about the GPU: a key of :data:`RECOVERY_ACTIONS`."""
        with self._changing(index) as gpu:
            gpu.recovery = RECOVERY_ACTIONS[word]

    # --- Within -------------------------------------------------------------------------------

    def _play(self, topology: NodeTopology) -> None:
        self._topology = topology
        self._state = {gpu.index: _State(mig=gpu.mig_mode == "enabled") for gpu in topology.gpus}
        self._links = _ends(topology)
        self._write()

    def _gpu(self, index: int) -> Gpu:
        return self._topology.gpus[self._topology.position_of_index[index]]

    @contextmanager
    def _changing(self, index: int) -> Iterator[_State]:
        """The GPU's state under the lock; written afterwards. ``KeyError`` for no such GPU."""
        with self._lock:
            yield self._state[index]
            self._write()

    def _switch(self, index: int, number: int, *, up: bool) -> None:
        link = self._links[index][number]
        link.up = up and link.remote != "unknown"
        if link.other is not None:
            there, its_number = link.other
            self._links[there][its_number].up = link.up

    def _fault(self, function: str, code: int | None, index: int | None) -> None:
        stems = {re.sub(r"(_v\d|WithFlags)$", "", name) for name in symbols()}
        if function not in symbols() | stems:
            raise ValueError(f"the fake has no {function}")
        with self._lock:
            if index is not None:
                self._gpu(index)
            self._faults.append(_Fault(function, code, index))
            self._write()

    def _write(self) -> None:
        """Replace the description; its time is never one that it had before."""
        self._stamp = max(self._stamp + 1, time.time_ns())
        beside = self._file.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in self._lines()))
        os.utime(beside, ns=(self._stamp, self._stamp))
        beside.replace(self._file)

    def _lines(self) -> Iterator[str]:
        yield "driver {} {} {}".format(*DRIVER)
        for gpu in self._topology.gpus:
            yield f"gpu {gpu.index} {gpu.uuid} {address(gpu)} {gpu.product}"
        for gpu in self._topology.gpus:
            yield from self._about(gpu, self._state[gpu.index])
        for link in self._topology.links:
            if link.pcie is not LinkKind.UNKNOWN:
                yield f"class {link.a} {link.b} {link.pcie.name}"
        for serial, index, number in self._xids:
            yield f"xid {serial} {index} {number}"
        for fault in self._faults:
            words = ["hang", fault.function] if fault.code is None else ["fail", fault.function]
            words += [str(part) for part in (fault.code, fault.index) if part is not None]
            yield " ".join(words)

    def _about(self, gpu: Gpu, state: _State) -> Iterator[str]:  # noqa: C901 (a line for each fact)
        model, i = generation(gpu.product), gpu.index
        yield f"memory {i} {gpu.memory} {_reserved(gpu)} {state.used}"
        yield f"utilisation {i} {state.busy} {state.busy // 2}"
        yield f"recovery {i} {state.recovery}"
        if gpu.numa_node is not None:
            yield f"numa {i} {gpu.numa_node}"
        if capability := compute_capability(gpu.product):
            yield f"capability {i} {capability.replace('.', ' ')}"
        if model.coherent:
            yield f"own-numa {i} {2 + 8 * i}"
        if model.energy:
            yield f"energy {i} {state.millijoules} {IDLE_MILLIWATTS} {state.since}"
        if model.ecc:
            yield f"ecc {i} 0 0"
        if model.retired_pages:
            yield f"pages {i} {state.pending:d}"
        if model.remapped_rows:
            yield f"rows {i} 0 0 {state.pending:d} {state.failure:d}"
        if model.fabric:
            yield f"fabric {i} {self._fabric(i)}"
        if model.nvlink_mbps:
            yield f"nvlink-speed {i} {model.nvlink_mbps}"
        for number, link in enumerate(self._links[i]):
            word = "up" if link.up else "down"
            yield f"nvlink {i} {number} {word} {model.nvlink_version} {link.remote}"
        if model.most_instances:
            yield f"mig-mode {i} {state.mig:d} {state.mig:d} {model.most_instances}"
        for slot, instance in enumerate(state.instances):
            if instance is not None:
                whole, compute = instance.slices
                yield (
                    f"mig {i} {slot} {slot + 1} 0 {instance.uuid} {instance.memory} {whole}"
                    f" {compute} {compute * model.multiprocessors} {instance.profile}"
                )
        for pid, used in state.processes:
            yield f"process {i} compute {pid} {used} {NO_INSTANCE} {NO_INSTANCE}"
        for slot, processes in state.inside.items():
            for pid, used in processes:
                yield f"process {i} compute {pid} {used} {slot + 1} 0"
        if state.lost:
            yield f"lost {i}"
        if state.gone:
            yield f"gone {i}"

    def _fabric(self, index: int) -> str:
        """A switched GPU reports a completed fabric even where that ends with the node.

        It then has no cluster: all zeros (meta-pytorch/torchcomms#1385). A PCIe card's state is
        "not supported", and yet the call succeeds (leptonai/gpud#1147).
        """
        fabric = self._topology.fabric
        if fabric is not None:
            return f"{FABRIC_COMPLETED} {fabric.cluster_uuid} {fabric.clique_id}"
        switched = any(link.remote.startswith("switch") for link in self._links[index])
        return f"{FABRIC_COMPLETED if switched else FABRIC_NOT_SUPPORTED} {NO_CLUSTER} 0"


def address(gpu: Gpu) -> str:
    """The PCI address that NVML gives for a GPU, made up where the topology has none."""
    return gpu.pci_bus_id or f"0000:{gpu.index + 1:02x}:00.0"


def _shut_down(fake: ctypes.CDLL) -> None:
    """However often it was initialised."""
    while fake.nvmlShutdown() == pynvml.NVML_SUCCESS:
        pass


def _reserved(gpu: Gpu) -> int:
    return gpu.memory // RESERVED_SHARE // MIB * MIB


def _ends(topology: NodeTopology) -> dict[int, list[_Link]]:
    """The NVLinks of each GPU by number: those of its pairs, those into switches, idle ones."""
    ends: dict[int, list[_Link]] = {gpu.index: [] for gpu in topology.gpus}
    attached = dict.fromkeys(ends, 0)
    where = {gpu.index: address(gpu) for gpu in topology.gpus}
    for link in topology.links:
        if link.via is Via.SWITCH:
            for index in (link.a, link.b):
                attached[index] = max(attached[index], link.nvlinks)
            continue
        for _ in range(link.nvlinks):
            other = None if link.one_sided else (link.b, len(ends[link.b]))
            here = (link.a, len(ends[link.a]))
            ends[link.a].append(_Link(f"gpu {where[link.b]}", other=other))
            if not link.one_sided:
                ends[link.b].append(_Link(f"gpu {where[link.a]}", other=here))
    switches = _switch_addresses(set(where.values()))
    for gpu in topology.gpus:
        mine = ends[gpu.index]
        mine += [_Link(f"switch {switches[k % SWITCHES]}") for k in range(attached[gpu.index])]
        port = nvlink_port(gpu.product)
        idle = max(0, port.links - len(mine)) if port is not None else 0
        mine += [_Link("unknown", up=False) for _ in range(idle)]
    return ends


def _switch_addresses(taken: set[str]) -> list[str]:
    free = (f"0000:{bus:02x}:00.0" for bus in range(FIRST_SWITCH_BUS, 0x100))
    return [each for each in free if each not in taken][:SWITCHES]
