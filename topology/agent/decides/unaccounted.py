"""Use of a GPU that no pod holds: somebody computes there whom the kubelet does not know.

A process may take a moment to go after its pod has. So a GPU counts as used by nobody's pod only
after several looks in a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from topology.agent.decides.observed import Vitals
from topology.core.devices import MIB, GpuUuid

USED_MEMORY = 256 * MIB
"""Memory in use on a GPU that no pod holds, above which somebody must be computing there."""
LOOKS = 3
"""Looks in a row with use that no pod accounts for, until it is said."""


class UnaccountedUse:
    """Counts, for each GPU, the looks in a row that found use by no pod."""

    def __init__(self) -> None:
        self._looks: defaultdict[GpuUuid, int] = defaultdict(int)

    def look(self, vitals: Iterable[Vitals], accounted: Collection[str], *, news_due: bool) -> None:
        """Take in a look. ``accounted`` are GPUs that a pod holds, or that are split by MIG.

        With ``news_due`` nothing is counted: the use may be of a pod that comes or goes.
        """
        for vital in vitals:
            busy = bool(vital.processes) or (vital.memory_used or 0) > USED_MEMORY
            if not busy or vital.uuid in accounted:
                self._looks.pop(vital.uuid, None)
            elif not news_due:
                self._looks[vital.uuid] += 1

    def forget(self) -> None:
        """Count anew: it cannot be told which GPUs are held."""
        self._looks.clear()

    def gpus(self) -> frozenset[GpuUuid]:
        """The GPUs that somebody uses whom no pod accounts for."""
        return frozenset(uuid for uuid, looks in self._looks.items() if looks >= LOOKS)
