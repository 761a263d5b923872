"""The kubelets: they admit pods in batches, oldest first, container by container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.promises.agents import Agents
from benchmarks.promises.apiserver import ApiServer
from benchmarks.promises.judge import Judge
from benchmarks.promises.pods import PodEntry
from benchmarks.promises.scene import Scene
from topology.core.devices import NodeName
from topology.emulation import PluginCrash, Refused

GRACE = 1.0
"""Seconds, on average, that a deleted pod takes to stop."""


@dataclass(frozen=True, slots=True)
class _Admission:
    """A pod that is being admitted; each of the ``steps`` that are left is one container."""

    entry: PodEntry
    steps: Iterator[str]


class Kubelets:
    """One kubelet on each node, around an emulated device manager.

    A kubelet takes all the pods that it has heard of as one batch. While it admits a batch, others
    wait in its inbox.
    """

    def __init__(self, scene: Scene, api: ApiServer, agents: Agents, judge: Judge) -> None:
        self._timeline = scene.timeline
        self._devices = scene.kubelets
        self._delays = scene.delays
        self._faults = scene.faults
        self._tally = scene.tally
        self._api = api
        self._agents = agents
        self._judge = judge
        self._inbox: dict[NodeName, list[PodEntry]] = {name: [] for name in scene.nodes}
        self._busy: set[NodeName] = set()

    def bound(self, entry: PodEntry) -> None:
        """A kubelet hears of a pod that is bound to its node."""
        node = _node_of(entry)
        self._inbox[node].append(entry)
        if node not in self._busy:
            self._busy.add(node)
            self._timeline.about(self._delays.container, lambda: self._admit_batch(node))

    def force_deleted(self, entry: PodEntry) -> None:
        """A kubelet hears that a pod is gone: sooner or later it frees the devices."""
        node = _node_of(entry)
        if entry in self._inbox[node] and self._timeline.happens(0.5):
            self._inbox[node].remove(entry)
        else:
            self._timeline.about(self._faults.linger, lambda: self._free(entry))

    def _free(self, entry: PodEntry) -> None:
        node = _node_of(entry)
        if not entry.admitted:  # its admission is under way, or still to come
            self._timeline.about(self._faults.linger, lambda: self._free(entry))
            return
        self._devices[node].end(entry.record.uid)
        self._agents.look(node)

    def _admit_batch(self, node: NodeName) -> None:
        """Admit everything that has come in the meantime, oldest first, one after the other."""
        batch = sorted(self._inbox[node], key=lambda e: (e.created, e.record.uid))
        self._inbox[node] = []
        self._admit_next(node, iter(batch))

    def _admit_next(self, node: NodeName, batch: Iterator[PodEntry]) -> None:
        entry = next(batch, None)
        if entry is not None:
            record = entry.record
            steps = self._devices[node].admission(record.uid, "default", record.name, entry.request)
            self._step(node, batch, _Admission(entry, steps))
        elif self._inbox[node]:
            self._timeline.about(self._delays.container, lambda: self._admit_batch(node))
        else:
            self._busy.discard(node)

    def _step(self, node: NodeName, batch: Iterator[PodEntry], current: _Admission) -> None:
        """Give the next container its devices; after the last one the pod runs."""
        entry = current.entry
        try:
            container = next(current.steps, None)
        except Refused as refusal:
            self._refuse(entry, node, refusal)
            self._admit_next(node, batch)
            return
        self._agents.look(node)
        if container is not None:
            self._timeline.about(self._delays.container, lambda: self._step(node, batch, current))
            return
        entry.admitted = True
        self._judge.admitted(entry, node, self._devices[node].held(entry.record.uid))
        self._timeline.after(entry.job.runs, lambda: self._end(entry))
        self._admit_next(node, batch)

    def _refuse(self, entry: PodEntry, node: NodeName, refusal: Refused) -> None:
        entry.admitted = True
        crashed = isinstance(refusal.__cause__, PluginCrash)
        if not entry.gone:
            self._tally.kubelet_refusals["plugin crashed" if crashed else str(refusal)] += 1
        self._judge.refused(entry, node)
        self._api.finish(entry, "Failed")
        self._agents.look(node)

    def _end(self, entry: PodEntry) -> None:
        """The pod's time is over: it stops by itself, or because somebody deletes it."""
        if entry.gone:
            return
        if entry.job.deleted:
            entry.record = replace(entry.record, deleting=True)
            self._api.changed(entry)
        self._timeline.about(GRACE if entry.job.deleted else 0.0, lambda: self._stop(entry))

    def _stop(self, entry: PodEntry) -> None:
        node = _node_of(entry)
        self._devices[node].end(entry.record.uid)
        self._agents.look(node)
        self._timeline.about(self._delays.watch, lambda: self._api.finish(entry, "Succeeded"))


def _node_of(entry: PodEntry) -> NodeName:
    node = entry.record.node
    assert node is not None
    return node
