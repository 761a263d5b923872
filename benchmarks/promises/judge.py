"""Which promises count as broken."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.promises.faults import SLACK, STALE_AFTER
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.policy import PublishedReport
from benchmarks.promises.scene import Scene
from topology.core.devices import Mask, NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import Verdict, satisfies


class Judge:
    """Compares what a pod was promised with the GPUs that its kubelet gave it."""

    def __init__(self, scene: Scene) -> None:
        self._timeline = scene.timeline
        self._nodes = scene.nodes
        self._tally = scene.tally
        self._foreign: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._disturbed: dict[NodeName, float] = {}
        self._unsettled: dict[NodeName, float] = {}
        self._views: dict[PodUid, float] = {}
        self._healed: dict[NodeName, float] = {}

    def disturbed(self, node: NodeName) -> None:
        """A kubelet has ended, or a GPU has fallen sick, just now."""
        self._disturbed[node] = self._unsettled[node] = self._timeline.now

    def unsettled(self, node: NodeName) -> None:
        """A kubelet is on its way back just now: its plugin may be missing still.

        Its record says so, and promises nothing; pods that ask for no promise go there.
        """
        self._unsettled[node] = self._timeline.now

    def healed(self, node: NodeName) -> None:
        """A GPU has healed just now. What is guaranteed has to hold all the same."""
        self._healed[node] = self._timeline.now

    def placed(self, entry: PodEntry, verdict: str, looked: float) -> None:
        """A required pod was bound with a verdict; the node's agent looked last at that time."""
        tally = self._tally
        entry.promise = verdict
        tally.required_placed += 1
        tally.promised[verdict] += 1
        tally.stale += self._timeline.now - looked > STALE_AFTER + SLACK
        tally.blind += _blind(entry)

    def changed_since(self, uid: PodUid, node: NodeName) -> bool:
        """Whether a kubelet or a GPU has changed on the node since the report on which the pod was
        decided. A report that shows the pod first may then show another node than it met."""
        when = max(found.get(node, 0.0) for found in (self._unsettled, self._healed))
        return when > self._views.get(uid, float("inf"))

    def admitted(self, entry: PodEntry, node: NodeName, held: tuple[int, ...]) -> None:
        """The kubelet has given a pod these GPUs."""
        self._judge(entry, node, held)
        if entry.job.foreign:
            self._foreign[node].append(entry)

    def refused(self, entry: PodEntry, node: NodeName, reason: str) -> None:
        """The kubelet has refused a pod."""
        if not entry.gone:
            when = self._disturbed if entry.promise else self._unsettled
            unreported = self._unreported(entry, node, when)
            tally = self._tally
            (tally.unreported_refusals if unreported else tally.kubelet_refusals)[reason] += 1
        self._judge(entry, node, None)

    def _unreported(self, entry: PodEntry, node: NodeName, when: Mapping[NodeName, float]) -> bool:
        """Whether something happened on the node after the last report that was known then."""
        return entry.view is not None and when.get(node, float("-inf")) > entry.view.looked

    def _judge(self, entry: PodEntry, node: NodeName, held: tuple[int, ...] | None) -> None:
        disturbed = self._unreported(entry, node, self._disturbed)
        if entry.view is not None:
            self._views[entry.record.uid] = entry.view.looked
        if entry.promise is None or entry.job.foreign or entry.gone:
            return
        mask = sum(1 << p for p in held or ())
        shape = self._nodes[node].shape
        sick = _known_sick(self._nodes[node], entry.view)
        if held is not None and satisfies(shape, entry.request.constraints, mask, sick=sick):
            return
        tally = self._tally
        expected = entry.promise == Verdict.EXPECTED.value
        if disturbed or (expected and self._unreported(entry, node, self._healed)):
            tally.unreported[entry.promise] += 1
            return
        foreign = [other for other in self._foreign[node] if other.seen > entry.decided]
        if not foreign:
            tally.broken[entry.promise] += 1
            tally.broken_jobs.append(f"{entry.record.name} on {node}: {held}")
        elif all(_should_have_known(other, entry) for other in foreign):
            tally.unexcused[entry.promise] += 1
        else:
            tally.excused[entry.promise] += 1


def _known_sick(topology: NodeTopology, view: PublishedReport | None) -> Mask:
    """The GPUs that the node's agent called sick, as far as the extender knew."""
    sick = [h.uuid for h in view.report.health if not h.healthy] if view is not None else ()
    return sum(1 << topology.position_of_uuid[uuid] for uuid in sick)


def _should_have_known(other: PodEntry, entry: PodEntry) -> bool:
    """Whether the watch on pods had been failing for long when the promise was made."""
    return _blind(entry) and other.bound < entry.decided


def _blind(entry: PodEntry) -> bool:
    """Whether the pod was promised something while a watch had been failing for long."""
    return entry.blind_for > SLACK + 1
