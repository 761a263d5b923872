"""GPUs that fall silent again and again: after a while of answers they count as answering again.

A GPU that answers again counts at once the first time. From its second silence within
:data:`WITHIN` on it has to answer for :data:`ANSWERS_FOR` first, and counts as silent until then:

* its node stays closed to pods for whole GPUs, which the device plugin would refuse each time the
  GPU is silent, and
* the record is not written at every look: twice in :data:`ANSWERS_FOR` at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from topology.agent.decides.observed import NvmlState, Vitals
from topology.core.devices import GpuUuid

WITHIN = 600.0
ANSWERS_FOR = 30.0
"""Seconds, both."""


class FlappingBook:
    """When each GPU of a node has fallen silent. Times are in seconds that only run forward."""

    def __init__(self) -> None:
        self._rounds = 0
        self._silences: defaultdict[GpuUuid, list[float]] = defaultdict(list)
        """When it fell silent, the last two times at most."""
        self._silent: dict[GpuUuid, Vitals] = {}
        """GPUs that count as silent, as they were when they did not answer."""
        self._answers_since: dict[GpuUuid, float] = {}
        """Those of them that answer."""

    def steady(self, state: NvmlState, gone: Collection[GpuUuid], now: float) -> NvmlState:
        """What the driver shows, with the GPUs silent whose answers do not count yet.

        ``gone`` are GPUs that the driver does not name any more.
        """
        if state.rounds != self._rounds:
            self._rounds = state.rounds
            self._look(state, gone, now)
        held = self._silent.keys() & self._answers_since.keys()
        return replace(
            state, vitals=tuple(self._silent[v.uuid] if v.uuid in held else v for v in state.vitals)
        )

    def _look(self, state: NvmlState, gone: Collection[GpuUuid], now: float) -> None:
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
