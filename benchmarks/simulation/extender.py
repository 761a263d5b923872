"""Ours: the shipping verbs over the shipping cluster, behind kube-scheduler's own filters.

Scores are added up as kube-scheduler does with the configuration in ``manifests/scheduler``.
"""

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.simulation.fleet import Fleet, Ints, SimPod
from benchmarks.simulation.jobs import WHOLE_GPU
from benchmarks.simulation.policy import DEFAULT, Policy, Wait
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.framework.equivalence import states_of
from scheduler_extender.simulator.asking import InProcess, pick
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache

WEIGHT = 5  # `extenders[0].weight` of the shipped scheduler configuration
REFUSED = -1


class Extender(Policy):
    """filter, prioritize and bind of :mod:`scheduler_extender.verbs`."""

    placing_may_help = True

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        """Tell a new cluster of every node there is."""
        super().__init__(fleet, rng)
        self._cluster = Cache(lambda: 0.0, Settings(stale_after=None))
        self._binder = FileBinder(self._cluster)
        self._verbs = InProcess(self._cluster, self._binder)
        self._changed = set(fleet.names)
        self._states = np.zeros(len(fleet), dtype=np.int64)
        self._cluster.on_change.append(self._changed.add)
        for row in range(len(fleet)):
            self._report(row)

    def among(self, pod: SimPod, rows: Ints) -> int | Wait:
        """A node that keeps the pod's promise, by the scores of both; the pod is bound there.

        Of the nodes that the cluster calls one state only one is named to the verbs, which answer
        alike for all of them; neither answer depends on how many nodes are named.
        """
        fleet = self.fleet
        manifest = pod.ask.pod(pod.name, pod.uid)
        changed = list(self._changed)
        states, _ = states_of(self._cluster.snapshot(), WHOLE_GPU, changed)
        for name, state in zip(changed, states, strict=True):
            assert state is not None
            self._states[fleet.row(name)] = state
        self._changed.clear()
        _, first, back = np.unique(self._states[rows], return_index=True, return_inverse=True)
        names = fleet.name_of[rows[first]].tolist()
        picked = pick(
            self._verbs, manifest, names, lambda scores: self._best(pod, rows, names, back, scores)
        )
        if picked.node is None:
            return Wait(picked.reasons.most_common(1)[0][0], for_good=picked.for_good)
        self._binder.saw(manifest)
        refusal = self._verbs.bind(manifest.metadata, picked.node)
        return fleet.row(picked.node) if refusal is None else Wait(refusal)

    def _best(
        self, pod: SimPod, rows: Ints, names: list[str], back: Ints, scores: Mapping[str, float]
    ) -> str:
        """The best node by both scores; ``back`` says for each row which name is like it."""
        ours = np.array([scores.get(name, REFUSED) for name in names], dtype=np.int64)[back]
        passed = rows[ours != REFUSED]
        row = int(passed[0])
        if len(passed) > 1:
            both = ours[ours != REFUSED] * WEIGHT * 10
            both += self.scores(pod, passed, DEFAULT, most=False)
            row = self.best(passed, both)
        return self.fleet.names[row]

    def admitted(self, pod: SimPod, row: int) -> None:
        """The agent reports what the kubelet gave."""
        if pod.request is not None:
            self._report(row)

    def left(self, pod: SimPod, row: int) -> None:
        """The pod has ended, the agent reports it, and the pod is deleted."""
        if pod.request is None:
            return
        record = self._cluster.pod(pod.uid)
        assert record is not None
        self._cluster.put_pod(replace(record, phase="Succeeded"))
        self._report(row)
        self._cluster.drop_pod(pod.uid)

    def _report(self, row: int) -> None:
        topology, kubelet = self.fleet.nodes[row].topology, self.fleet.kubelets[row]
        self._cluster.put_record(topology, kubelet.report())
