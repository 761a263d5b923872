"""What a policy is in a closed loop: whoever chooses nodes, and what it hears of the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report

if TYPE_CHECKING:
    from benchmarks.promises.apiserver import ApiServer
    from benchmarks.promises.pods import PodEntry
    from benchmarks.promises.scene import Scene


@dataclass(frozen=True, slots=True)
class PublishedReport:
    """A report as it stands in a record: the record's UID, and when the agent looked."""

    report: Report
    record: str
    looked: float


@dataclass(frozen=True, slots=True)
class Pick:
    """The node to try, or None; and why other nodes were refused, by how many."""

    node: str | None
    reasons: Counter[str]


class Policy(Protocol):
    """Who chooses nodes: the extender, or something to compare it with."""

    def start(self, scene: Scene, api: ApiServer) -> None:
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
