"""GPUs that should answer the driver and do not: which, since when, and when they count again.

:class:`MissingGpuTracker` says what is so at this moment. (Health remembers that a GPU was lost
until its reset.) NVIDIA's device plugin asks the driver at each call and fails if such a GPU does
not answer (:mod:`topology.core.allocators.nvidia`).

A GPU that the driver no longer counts stops troubling the plugin once the plugin has looked for
GPUs without finding it. Then nothing is said of it here. The plugin looks for GPUs when it starts,
and also in a container that goes on running: when the kubelet has restarted, and when its
configuration changes. Two things tell that it has looked:

* its container started after the GPU fell silent;
* the kubelet counts no device that is out of order, while it hands the GPU out to nobody. For as
  long as the plugin knows of a GPU, the kubelet counts it as one of the node's devices (in the
  capacity of the Node's status), also when it may not be handed out.

:class:`FlappingGpuTracker` steadies a GPU that falls silent again and again. A GPU that answers
again counts at once the first time. From its second silence within :data:`WITHIN` on it has to
answer for :data:`ANSWERS_FOR` first, and counts as silent until then:

* its node stays closed to pods for whole GPUs, which the device plugin would refuse each time the
  GPU is silent, and
* the record is not written at every look: twice in :data:`ANSWERS_FOR` at most.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from topology.agent.model.observations import CountedDevices, NvmlState, Vitals
from topology.agent.model.recordlimits import MOST_MISSING, NVIDIA
from topology.core.devices import DeviceId, GpuUuid, base_uuid
from topology.core.report import MissingGpu

WITHIN = 600.0  # seconds
ANSWERS_FOR = 30.0  # seconds


class MissingGpuTracker:
    """The missing GPUs of a node. Times are texts (RFC 3339)."""

    def __init__(self, former: Iterable[MissingGpu] = ()) -> None:
        self._missing: Mapping[str, MissingGpu] = {gpu.name: gpu for gpu in former}

    def look(self, state: NvmlState, gone: Collection[GpuUuid], now: str) -> None:
        """Take in what the driver shows; ``gone`` are GPUs that it does not name any more.

        A driver that was opened after a GPU was lost counts the GPU and cannot tell which it is.
        """
        if state.seen is None:
            return
        nameless = () if gone else state.nameless
        lost = [*(v.uuid for v in state.vitals if v.silent), *(f"GPU {n}" for n in nameless)]
        found = [MissingGpu(name, counted=True) for name in lost]
        found += [MissingGpu(uuid, counted=bool(state.nameless)) for uuid in gone]
        self._missing = {
            gpu.name: replace(
                gpu, since=self._missing[gpu.name].since if gpu.name in self._missing else now
            )
            for gpu in sorted(found)
        }

    def report(
        self,
        plugin_started: str,
        offered: Mapping[str, Collection[DeviceId]],
        counted: CountedDevices | None = None,
    ) -> tuple[MissingGpu, ...]:
        """The missing GPUs that trouble the plugin.

        ``plugin_started`` is when the device plugin started, empty if that is not known.
        ``offered`` is what the kubelet hands out from, by resource. ``counted`` is how many devices
        the kubelet has reported to the API server, None if that is not known.
        """
        gpus = {base_uuid(device) for ids in offered.values() for device in ids}
        told = counted.at if counted is not None else ""
        all_in_order = counted is not None and _all_in_order(counted, offered)
        found = []
        for gpu in self._missing.values():
            looked = plugin_started > gpu.since or (all_in_order and told > gpu.since)
            if gpu.counted or gpu.name in gpus or not looked:
                found.append(gpu)
        return tuple(found[:MOST_MISSING])


def _all_in_order(counted: CountedDevices, offered: Mapping[str, Collection[DeviceId]]) -> bool:
    """Whether the kubelet hands out every GPU that it counts, and at least one.

    What it reported to the API server has to agree with what it told us; otherwise one of the two
    is too old. A resource of GPUs that hands out none may have any of NVIDIA's names.
    """
    handed_out = {name: len(ids) for name, ids in offered.items() if ids}
    for name in (*handed_out, *(name for name in counted.devices if name.startswith(NVIDIA))):
        devices = counted.devices.get(name)
        if devices != counted.in_order.get(name) or devices != handed_out.get(name, devices):
            return False
    return bool(handed_out)


class FlappingGpuTracker:
    """When each GPU of a node has fallen silent. Times are in seconds that only run forward."""

    def __init__(self) -> None:
        self._rounds = 0
        # When each GPU fell silent, at most the last two times.
        self._silences: defaultdict[GpuUuid, list[float]] = defaultdict(list)
        # GPUs that count as silent, as they were when they did not answer.
        self._silent: dict[GpuUuid, Vitals] = {}
        # When those of them that answer again began to.
        self._answers_since: dict[GpuUuid, float] = {}

    def steady(self, state: NvmlState, gone: Collection[GpuUuid], now: float) -> NvmlState:
        """What the driver shows, but GPUs are silent whose answers do not count yet.

        ``gone`` are GPUs that the driver does not name any more.
        """
        if state.rounds != self._rounds:
            self._rounds = state.rounds
            silent = {vital.uuid: vital for vital in state.vitals if vital.silent}
            silent |= {uuid: Vitals(uuid, lost=True) for uuid in gone}
            for uuid in silent:
                if uuid not in self._silent or uuid in self._answers_since:
                    recent = [at for at in self._silences[uuid] if now - at < WITHIN]
                    self._silences[uuid] = [*recent[-1:], now]
                self._answers_since.pop(uuid, None)
            for uuid in self._silent.keys() - silent.keys():
                since = self._answers_since.setdefault(uuid, now)
                often = len(self._silences[uuid]) > 1
                if not often or now - since >= ANSWERS_FOR:
                    del self._silent[uuid], self._answers_since[uuid]
            self._silent |= silent
        held = self._silent.keys() & self._answers_since.keys()
        return replace(
            state, vitals=tuple(self._silent[v.uuid] if v.uuid in held else v for v in state.vitals)
        )
