"""Ours: the shipping verbs over the shipping cluster, behind kube-scheduler's own filters.

Scores are added up as kube-scheduler does with the configuration in ``manifests/scheduler``.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.simulation.fleet import Fleet, Ints, SimPod
from benchmarks.simulation.jobs import Job
from benchmarks.simulation.policy import Base, Choice, Move, Wait
from benchmarks.simulation.scheduler import DEFAULT
from scheduler_extender.annotations import MANAGED
from scheduler_extender.demo.kubescheduler import InProcess, pick
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.asking.enquiry import states_of
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.unblocking import search
from scheduler_extender.verbs import Binding
from topology.core.devices import PodUid

WEIGHT = 5  # `extenders[0].weight` of the shipped scheduler configuration
REFUSED = -1


class Extender(Base):
    """filter, prioritize and bind of :mod:`scheduler_extender.verbs`."""

    placing_may_help = True

    def begin(self, fleet: Fleet, jobs: Sequence[Job], rng: random.Random) -> None:
        """Tell a new cluster of every node and pod there is."""
        super().begin(fleet, jobs, rng)
        self._cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
        self._pods: dict[PodUid, PodRecord] = {}
        self._verbs = InProcess(self._cluster, self)
        self._changed = set(fleet.names)
        self._states = {name: np.zeros(len(fleet), dtype=np.int64) for name in fleet.resources}
        self._cluster.on_change.append(self._changed.add)
        for row, node in enumerate(fleet.nodes):
            for pod in node.pods:
                self._cluster.feed.put_pod(pod)
            self._cluster.feed.put_record(node.topology, fleet.report(row))

    def among(self, pod: SimPod, rows: Ints) -> Choice | Wait:
        """A node that keeps the pod's promise, by the scores of both; the pod is bound there.

        Of the nodes that the cluster calls one state only one is named to the verbs, which answer
        alike for all of them; neither answer depends on how many nodes are named.
        """
        fleet = self.fleet
        manifest = pod.ask.pod(pod.name, pod.uid, pod.resource)
        self._refresh()
        _, first, back = np.unique(
            self._states[pod.resource][rows], return_index=True, return_inverse=True
        )
        names = fleet.name_of[rows[first]].tolist()
        picked = pick(
            self._verbs, manifest, names, lambda scores: self._best(pod, rows, names, back, scores)
        )
        if picked.node is None:
            return Wait(picked.reasons.most_common(1)[0][0], for_good=picked.for_good)
        record = pod_record(manifest, MANAGED)
        assert record is not None
        self._pods[pod.uid] = _made_anew(record, pod)
        refusal = self._verbs.bind(manifest.metadata, picked.node)
        if refusal is not None:
            self._pods.pop(pod.uid, None)
            return Wait(refusal)
        return Choice(fleet.row(picked.node))

    def _best(
        self, pod: SimPod, rows: Ints, names: list[str], back: Ints, scores: Mapping[str, float]
    ) -> str:
        """The best node by both scores; ``back`` says for each row which name is like it."""
        ours = np.array([scores.get(name, REFUSED) for name in names], dtype=np.int64)[back]
        passed = rows[ours != REFUSED]
        row = int(passed[0])
        if len(passed) > 1:
            both = ours[ours != REFUSED] * WEIGHT * 10
            both += self.in_tree.scores(pod, passed, DEFAULT, most=False)
            row = self.in_tree.best(passed, both)
        return self.fleet.names[row]

    def _refresh(self) -> None:
        """Ask the cluster for the states of nodes that have changed."""
        snapshot, names = self._cluster.snapshot(), list(self._changed)
        for resource, states in self._states.items():
            found, _ = states_of(snapshot, resource, names)
            for name, state in zip(names, found, strict=True):
                assert state is not None
                states[self.fleet.row(name)] = state
        self._changed.clear()

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """The pod at the API server."""
        return self._pods.get(uid)

    def write(self, binding: Binding) -> None:
        """The API server takes the Binding, and the watch brings it back."""
        known = self._cluster.binds.of(binding.uid)
        assert known is not None
        self._pods[binding.uid] = known
        self._cluster.feed.put_pod(known)

    def admitted(self, pod: SimPod, row: int) -> None:
        """The agent reports what the kubelet gave."""
        if pod.request is not None:
            self._report(row)

    def refused(self, pod: SimPod, row: int) -> None:
        """The pod has failed on the node, and is deleted."""
        self.left(pod, row)

    def left(self, pod: SimPod, row: int) -> None:
        """The pod ends, the agent reports it, and somebody deletes it."""
        if pod.request is None:
            return
        record = self._pods.pop(pod.uid)
        self._cluster.feed.put_pod(replace(record, phase="Succeeded"))
        self._report(row)
        self._cluster.feed.drop_pod(pod.uid)

    def _report(self, row: int) -> None:
        self._cluster.feed.put_record(self.fleet.nodes[row].topology, self.fleet.report(row))


class Unblocking(Extender):
    """The same; and a pod that has waited long gets a place by moving others
    (``gpu-topology unblock``). Nobody is lost for it, and jobs of several pods are left alone."""

    def moves(self, pod: SimPod) -> tuple[Move, ...]:
        """The cheapest plan's."""
        record = pod_record(pod.ask.pod(pod.name, pod.uid, pod.resource), MANAGED)
        assert record is not None
        plan = search(self._cluster.snapshot(), record).plan
        if plan is None or plan.cost.lost:
            return ()
        homes = [(step.pod.uid, step.home) for step in plan.steps]
        return tuple(Move(uid, self.fleet.row(home)) for uid, home in homes if home is not None)


def _made_anew(record: PodRecord, pod: SimPod) -> PodRecord:
    """The pod as a controller's, if it can move by itself."""
    if not pod.alone:
        return record
    return replace(record, standing=replace(record.standing, controller="Job"))
