"""The node's hardware over one boot: looked at anew where the driver shows something new.

In one boot nothing is forgotten. A GPU that was there and is gone is lost, not absent; a link that
has dropped does not count again. What the agent before this one published is where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topology.agent.decides import limits
from topology.agent.decides.hardware import keep_lost, plugins_doubt, topology_of
from topology.agent.decides.observed import NvmlState, SeenNode, Unseen
from topology.agent.decides.pcitree import PciTree
from topology.core.devices import GpuUuid, NodeName
from topology.core.graph import NodeTopology, TopologyError

Down = Mapping[GpuUuid, frozenset[int]]
"""Links that do not count, whatever they show now: NVML's numbers by GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What is known of a node's hardware at one moment."""

    topology: NodeTopology | None = None
    """Without its allocator's facts; None before anybody has seen the node."""
    looked: bool = False
    """Whether the driver has been looked at; False where ``topology`` is only remembered."""
    unseen: tuple[Unseen, ...] = ()
    """What of it could not be had, or does not fit into a record."""
    contradiction: str = ""
    """Why the last look makes no topology; empty where it does."""
    doubt: str = ""
    """Why the device plugin sees other links than the record has; empty where it does not."""

    @property
    def expected_gpus(self) -> int | None:
        """How many GPUs the driver ought to show; None before the first look."""
        return len(self.topology.gpus) if self.looked and self.topology is not None else None


class HardwareBook:
    """Keeps what is known of one node's hardware."""

    def __init__(self, node: NodeName) -> None:
        self._node = node
        self._looked_at: tuple[SeenNode, Down] | None = None
        self.hardware = Hardware()

    def remember(self, topology: NodeTopology) -> None:
        """Take over what the agent before this one has published in the same boot."""
        self.hardware = Hardware(topology=topology)

    def is_news(self, seen: SeenNode, down: Down) -> bool:
        """Whether this differs from what was looked at last."""
        return self._looked_at != (seen, down)

    def look(self, seen: SeenNode, down: Down, pci: PciTree) -> TopologyError | None:
        """Take in what the driver shows; the error where it contradicts itself.

        Then the topology stays as it was.
        """
        self._looked_at = (seen, down)
        former = self.hardware.topology
        try:
            found, unseen = topology_of(self._node, seen, pci, down)
            topology, left_out = limits.hardware(keep_lost(found, former))
            doubt = plugins_doubt(seen, topology)
        except TopologyError as error:
            contradiction = f"the driver contradicts itself: {error}"
            self.hardware = Hardware(
                topology=former,
                looked=True,
                unseen=(Unseen("topology", contradiction),),
                contradiction=contradiction,
            )
            return error
        self.hardware = Hardware(
            topology=topology, looked=True, unseen=(*unseen, *left_out), doubt=doubt
        )
        return None

    def gone(self, state: NvmlState) -> list[GpuUuid]:
        """GPUs that were there in this boot and are not even counted by the driver any more."""
        known = self.hardware.topology.gpus if self.hardware.topology is not None else ()
        seen = state.seen.gpus if state.seen is not None else ()
        here = {gpu.uuid for gpu in seen} | {vital.uuid for vital in state.vitals}
        return [gpu.uuid for gpu in known if gpu.uuid not in here]
