"""The node's hardware over one boot: looked at anew where the driver shows something new.

In one boot nothing is forgotten. A GPU that was there and is gone is lost, not absent; a link that
has dropped does not count again. What the agent before this one published is where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from topology.agent.decides import limits
from topology.agent.decides.hardware import keep_lost, plugins_doubt, topology_of
from topology.agent.decides.observed import NvmlState, SeenNode, Unseen
from topology.agent.decides.pcitree import PciTree
from topology.core.devices import GpuUuid, NodeName
from topology.core.graph import NodeTopology, TopologyError

Down = Mapping[GpuUuid, frozenset[int]]
"""Links that do not count, whatever they show now: NVML's numbers by GPU."""


class HardwareBook:
    """What is known of one node's hardware."""

    def __init__(self, node: NodeName) -> None:
        self._node = node
        self._looked_at: tuple[SeenNode, Down] | None = None
        self.topology: NodeTopology | None = None
        """The hardware, without its allocator's facts; None before anybody has seen it."""
        self.unseen: tuple[Unseen, ...] = ()
        """What of it could not be had, or does not fit into a record."""
        self.contradiction = ""
        """Why the last look makes no topology; empty where it does."""
        self.doubt = ""
        """Why the device plugin sees other links than the record has; empty where it does not."""

    @property
    def looked(self) -> bool:
        """Whether the driver has been looked at; False where ``topology`` is only remembered."""
        return self._looked_at is not None

    @property
    def expected_gpus(self) -> int | None:
        """How many GPUs the driver ought to show; None before the first look."""
        return len(self.topology.gpus) if self.looked and self.topology is not None else None

    def remember(self, topology: NodeTopology) -> None:
        """Take over what the agent before this one has published in the same boot."""
        self.topology = topology

    def is_news(self, seen: SeenNode, down: Down) -> bool:
        """Whether this differs from what was looked at last."""
        return self._looked_at != (seen, down)

    def look(self, seen: SeenNode, down: Down, pci: PciTree) -> TopologyError | None:
        """Take in what the driver shows; the error where it contradicts itself.

        Then the topology stays as it was.
        """
        self._looked_at = (seen, down)
        self.contradiction, self.doubt = "", ""
        try:
            found, unseen = topology_of(self._node, seen, pci, down)
            self.topology, left_out = limits.hardware(keep_lost(found, self.topology))
            self.unseen = (*unseen, *left_out)
            self.doubt = plugins_doubt(seen, self.topology)
        except TopologyError as error:
            self.contradiction = f"the driver contradicts itself: {error}"
            self.unseen = (Unseen("topology", self.contradiction),)
            return error
        return None

    def gone(self, state: NvmlState) -> list[GpuUuid]:
        """GPUs that were there in this boot and are not even counted by the driver any more."""
        seen = state.seen.gpus if state.seen is not None else ()
        here = {gpu.uuid for gpu in seen} | {vital.uuid for vital in state.vitals}
        return [g.uuid for g in self.topology.gpus if g.uuid not in here] if self.topology else []
