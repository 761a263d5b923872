"""Which promises count as broken."""

from __future__ import annotations

from benchmarks.promises.faults import SLACK, STALE_AFTER
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import Scene
from topology.core.devices import NodeName
from topology.core.placement import satisfies


class Judge:
    """Compares what a pod was promised with the GPUs that its kubelet gave it."""

    def __init__(self, scene: Scene) -> None:
        self._timeline = scene.timeline
        self._nodes = scene.nodes
        self._tally = scene.tally
        self._foreign: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}

    def placed(self, entry: PodEntry, verdict: str, looked: float) -> None:
        """A required pod was bound with a verdict; the node's agent looked last at that time."""
        tally = self._tally
        entry.promise = verdict
        tally.required_placed += 1
        tally.promised[verdict] += 1
        tally.stale += self._timeline.now - looked > STALE_AFTER + SLACK
        tally.blind += _blind(entry)

    def admitted(self, entry: PodEntry, node: NodeName, held: tuple[int, ...]) -> None:
        """The kubelet has given a pod these GPUs."""
        self._judge(entry, node, held)
        if entry.job.foreign:
            self._foreign[node].append(entry)

    def refused(self, entry: PodEntry, node: NodeName) -> None:
        """The kubelet has refused a pod."""
        self._judge(entry, node, None)

    def _judge(self, entry: PodEntry, node: NodeName, held: tuple[int, ...] | None) -> None:
        if entry.promise is None or entry.job.foreign or entry.gone:
            return
        mask = sum(1 << p for p in held or ())
        shape = self._nodes[node].shape
        if held is not None and satisfies(shape, entry.request.constraints, mask):
            return
        tally = self._tally
        foreign = [other for other in self._foreign[node] if other.seen > entry.decided]
        if not foreign:
            tally.broken[entry.promise] += 1
            tally.broken_jobs.append(f"{entry.record.name} on {node}: {held}")
        elif all(_should_have_known(other, entry) for other in foreign):
            tally.unexcused[entry.promise] += 1
        else:
            tally.excused[entry.promise] += 1


def _should_have_known(other: PodEntry, entry: PodEntry) -> bool:
    """Whether the watch on pods had been failing for long when the promise was made."""
    return _blind(entry) and other.bound < entry.decided


def _blind(entry: PodEntry) -> bool:
    """Whether the pod was promised something while a watch had been failing for long."""
    return entry.blind_for > SLACK + 1
