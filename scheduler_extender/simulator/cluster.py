"""A cluster in simulated time, in a closed loop: the extender's decisions come back as reports."""

from collections.abc import Iterable
from functools import partial

from scheduler_extender.simulator.apiserver import ApiServer
from scheduler_extender.simulator.claims import Claims
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.node import Node
from scheduler_extender.simulator.pods import Job, PodEntry
from scheduler_extender.simulator.scene import Scene, Tally
from scheduler_extender.simulator.scheduler import KubeScheduler
from scheduler_extender.simulator.watches import ExtenderWatches, Watches
from topology.core.devices import NodeName


class PlayedCluster:
    """A cluster that runs jobs on the nodes of a scene until all have ended."""

    def __init__(self, scene: Scene, jobs: list[Job], policy: Extender) -> None:
        self.scene, self._policy = scene, policy
        watches = Watches(scene.clock, scene.delays.watch)
        self.extender = ExtenderWatches(scene, watches)
        self.claims = Claims(scene, watches, self.extender)
        self.api = ApiServer(scene, watches, self.extender, self.claims)
        self.nodes = self.api.nodes = {name: Node(scene, name, self.api) for name in scene.nodes}
        self._scheduler = KubeScheduler(scene, policy, self.api, self.extender, self.claims)
        policy.start(scene, self.api)
        for name in scene.dra_nodes:
            scene.kubelets[name].registered = False
            scene.capacity.close(name)
        for node in self.nodes.values():
            node.publish()
        self.claims.start()
        for job in jobs:
            scene.clock.at(job.arrives, partial(self.arrive, job))

    def run(self, restarts: Iterable[float] = ()) -> Tally:
        """Run until no event is left.

        The extender is killed at the ``restarts``. Return the tally.
        """
        for when in restarts:
            self.scene.clock.at(when, self._restart)
        self.scene.clock.run()
        return self.scene.tally

    def arrive(self, job: Job) -> PodEntry:
        """Create the job's pod."""
        entry = PodEntry.of(job, self.scene.clock.now)
        if job.foreign:  # another scheduler binds it to any node with room
            fits = self.scene.capacity.fitting(entry.request.effective_count)
            if fits:
                self.api.create(entry)
                self.scene.tally.foreign += 1
                self.api.bind(entry, NodeName(self.scene.clock.rng.choice(fits)), {})
            return entry
        self.api.create(entry)
        self.scene.tally.required += entry.request.required
        self.scene.tally.asked_by_kind[entry.kind] += 1
        self.api.changed(entry)
        self._scheduler.hear(entry)
        return entry

    def _restart(self) -> None:
        """Kill the extender. A new one lists everything as it now is at the API server."""
        self.scene.tally.happened["restarts"] += 1
        self._policy.restart()
        self.extender.reopen()
        for kind, objects in self.claims.listed():
            self.scene.hearing.records.sinks[kind].replace(objects, "")
        for name, published in self.api.records.items():
            self.extender.show(self.scene.nodes[name], published)
        for entry in self.api.pods.values():
            if entry.record.node is not None:
                entry.seen = min(entry.seen, self.scene.clock.now)
            self.scene.hearing.cache.put_pod(entry.record)
