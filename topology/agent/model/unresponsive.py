"""The GPUs that should answer the driver and do not, since when, and when they count again.

:class:`MissingGpuTracker` has the present state. (Health remembers a lost GPU until its reset.)
NVIDIA's device plugin calls the driver at each request and fails if such a GPU does not answer
(:mod:`topology.core.allocators.nvidia`).

A GPU that the driver no longer counts stops troubling the plugin once the plugin has enumerated the
GPUs without finding it. Then this module no longer lists it. The plugin enumerates the GPUs when it
starts. It also does so in a running container, when the kubelet has restarted and when its
configuration changes. Two signs show that it has done so:

* its container started after the GPU fell silent;
* the kubelet counts no unhealthy device, and does not hand the GPU out. For as long as the plugin
  knows of a GPU, the kubelet counts it as one of the node's devices (in the capacity of the Node's
  status), even if it may not be handed out.

:class:`FlappingGpuTracker` steadies a GPU that falls silent again and again. After its first
silence a GPU counts as soon as it answers again. From its second silence within :data:`WITHIN` on
it has to answer for :data:`ANSWERS_FOR` first, and counts as silent until then. This has two
effects:

* the node stays closed to pods for whole GPUs, which the device plugin would refuse each time the
  GPU is silent;
* the record is not written at every reading, but at most twice in :data:`ANSWERS_FOR`.
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
        """Store what the driver shows; ``gone`` are GPUs that it does not name any more.

        A driver that was opened after a GPU was lost counts the GPU but does not know its UUID.
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
        """Return the missing GPUs that trouble the plugin.

        ``plugin_started`` is when the device plugin started, empty if that is not known.
        ``offered`` are the devices that the kubelet hands out from, by resource. ``counted`` is how
        many devices the kubelet has reported to the API server, None if that is not known.
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
    """Check whether the kubelet hands out every GPU that it counts, and at least one.

    The kubelet's report to the API server has to agree with its answer to the agent. Otherwise one
    of the two is too old. A resource of GPUs that hands out none may have any of NVIDIA's names.
    """
    handed_out = {name: len(ids) for name, ids in offered.items() if ids}
    for name in (*handed_out, *(name for name in counted.devices if name.startswith(NVIDIA))):
        devices = counted.devices.get(name)
        if devices != counted.in_order.get(name) or devices != handed_out.get(name, devices):
            return False
    return bool(handed_out)


class FlappingGpuTracker:
    """The times at which each GPU of a node fell silent, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._rounds = 0
        # The last two times, at most, at which each GPU fell silent.
        self._silences: defaultdict[GpuUuid, list[float]] = defaultdict(list)
        # GPUs that count as silent, with their vitals from when they did not answer.
        self._silent: dict[GpuUuid, Vitals] = {}
        # When those of them that answer again began to answer.
        self._answers_since: dict[GpuUuid, float] = {}

    def steady(self, state: NvmlState, gone: Collection[GpuUuid], now: float) -> NvmlState:
        """Return what the driver shows, with GPUs as silent whose answers do not count yet.

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
