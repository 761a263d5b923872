"""The node agents: they look at their nodes when something happens, and publish late."""

from collections import Counter
from dataclasses import replace

from benchmarks.promises.pods import PublishedReport
from benchmarks.promises.scene import Actor, Scene
from benchmarks.promises.watches import ExtenderWatches, Watches
from topology.core.devices import Mask, NodeName, positions
from topology.core.report import READY, Condition, Health, Report

SILENT = Condition(READY, status=False, reason="KubeletUnavailable")


class Agents(Actor):
    """One agent on each node: what it has heard, when it looks, and what it published last."""

    def __init__(self, scene: Scene, watches: Watches, extender: ExtenderWatches) -> None:
        super().__init__(scene)
        self._watches = watches
        self._extender = extender
        self._looking: set[NodeName] = set()
        self._dead: set[NodeName] = set()
        self._blamed: dict[NodeName, Mask] = dict.fromkeys(scene.nodes, 0)
        self._heard_version: dict[NodeName, int] = dict.fromkeys(scene.nodes, 0)
        self._records: Counter[NodeName] = Counter()
        self.published: dict[NodeName, PublishedReport] = {}
        """What stands in each node's record now."""

    def start(self) -> None:
        """Every agent publishes its node as it is."""
        for name in self._scene.nodes:
            self._publish(name)

    def looked(self, node: NodeName) -> float:
        """When the node's agent looked for the report that stands in the record now."""
        return self.published[node].looked

    def tell(self, node: NodeName, version: int, *, left: bool) -> None:
        """The agent hears in time of a pod's change, and looks where the pod has ``left``."""

        def learn() -> None:
            self._heard_version[node] = version
            if left:
                self.look(node)

        self._watches.deliver(f"agent of {node}", learn)

    def look(self, node: NodeName) -> None:
        """Something has changed on a node: its agent will look, unless it is about to."""
        if node not in self._looking:
            self._looking.add(node)
            late = self._timeline.happens(self._delays.late_share)
            mean = self._delays.late if late else self._delays.look
            self._timeline.about(mean, lambda: self._publish(node))

    def blame(self, node: NodeName, gpus: Mask) -> None:
        """The node's agent calls these GPUs sick from now on, and no others."""
        self._blamed[node] = gpus

    def is_dead(self, node: NodeName) -> bool:
        """Whether the node's agent publishes nothing for now."""
        return node in self._dead

    def die(self, node: NodeName) -> None:
        """The node's agent publishes nothing until it is revived."""
        self._tally.happened["deaths"] += 1
        self._dead.add(node)

    def revive(self, node: NodeName) -> None:
        """The node's agent starts again, and looks."""
        self._dead.discard(node)
        self.look(node)

    def _publish(self, node: NodeName) -> None:
        self._looking.discard(node)
        if node in self._dead:
            return
        before = self.published.get(node)
        recreated = before is not None and self._timeline.happens(self._faults.recreated)
        if recreated:
            self._recreate(node)
        forget = self._timeline.happens(0.5)
        report = self._observed(node, before, forget_ended=forget)
        if not forget and self._delays.look:
            # The report may still show pods that have ended: the agent looks again soon.
            self._timeline.about(1.0, lambda: self.look(node))
        published = PublishedReport(report, str(self._records[node]), self._timeline.now)
        self.published[node] = published
        self._send(node, published)
        if before is not None and not recreated and self._timeline.happens(self._delays.repeated):
            # The report before this one comes once more, as after a broken watch.
            self._send(node, before)

    def _observed(
        self, node: NodeName, before: PublishedReport | None, *, forget_ended: bool
    ) -> Report:
        """What the agent makes of what its kubelet shows.

        A kubelet that does not answer leaves the record as it was, and not Ready. One that shows no
        pods has just started: those of the record that are alive hold their devices all the same.
        """
        kubelet, topology = self._scene.kubelets[node], self._scene.nodes[node]
        found = kubelet.report(forget_ended=forget_ended)
        if before is not None and not kubelet.answers:
            return replace(before.report, sequence=found.sequence, conditions=(SILENT,))
        if before is not None and not kubelet.shows_pods:
            kept = (a for a in before.report.allocations if kubelet.holds(a.pod_uid))
            found = replace(found, allocations=tuple(kept))
        if node in self._scene.by_dra:
            found = replace(found, allocatable=frozenset(), allocations=())
        sick = (topology.gpus[p].uuid for p in positions(self._blamed[node]))
        return replace(
            found,
            pods_version=str(self._heard_version[node]),
            health=tuple(Health(uuid, healthy=False, reason="Xid79") for uuid in sick),
        )

    def _recreate(self, node: NodeName) -> None:
        """Somebody deletes the node's record, and the agent makes a new one."""
        self._tally.happened["recreated"] += 1
        self._records[node] += 1
        self._scene.kubelets[node].forget_sequence()
        # The extender may miss the deletion: then a list shows it the new record.
        if self._timeline.happens(0.5):
            self._extender.tell("records", lambda: self._scene.hearing.records.drop_record(node))

    def _send(self, node: NodeName, published: PublishedReport) -> None:
        topology = self._scene.nodes[node]
        self._extender.tell("records", lambda: self._extender.show(topology, published))
