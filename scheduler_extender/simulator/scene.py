"""What the actors of a simulated cluster share: time, chance, nodes, tallies, and an observer."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.simulator.clock import Clock
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.verification import Misprediction
from scheduler_extender.verbs import Binding
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.emulation import EmulatedKubelet


@dataclass(slots=True)
class Tally:
    """Counts of events. Promises are counted by verdict."""

    placed: int = 0
    foreign: int = 0  # pods that others bound, past kube-scheduler
    required: int = 0  # pods with constraints
    required_placed: int = 0
    placed_by_kind: Counter[str] = field(default_factory=Counter)
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    promised: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    # Promises broken by a pod that others bound and that the extender had not seen yet; and the
    # same if the watch had been failing for so long that the extender should have stopped
    # promising.
    excused: Counter[str] = field(default_factory=Counter)
    unexcused: Counter[str] = field(default_factory=Counter)
    # Promises broken after a kubelet's restart, or a change of a GPU's health, that no report had
    # shown the extender when it decided.
    unacknowledged: Counter[str] = field(default_factory=Counter)
    # By reason: pods that a kubelet refused without such an event, whether promised anything or
    # not.
    kubelet_refusals: Counter[str] = field(default_factory=Counter)
    stale: int = 0  # pods with constraints placed on nodes whose agent was dead
    stale_watch: int = 0  # the same while a watch had been failing for long
    happened: Counter[str] = field(default_factory=Counter)  # faults
    claimed: int = 0  # binds of pods whose claims had devices of a node with DRA
    vetoes: int = 0  # of these, refused because of the devices
    gang_binds: int = 0  # of members of gangs
    gang_refusals: int = 0  # of these, refused
    group_members: int = 0
    split_groups: int = 0  # members that were bound outside the domain of their group
    whole_groups: int = 0  # groups of which all members ran at one time
    # Admissions after which the pods on a shared GPU use more memory than it has. Those beside pods
    # that others bound, or after an event that no report had shown, do not count.
    overcommitted: int = 0
    # By kind: mispredictions about pods that saw no restart and no sick GPU.
    mispredictions: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # nodes whose evaluation failed
    broken_jobs: list[str] = field(default_factory=list)


class Capacity:
    """The devices of each node, and how many are taken.

    Each share of a shared GPU counts as one.
    """

    def __init__(self, kubelets: Mapping[NodeName, EmulatedKubelet]) -> None:
        self._there = {str(name): len(kubelet.free()) for name, kubelet in kubelets.items()}
        self._taken: Counter[str] = Counter()
        self._closed: set[str] = set()

    def there(self, node: str) -> int:
        """Return how many devices a node has, taken or not."""
        return self._there[node]

    def take(self, node: str, count: int) -> None:
        """Count a pod's devices as taken."""
        self._taken[node] += count

    def give_back(self, node: str, count: int) -> None:
        """Count a pod's devices as free again."""
        self._taken[node] -= count

    def close(self, node: str) -> None:
        """Record that the node reports no devices at all."""
        self._closed.add(node)

    def open(self, node: str) -> None:
        """Record that the node's devices are back."""
        self._closed.discard(node)

    def fitting(self, count: int) -> list[str]:
        """Return the nodes that have so many devices left, in the order of the fleet."""
        return [
            node
            for node, there in self._there.items()
            if node not in self._closed and self._taken[node] + count <= there
        ]

    def used_fraction(self, node: str) -> float:
        """Return the fraction of a node's devices that is taken, 0 to 1."""
        return self._taken[node] / self._there[node]


@dataclass(frozen=True, slots=True)
class Hearing:
    """Where events reach the extender that runs now."""

    cache: Cache
    records: DraNodes
    heard: dict[str, float] = field(default_factory=dict)  # when each watch delivered something
    failing: dict[str, float] = field(default_factory=dict)  # since when watches are broken


class Observer:
    """An observer of the simulation.

    Each method is called when its event happens. This one ignores all.
    """

    def placed(self, entry: PodEntry, binding: Binding, looked: float) -> None:
        """Note that our bind was written; the node's agent looked last at ``looked``."""

    def bound(self, entry: PodEntry) -> None:
        """Note that a pod is bound, by whichever scheduler."""

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        """Note that the kubelet has given a pod these GPUs."""

    def refused(self, entry: PodEntry, reason: str) -> None:
        """Note that the kubelet has refused a pod."""

    def released(self, entry: PodEntry) -> None:
        """Note that the kubelet has taken back a pod's devices."""

    def disturbed(self, node: NodeName) -> None:
        """Note that a kubelet has ended, or that a GPU has become sick."""

    def unsettled(self, node: NodeName) -> None:
        """Note that a GPU has healed or a kubelet is starting.

        The plugin of that kubelet may still be missing.
        """

    def mispredicted(self, misprediction: Misprediction) -> None:
        """Note a misprediction that the extender's verification has found."""


@dataclass(slots=True)
class Scene:
    """What all actors share: time, nodes, the extender's watches, faults, and the tally."""

    clock: Clock
    nodes: Mapping[NodeName, NodeTopology]
    kubelets: Mapping[NodeName, EmulatedKubelet]  # they know what every node really holds
    delays: Delays
    faults: Faults
    dra_nodes: Collection[NodeName] = ()  # nodes without a device plugin
    observer: Observer = field(default_factory=Observer)
    tally: Tally = field(default_factory=Tally)
    capacity: Capacity = field(init=False)
    hearing: Hearing = field(init=False)  # replaced each time that the extender starts

    def __post_init__(self) -> None:
        self.capacity = Capacity(self.kubelets)


class Actor:
    """An actor, with the parts of the scene as attributes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._clock = scene.clock
        self._capacity = scene.capacity
        self._delays = scene.delays
        self._faults = scene.faults
        self._tally = scene.tally

    @property
    def _observer(self) -> Observer:
        return self._scene.observer
