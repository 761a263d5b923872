"""A cluster in virtual time, closed over the extender: what it decides comes back as reports.

The extender in it is the real one (its verbs over its cluster, :mod:`.extender`); the nodes are
emulated (:mod:`topology.emulation`). Everything takes time and arrives late. The actors, a file
each:

``apiserver``
    Keeps the pods, takes Bindings, and tells the others.
``watches``
    Carry the news, each watcher's in order, late, and sometimes not at all.
``scheduler``
    kube-scheduler: asks the policy, binds beside its loop, and tries again; gangs at once.
``kubelets``
    Admit pods in batches, oldest first, container by container.
``claims``
    Keep the ResourceSlices and ResourceClaims of nodes with DRA, and what kube-scheduler picks.
``agents``
    Look at a node when they get to it; now and then a report comes late or twice.
``outages``
    Make watches blind, agents die, kubelets restart and GPUs fall sick, as ``faults`` says.
``judge``
    Compares what pods were promised with the GPUs that they got.

They share a ``scene``: the time, the nodes, and the tally of what happened. :class:`ClosedLoop`
puts them together. It also lets the jobs arrive, some of which others bind, and
kills the extender.
"""

import random
from collections.abc import Collection, Iterable
from functools import partial

from benchmarks.promises.agents import Agents
from benchmarks.promises.apiserver import ApiServer
from benchmarks.promises.claims import Claims
from benchmarks.promises.extender import Extender
from benchmarks.promises.faults import Delays, Faults
from benchmarks.promises.fleets import as_it_may_be
from benchmarks.promises.judge import Judge
from benchmarks.promises.kubelets import Kubelets
from benchmarks.promises.outages import Outages
from benchmarks.promises.pods import Job, PodEntry
from benchmarks.promises.scene import Capacity, Scene, Timeline
from benchmarks.promises.scheduler import KubeScheduler
from benchmarks.promises.tally import Tally
from benchmarks.promises.watches import ExtenderWatches, Watches
from topology.core.devices import NodeName
from topology.core.graph import NodeTopology
from topology.emulation import EmulatedKubelet


class ClosedLoop:
    """Runs jobs over nodes under a policy, until all have gone."""

    def __init__(  # noqa: PLR0913 (what is played, and how)
        self,
        nodes: list[NodeTopology],
        jobs: list[Job],
        policy: Extender,
        seed: int,
        delays: Delays,
        faults: Faults,
        by_dra: Collection[NodeName],
    ) -> None:
        rng = random.Random(seed)
        timeline = Timeline(rng)
        scene = self.scene = Scene(
            timeline,
            {node.name: node for node in nodes},
            {node.name: _emulated(node, rng) for node in nodes},
            Capacity(nodes),
            delays,
            faults,
            Tally(),
            by_dra,
        )
        judge, watches = Judge(scene), Watches(timeline, delays.watch)
        extender = self._extender = ExtenderWatches(scene, watches)
        agents = self._agents = Agents(scene, watches, extender)
        claims = self._claims = Claims(scene, watches, extender)
        self.api = ApiServer(scene, watches, extender, agents, judge, claims)
        kubelets = Kubelets(scene, watches, self.api, agents, judge, claims)
        self.api.on_bound, self.api.on_force_deleted = kubelets.bound, kubelets.force_deleted
        self._scheduler = KubeScheduler(scene, policy, self.api, extender, claims)
        self._policy = policy
        policy.start(scene, self.api)
        for name in by_dra:
            scene.kubelets[name].registered = False
            scene.capacity.close(name)
        agents.start()
        claims.start()
        for job in jobs:
            timeline.at(job.arrives, partial(self._arrive, job))
        last = max((job.arrives for job in jobs), default=0.0)
        Outages(scene, extender, agents, kubelets, last).begin()

    def run(self, restarts: Iterable[float] = ()) -> Tally:
        """Play until nothing is left to happen; the extender is killed at the ``restarts``."""
        for when in restarts:
            self.scene.timeline.at(when, self._restart)
        self.scene.timeline.run()
        return self.scene.tally

    def _arrive(self, job: Job) -> None:
        """Somebody creates the job's pod."""
        entry = PodEntry.of(job, self.scene.timeline.now)
        if job.foreign:
            self._bind_unasked(entry)
            return
        self.api.create(entry)
        self.scene.tally.required += entry.request.required
        self.scene.tally.asked_by_kind[entry.kind] += 1
        self.api.changed(entry)
        self._scheduler.hear(entry)

    def _bind_unasked(self, entry: PodEntry) -> None:
        """Somebody creates a pod and binds it to any node with room, past kube-scheduler."""
        fits = self.scene.capacity.fitting(entry.request.effective_count)
        if fits:
            self.api.create(entry)
            self.scene.tally.foreign += 1
            self.api.bind(entry, NodeName(self.scene.timeline.rng.choice(fits)), {})

    def _restart(self) -> None:
        """The extender is killed; a new one lists everything, as it is at the API server now."""
        self.scene.tally.happened["restarts"] += 1
        self._extender.drop_undelivered()
        self._policy.restart()
        self._extender.reopen()
        for kind, objects in self._claims.listed():
            self.scene.hearing.sinks[kind].replace(objects, "")
        for name, published in self._agents.published.items():
            self._extender.show(self.scene.nodes[name], published)
        for entry in self.api.pods.values():
            if entry.record.node is not None:
                entry.seen = min(entry.seen, self.scene.timeline.now)
            self.scene.hearing.feed.put_pod(entry.record)


def _emulated(node: NodeTopology, rng: random.Random) -> EmulatedKubelet:
    """The node's emulated kubelet; what the record does not tell of it is drawn."""
    resource = node.resources[0].name
    return EmulatedKubelet(as_it_may_be(node, rng), rng, resource, foreign_hints=True)
