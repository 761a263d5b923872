"""What every actor of a closed loop works with, and what a policy is: whoever chooses nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from benchmarks.promises.capacity import Capacity
from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.pods import PodEntry, PublishedReport
from benchmarks.promises.tally import Tally
from benchmarks.promises.timeline import Timeline
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import Binding
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
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


class PodStore(Protocol):
    """The API server, as far as policies ask it."""

    version: int
    pods: dict[PodUid, PodEntry]

    def find(self, name: str) -> PodEntry | None:
        """The pod of this name, if there is one."""
        ...

    def changed_since(self, uid: PodUid, node: NodeName) -> bool:
        """Whether a kubelet or a GPU of the node has changed since the pod was decided."""
        ...

    def commit(self, entry: PodEntry, binding: Binding) -> bool:
        """Write a Binding: nodeName and annotations at once. False where it cannot be any more."""
        ...

    def write_bind(self, entry: PodEntry, node: str, promise: str) -> None:
        """Bind without any fault; ``promise`` is what a pod with constraints was promised."""
        ...


@dataclass(frozen=True, slots=True)
class Pick:
    """The node to try, or None; and why other nodes were refused, by how many."""

    node: str | None
    reasons: Counter[str]


class Policy(Protocol):
    """Who chooses nodes: the extender, or something to compare it with."""

    def start(self, scene: Scene, api: PodStore) -> None:
        """The closed loop begins."""
        ...

    def pick(self, pod: Pod, offered: list[str]) -> Pick:
        """Choose among the nodes on which the pod fits by count."""
        ...

    def bind(self, entry: PodEntry, node: str) -> str | None:
        """Write the bind at the API server; the reason where it is refused."""
        ...

    def put_pod(self, record: PodRecord) -> None:
        """News of a pod."""
        ...

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """A pod is gone from the API server, as of this resourceVersion."""
        ...

    def put_report(self, topology: NodeTopology, published: PublishedReport) -> None:
        """News of a node."""
        ...

    def drop_record(self, name: NodeName) -> None:
        """A node's record is gone."""
        ...

    def watch_heard(self, watch: str) -> None:
        """The watch on ``pods`` or ``records`` has brought something, if only a bookmark."""
        ...

    def watch_failing(self, watch: str, *, failing: bool) -> None:
        """The watch is broken and cannot be opened again; or it can."""
        ...

    def restart(self) -> None:
        """Forget everything."""
        ...
