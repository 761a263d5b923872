"""What every actor of a closed loop works with: virtual time, chance, and the nodes."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.tally import Tally
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.state.cluster.feed import Feed
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.emulation import EmulatedKubelet

Event = Callable[[], None]


class Timeline:
    """Events in the order of their times; of equal times, the one that was entered first.

    Every actor draws from the same ``rng``, so the seed and the order of the draws decide a play.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._number = 0

    def run(self) -> None:
        """Let everything happen, until nothing is left."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def at(self, when: float, event: Event) -> None:
        """Let something happen at a time, in seconds from the start."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def after(self, seconds: float, event: Event) -> None:
        """Let something happen so many seconds from now."""
        self.at(self.now + seconds, event)

    def about(self, mean: float, event: Event) -> None:
        """Let something happen after a time that is drawn; see :meth:`drawn`."""
        self.at(self.now + self.drawn(mean), event)

    def drawn(self, mean: float) -> float:
        """Seconds from an exponential distribution with this mean; a mean of 0 draws nothing."""
        return self.rng.expovariate(1 / mean) if mean else 0.0

    def happens(self, share: float) -> bool:
        """Draw once; true with a probability of ``share``."""
        return self.rng.random() < share


class Capacity:
    """Devices taken and there, node by node; a GPU that is shared counts once for each share."""

    def __init__(self, nodes: Iterable[NodeTopology]) -> None:
        self._there = {str(node.name): _units(node) * node.resources[0].replicas for node in nodes}
        self._taken: Counter[str] = Counter()
        self._closed: set[str] = set()

    def there(self, node: str) -> int:
        """How many devices a node has, taken or not."""
        return self._there[node]

    def take(self, node: str, count: int) -> None:
        """A pod counts on a node from now on."""
        self._taken[node] += count

    def give_back(self, node: str, count: int) -> None:
        """A pod counts there no more."""
        self._taken[node] -= count

    def close(self, node: str) -> None:
        """The node says that it has no devices at all."""
        self._closed.add(node)

    def open(self, node: str) -> None:
        """The node says that its devices are back."""
        self._closed.discard(node)

    def fits(self, node: str, count: int) -> bool:
        """Whether so many devices of a plugin are left."""
        return node not in self._closed and self._taken[node] + count <= self._there[node]

    def fitting(self, count: int) -> list[str]:
        """The nodes that have so many devices left, in the order of the fleet."""
        return [node for node in self._there if self.fits(node, count)]

    def used_share(self, node: str) -> float:
        """The share of a node's devices that is taken, 0 to 1."""
        return self._taken[node] / self._there[node]


def _units(node: NodeTopology) -> int:
    """GPUs, or the MIG instances that the node's first resource stands for."""
    served = node.resources[0]
    if served.strategy != "mig":
        return len(node.gpus)
    _, by_profile, wanted = served.name.partition("/mig-")
    parts = [part for gpu in node.gpus for part in gpu.mig_instances]
    return sum(not by_profile or part.profile == wanted for part in parts)


@dataclass(frozen=True, slots=True)
class Hearing:
    """Where news reach the extender that runs now."""

    feed: Feed
    records: DraNodes
    sinks: Mapping[str, Any]  # for the objects of DRA, by kind
    heard: dict[str, float] = field(default_factory=dict)  # when each watch brought something
    failing: dict[str, float] = field(default_factory=dict)  # since when which watches are broken


@dataclass(slots=True)
class Scene:
    """The time, the nodes, what the extender hears, what goes wrong, and what is counted."""

    timeline: Timeline
    nodes: Mapping[NodeName, NodeTopology]
    kubelets: Mapping[NodeName, EmulatedKubelet]  # they know what every node really holds
    capacity: Capacity
    delays: Delays
    faults: Faults
    tally: Tally
    by_dra: Collection[NodeName] = ()  # nodes without a device plugin
    hearing: Hearing = field(init=False)  # another one each time that the extender starts


class Actor:
    """Has the parts of the scene at hand."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._timeline = scene.timeline
        self._capacity = scene.capacity
        self._delays = scene.delays
        self._faults = scene.faults
        self._tally = scene.tally
