"""What every actor of a closed loop works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.promises.capacity import Capacity
from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.policy import Policy
from benchmarks.promises.tally import Tally
from benchmarks.promises.timeline import Timeline
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.emulation import EmulatedKubelet


@dataclass(frozen=True, slots=True)
class Scene:
    """The time, the nodes, who chooses among them, what goes wrong, and what is counted.

    ``kubelets`` are the emulated ones, which know what every node really holds.
    """

    timeline: Timeline
    nodes: Mapping[NodeName, NodeTopology]
    kubelets: Mapping[NodeName, EmulatedKubelet]
    capacity: Capacity
    policy: Policy
    delays: Delays
    faults: Faults
    tally: Tally
