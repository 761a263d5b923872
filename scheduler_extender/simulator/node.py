"""A simulated node: its kubelet, around an emulated device manager, and its agent.

The kubelet takes all pods that it has heard of as one batch, oldest first, and admits them
container by container. Later pods wait in its inbox. A kubelet that ends forgets what it was about
to do. When it has started again, it hears of its pods anew, admits those that had not started, and
then continues.

The agent looks at its node when something happens, and publishes late.
"""

from collections.abc import Iterator
from dataclasses import replace

from scheduler_extender.simulator.clock import Event
from scheduler_extender.simulator.faults import POLL
from scheduler_extender.simulator.pods import PodEntry, PublishedReport
from scheduler_extender.simulator.scene import Actor, Scene
from topology.core.devices import Mask, NodeName, PodUid, positions
from topology.core.report import READY, Condition, Health, Report
from topology.emulation import PluginCrash, PluginRefusal, Refused

STARTING = 1.0  # seconds, on average, between a pod's admission and its containers' start
STATUS_PERIOD = 10.0  # seconds between two statuses of a node that its kubelet writes
LOST_CLAIM = "its claim is gone"  # of a pod that never starts
SILENT = Condition(READY, status=False, reason="KubeletUnavailable")


class Server:
    """The API server, as far as a node writes to it and reads from it.

    This one ignores all writes.
    """

    def claimed(self, uid: PodUid) -> tuple[int, ...]:
        """Return the GPUs that a pod's claim has; none if there is no claim."""
        return ()

    def devices(self, node: NodeName, *, there: bool) -> None:
        """Write to the node's status whether it has devices."""

    def running(self, entry: PodEntry) -> None:
        """Write that the pod's containers run."""

    def terminating(self, entry: PodEntry) -> None:
        """Delete the pod with a grace period, as its owner."""

    def finish(self, entry: PodEntry, phase: str, refusal: Refused | None = None) -> None:
        """Write that the pod has ended and holds nothing any more, or was refused."""

    def publish(self, node: NodeName, published: PublishedReport) -> None:
        """Put another report into the node's record."""

    def drop_record(self, node: NodeName) -> None:
        """Delete the node's record."""


class Node(Actor):
    """One kubelet and one agent."""

    def __init__(self, scene: Scene, name: NodeName, server: Server) -> None:
        super().__init__(scene)
        self.name = name
        self.topology = scene.nodes[name]
        self._devices = scene.kubelets[name]
        self._server = server
        self._inbox: list[PodEntry] = []
        self._batch: list[PodEntry] = []
        self._starting: list[PodEntry] = []
        self._lingering: list[PodEntry] = []
        self._busy = False
        self._life = 0
        self._postponed: list[Event] = []
        self._looking = False
        self._blamed: Mask = 0
        self._heard_version = "0"
        self._records = 0
        self._published: PublishedReport | None = None
        self.dead = False  # whether the agent is dead and publishes nothing

    # Pods reach the kubelet.

    def bound(self, entry: PodEntry) -> None:
        """Take in that a pod is bound to the node."""
        self._inbox.append(entry)
        if not self._busy:
            self._busy = True
            self._admit_soon()

    def force_deleted(self, entry: PodEntry) -> None:
        """Take in that a pod is gone without a grace period.

        Its devices are freed at some later time.
        """
        if entry in self._inbox and not entry.admitted and self._clock.happens(0.5):
            self._inbox.remove(entry)
        else:
            self._lingering.append(entry)
            self._clock.about(self._faults.linger, lambda: self._free(entry))

    def terminate(self, entry: PodEntry) -> None:
        """Take in that a pod is deleted, with a grace period."""
        self._clock.about(self._delays.grace, lambda: self._stop(entry))

    # Faults of the kubelet and the GPUs.

    def end(self) -> None:
        """End the kubelet. It starts again by itself."""
        if not self._devices.shows_pods:
            return  # it has just started
        self._tally.happened["kubelet_restarts"] += 1
        self._life += 1
        self._devices.stop()
        again = [e for e in self._starting if not e.ended]
        self._inbox = [*again, *self._batch, *self._inbox]
        self._batch, self._starting = [], []
        self._busy = True
        self._observer.disturbed(self.name)
        self._clock.about(self._faults.down_for, self._start)
        self._seen_by_agent()

    def sicken(self, gpus: list[int]) -> None:
        """Let the device plugin report GPUs as sick."""
        self._devices.sicken(gpus)
        self._observer.disturbed(self.name)
        self._seen_by_agent()

    def heal(self, gpus: list[int]) -> None:
        """Let the device plugin report GPUs as healthy again."""
        self._devices.heal(gpus)
        self._observer.unsettled(self.name)
        self._seen_by_agent()

    def _start(self) -> None:
        """Start the kubelet. It tells the API server at once that it has no devices."""
        self._devices.start()
        self._observer.unsettled(self.name)
        self._server.devices(self.name, there=False)
        self._clock.about(self._faults.bare_for, self._hear_of_pods)
        self._clock.about(self._faults.bare_for, self._register)
        self._seen_by_agent()

    def _register(self) -> None:
        """Register the device plugin again.

        The kubelet reports the devices with its next status.
        """
        if self._devices.answers and self.name not in self._scene.dra_nodes:
            # If the kubelet does not run, its next start brings another registration.
            self._devices.register()
            self._observer.unsettled(self.name)
            self._seen_by_agent()
            self._clock.after(self._clock.rng.uniform(0, STATUS_PERIOD), self._open)

    def _open(self) -> None:
        if self._devices.registered:
            self._server.devices(self.name, there=True)

    def _hear_of_pods(self) -> None:
        """List the kubelet's pods. Pods that are gone hold nothing any more."""
        self._devices.shows_pods = True
        self._observer.unsettled(self.name)
        gone = [e for e in self._inbox if e.gone]
        self._inbox = [e for e in self._inbox if not e.gone]
        for entry in (*gone, *self._lingering):
            entry.admitted = True  # it will never be
            self._release(entry)
        postponed, self._postponed = self._postponed, []
        for event in postponed:
            event()
        self._seen_by_agent()
        self._admit_soon()

    # The kubelet admits pods.

    def _admit_soon(self) -> None:
        life = self._life
        self._clock.about(self._delays.container, lambda: self._admit_batch(life))

    def _admit_batch(self, life: int) -> None:
        """Admit all pods that have come in the meantime, oldest first, one after the other."""
        if life == self._life:
            inbox, self._inbox = self._inbox, []
            self._batch = sorted(inbox, key=lambda e: (e.created, e.record.uid))
            self._admit_next()

    def _admit_next(self) -> None:
        """Begin with the pod at the head of the batch.

        It stays in the batch until its admission ends.
        """
        for entry in [e for e in self._batch if e.record.terminating and not e.admitted]:
            self._batch.remove(entry)
            entry.admitted = True  # it will never be
        if self._batch:
            entry = self._batch[0]
            record = entry.record
            steps = self._devices.admission(
                record.uid, record.namespace, record.name, entry.request
            )
            if record.has_extended_resource_claim:
                steps = self._prepared(entry)
            self._step(entry, steps, self._life)
        elif self._inbox:
            self._admit_soon()
        else:
            self._busy = False

    def _prepared(self, entry: PodEntry) -> Iterator[str]:
        """Return the admission of a pod with a claim.

        Raises :class:`Refused` if the claim is gone.
        """
        if not self._server.claimed(entry.record.uid):
            raise Refused(LOST_CLAIM)
        yield from ()

    def _step(self, entry: PodEntry, steps: Iterator[str], life: int) -> None:
        """Give the next container its devices. After the last one the pod runs.

        ``steps`` are the pod's remaining containers. A kubelet that has begun another life than
        ``life`` has forgotten the admission.
        """
        if life != self._life:
            return
        try:
            container = next(steps, None)
        except Refused as refusal:
            self._batch.remove(entry)
            entry.admitted = True
            self._observer.refused(entry, _reason(refusal))
            self._server.finish(entry, "Failed", refusal)
            self.look()
            self._admit_next()
            return
        self.look()
        if container is not None:
            self._clock.about(self._delays.container, lambda: self._step(entry, steps, life))
            return
        self._batch.remove(entry)
        if not entry.admitted:  # else it was admitted before the kubelet ended
            uid = entry.record.uid
            self._observer.admitted(entry, self._server.claimed(uid) or self._devices.held(uid))
            self._server.running(entry)
            self._clock.after(entry.job.runs, lambda: self._end(entry))
        entry.admitted = True
        if self._faults.kubelets_restart:
            self._starting.append(entry)
            self._clock.about(STARTING, lambda: self._started(entry))
        self._admit_next()

    def _started(self, entry: PodEntry) -> None:
        """Note that the pod's containers run: a kubelet that starts again leaves them alone."""
        if entry in self._starting:
            self._starting.remove(entry)

    # The kubelet ends pods.

    def _end(self, entry: PodEntry) -> None:
        """End the pod's run: it stops by itself, or is deleted."""
        if entry.gone or entry.ended:
            return
        if entry.job.deleted:
            self._server.terminating(entry)
            self.terminate(entry)
        else:
            self._clock.after(0.0, lambda: self._stop(entry))

    def _stop(self, entry: PodEntry) -> None:
        """Stop the pod, once the kubelet has decided about it, runs and knows its pods."""
        if not entry.admitted:
            self.terminate(entry)
        elif self._devices.shows_pods:
            self._free_ended(entry)
        else:
            self._postponed.append(lambda: self._free_ended(entry))

    def _free_ended(self, entry: PodEntry) -> None:
        self._release(entry)
        self.look()
        finish = self._server.finish
        self._clock.about(self._delays.watch, lambda: finish(entry, "Succeeded"))

    def _free(self, entry: PodEntry) -> None:
        """Free the devices of a pod that is gone."""
        if not (entry.admitted and self._devices.shows_pods):
            # Its admission is under way, or still to come.
            self._clock.about(self._faults.linger, lambda: self._free(entry))
            return
        self._lingering.remove(entry)
        self._release(entry)
        self.look()

    def _release(self, entry: PodEntry) -> None:
        if self._devices.holds(entry.record.uid):
            self._devices.end(entry.record.uid)
            self._observer.released(entry)

    # The agent.

    def hear(self, version: str, *, left: bool) -> None:
        """Take in the version up to which the agent knows its pods.

        Let the agent look if a pod has ``left``.
        """
        self._heard_version = version
        if left:
            self.look()

    def look(self) -> None:
        """Let the agent look soon because of a change, unless it is about to."""
        if not self._looking:
            self._looking = True
            late = self._clock.happens(self._delays.late_fraction)
            self._clock.about(self._delays.late if late else self._delays.look, self.publish)

    def _seen_by_agent(self) -> None:
        """Let the agent look later.

        No event tells it of the kubelet, which it polls now and then.
        """
        self._clock.about(POLL, self.look)

    def blame(self, gpus: Mask) -> None:
        """Let the agent report exactly these GPUs as sick from now on."""
        self._blamed = gpus

    def die(self) -> None:
        """Let the agent publish nothing until it is revived."""
        self._tally.happened["deaths"] += 1
        self.dead = True

    def revive(self) -> None:
        """Start the agent again, and let it look."""
        self.dead = False
        self.look()

    def publish(self) -> None:
        """Publish the node as it is now."""
        self._looking = False
        if self.dead:
            return
        before = self._published
        if before is not None and self._clock.happens(self._faults.recreated):
            # The node's record was deleted, and the agent makes a new one.
            self._tally.happened["recreated"] += 1
            self._records += 1
            self._devices.forget_sequence()
            self._server.drop_record(self.name)
        forget = self._clock.happens(self._delays.forgets)
        report = self._observed(before, forget_ended=forget)
        if not forget and self._delays.look:
            # The report may still show pods that have ended, so the agent looks again soon.
            self._clock.about(1.0, self.look)
        self._published = PublishedReport(report, str(self._records), self._clock.now)
        self._server.publish(self.name, self._published)

    def _observed(self, before: PublishedReport | None, *, forget_ended: bool) -> Report:
        """Return the agent's report of its kubelet.

        If the kubelet does not answer, the record stays as it was, but is not Ready. A kubelet that
        shows no pods has just started: those pods of the record that are alive still hold their
        devices.
        """
        report = self._devices.report(forget_ended=forget_ended)
        if before is not None and not self._devices.answers:
            return replace(before.report, sequence=report.sequence, conditions=(SILENT,))
        if before is not None and not self._devices.shows_pods:
            kept = (a for a in before.report.allocations if self._devices.holds(a.pod_uid))
            report = replace(report, allocations=tuple(kept))
        if self.name in self._scene.dra_nodes:
            report = replace(report, allocatable=frozenset(), allocations=())
        sick = (self.topology.gpus[p].uuid for p in positions(self._blamed))
        return replace(
            report,
            pods_version=self._heard_version,
            health=tuple(Health(uuid, healthy=False, reason="Xid79") for uuid in sick),
        )


def _reason(refusal: Refused) -> str:
    if isinstance(refusal.__cause__, PluginCrash):
        return "plugin crashed"
    if isinstance(refusal.__cause__, PluginRefusal):
        return "plugin refused"
    return str(refusal)
