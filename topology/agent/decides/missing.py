"""Which GPUs ought to answer the driver and do not, and since when.

Health remembers that a GPU was lost until its reset. What is said here is so at this moment, for
NVIDIA's device plugin looks at the driver at each call and fails over such a GPU
(:mod:`topology.core.allocators.outage`).

A GPU that the driver does not count any more troubles the plugin no longer once that has looked for
GPUs without finding it. Then nothing is said of it here. The plugin looks for GPUs when it starts,
and also in a container that goes on running: when the kubelet has restarted, and when its
configuration changes. Two things tell that it has:

* its container started after the GPU fell silent;
* the kubelet counts no device that is out of order, while it hands the GPU out to nobody. For as
  long as the plugin knows of a GPU, the kubelet counts it as one of the node's devices (in the
  capacity of the Node's status), also when it may not be handed out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from topology.agent.decides.limits import MOST_MISSING
from topology.agent.decides.observed import CountedDevices, NvmlState
from topology.core.devices import DeviceId, GpuUuid, base_uuid
from topology.core.report import MissingGpu

NVIDIA = "nvidia.com/"


class MissingBook:
    """The missing GPUs of a node. Times are given as text (RFC 3339)."""

    def __init__(self, former: Iterable[MissingGpu] = ()) -> None:
        self._missing: Mapping[str, MissingGpu] = {gpu.name: gpu for gpu in former}

    def look(self, state: NvmlState, gone: Collection[GpuUuid], now: str) -> None:
        """Take in what the driver shows; ``gone`` are GPUs that it does not name any more.

        A driver that was opened after a GPU was lost counts it and cannot tell which one it is.
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
        """What there is to say of them.

        ``plugin_started`` is when the device plugin did, empty where that is not known; ``offered``
        is what the kubelet hands out from, by resource; ``counted`` is how many devices the kubelet
        has told the API server of, None where that is not known.
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
    """Whether the kubelet hands out every GPU that it counts, and there are some.

    What it told the API server has to agree with what it told us; else one of both is too old. A
    resource of GPUs of which it hands out none has a name that we do not know: any of NVIDIA's.
    """
    handed_out = {name: len(ids) for name, ids in offered.items() if ids}
    for name in (*handed_out, *(name for name in counted.devices if name.startswith(NVIDIA))):
        devices = counted.devices.get(name)
        if devices != counted.in_order.get(name) or devices != handed_out.get(name, devices):
            return False
    return bool(handed_out)
