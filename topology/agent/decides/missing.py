"""Which GPUs ought to answer the driver and do not, and since when.

Health remembers that a GPU was lost until its reset. What is said here is so at this moment, for
NVIDIA's device plugin looks at the driver at each call and fails over such a GPU
(:mod:`topology.core.allocators.outage`).

A GPU that the driver does not count any more troubles the plugin no longer once that has started
anew without it. Then nothing is said of it here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from topology.agent.decides.limits import MOST_MISSING
from topology.agent.decides.observed import NvmlState
from topology.core.devices import GpuUuid
from topology.core.report import MissingGpu


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
        lost = [*(v.uuid for v in state.vitals if v.lost), *(f"GPU {n}" for n in nameless)]
        found = [MissingGpu(name, counted=True) for name in lost]
        found += [MissingGpu(uuid, counted=bool(state.nameless)) for uuid in gone]
        self._missing = {
            gpu.name: replace(
                gpu, since=self._missing[gpu.name].since if gpu.name in self._missing else now
            )
            for gpu in sorted(found)
        }

    def report(self, plugin_started: str, offered: Collection[str]) -> tuple[MissingGpu, ...]:
        """What there is to say of them.

        ``plugin_started`` is when the device plugin did, empty where that is not known; ``offered``
        are the GPUs that the kubelet hands out from.
        """
        found = [
            gpu
            for gpu in self._missing.values()
            if gpu.counted or gpu.name in offered or not plugin_started > gpu.since
        ]
        return tuple(found[:MOST_MISSING])
