"""A cluster in virtual time: API server, kube-scheduler, kubelets, agents, and what goes wrong.

The extender in it is the real one (its verbs over its cluster); the nodes are emulated
(:mod:`topology.emulation`). Everything takes time and arrives late: watches lag, each on its own;
binds run behind the scheduler's back; kubelets admit in batches, oldest pod first, container by
container; agents look at a node when they get to it, and now and then a report comes late or twice.
Pods end and are deleted, others bind pods of their own, and the extender is killed and starts anew.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import msgspec

from scheduler_extender.annotations import PLACEMENT, PREFIX, parse
from scheduler_extender.cluster import Settings
from scheduler_extender.ledger import PodRecord, pod_record
from scheduler_extender.verbs import Binding
from scheduler_extender.wire import Pod
from topology.devices import NodeName, PodUid
from topology.emulation import EmulatedKubelet, PluginCrash, Refused
from topology.graph import NodeTopology
from topology.placement import satisfies
from topology.report import Report
from topology.requests import GpuRequest

MANAGED = Settings().managed


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds; each is the mean of an exponential distribution. 0 is at once."""

    watch: float = 0.1
    bind: float = 0.05
    container: float = 0.03
    look: float = 0.3
    late: float = 5.0
    late_share: float = 0.03


@dataclass(frozen=True, slots=True)
class Job:
    """One pod of a workload: when it comes, how long it runs, and what it asks."""

    arrives: float
    runs: float
    manifest: dict[str, Any]
    patience: float = 60.0
    deleted: bool = False
    foreign: bool = False


@dataclass(slots=True)
class Tally:
    """What happened. ``excused`` promises fell to a pod that others bound and nobody had seen."""

    placed: int = 0
    foreign: int = 0
    required: int = 0
    required_placed: int = 0
    refused_by_bind: int = 0
    gave_up: int = 0
    promised: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    kubelet_refusals: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    placed_by_kind: Counter[str] = field(default_factory=Counter)
    asked_by_kind: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    surprises: Counter[str] = field(default_factory=Counter)
    broken_jobs: list[str] = field(default_factory=list)


class Policy(Protocol):
    """Who chooses nodes: the extender, or something to compare it with."""

    def pick(self, pod: Pod, offered: list[str], world: World) -> tuple[str | None, Counter[str]]:
        """The node to try, or None; and why nodes were refused."""
        ...

    def bind(self, entry: Entry, node: str, world: World) -> str | None:
        """Write the bind through :meth:`World.write_bind`; the reason where it is refused."""
        ...

    def put_pod(self, record: PodRecord) -> None:
        """News of a pod."""
        ...

    def drop_pod(self, uid: PodUid) -> None:
        """A pod is gone."""
        ...

    def put_report(self, topology: NodeTopology, report: Report) -> None:
        """News of a node."""
        ...

    def restart(self) -> None:
        """Forget everything."""
        ...


@dataclass(slots=True)
class Entry:
    """A pod at the API server, and what the world knows about it."""

    job: Job
    pod: Pod
    record: PodRecord
    request: GpuRequest
    created: float
    kind: str
    promise: str | None = None
    decided: float = 0.0
    seen: float = float("inf")
    ended: bool = False


class World:
    """Runs jobs over nodes under a policy, until all have gone."""

    def __init__(
        self,
        nodes: list[NodeTopology],
        jobs: list[Job],
        policy: Policy,
        seed: int,
        delays: Delays = Delays(),
        restarts: tuple[float, ...] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.policy = policy
        self.delays = delays
        self.tally = Tally()
        self.nodes = {node.name: node for node in nodes}
        self.kubelets = {
            # Where the CPU Manager is not known, it has hints of its own.
            node.name: EmulatedKubelet(
                node, self.rng, foreign_hints=node.allocator.cpu_manager_policy is None
            )
            for node in nodes
        }
        self.pods: dict[PodUid, Entry] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._watches: dict[str, float] = {}
        self._inbox: dict[NodeName, list[Entry]] = {name: [] for name in self.nodes}
        self._busy: set[NodeName] = set()
        self._looking: set[NodeName] = set()
        self._used: Counter[str] = Counter()
        self._size = {name: len(node.gpus) for name, node in self.nodes.items()}
        self._admitted: dict[NodeName, list[Entry]] = {name: [] for name in self.nodes}
        self._published: dict[NodeName, Report] = {}
        for name in self.nodes:
            self._publish(name)
        for job in jobs:
            self._at(job.arrives, partial(self._arrive, job))
        for when in restarts:
            self._at(when, self._restart)

    def run(self) -> Tally:
        """Play until nothing is left to happen."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.tally

    # Time.

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _in(self, mean: float, event: Callable[[], None]) -> None:
        self._at(self.now + self._some(mean), event)

    def _some(self, mean: float) -> float:
        return self.rng.expovariate(1 / mean) if mean else 0.0

    def _watch(self, watcher: str, event: Callable[[], None]) -> None:
        """Deliver over a watch: late, but in order."""
        when = max(self._watches.get(watcher, 0.0), self.now + self._some(self.delays.watch))
        self._watches[watcher] = when
        self._at(when, event)

    # The API server.

    def _arrive(self, job: Job) -> None:
        pod = msgspec.convert(job.manifest, Pod)
        record, request = pod_record(pod, MANAGED), parse(pod, MANAGED)
        assert record is not None and isinstance(request, GpuRequest)  # noqa: PT018
        kind = job.manifest["metadata"]["name"].rpartition("-")[0]
        entry = Entry(job, pod, record, request, self.now, kind)
        if job.foreign:
            fits = [n for n in self.nodes if self._fits(n, entry)]
            if not fits:
                return
            self.pods[record.uid] = entry
            self.tally.foreign += 1
            self._bound(entry, self.rng.choice(fits), {})
            return
        self.pods[record.uid] = entry
        self.tally.required += request.required
        self.tally.asked_by_kind[kind] += 1
        self._changed(entry)
        self._in(self.delays.watch, lambda: self._schedule(entry, 1.0))

    def write_bind(self, binding: Binding) -> None:
        """The API server takes a Binding: nodeName and annotations in one write."""
        self._bound(self.pods[binding.uid], binding.node, {PLACEMENT: binding.placement})

    def _bound(self, entry: Entry, node: NodeName, annotations: dict[str, str]) -> None:
        manifest = dict(entry.job.manifest)
        meta = manifest["metadata"]
        manifest["metadata"] = {
            **meta,
            "annotations": {**meta.get("annotations", {}), **annotations},
        }
        manifest["spec"] = {**manifest["spec"], "nodeName": node}
        record = pod_record(msgspec.convert(manifest, Pod), MANAGED)
        assert record is not None
        entry.record = record
        self._used[node] += entry.request.effective_count
        self._changed(entry)
        self._watch(node, lambda: self._kubelet_sees(entry))

    def _changed(self, entry: Entry) -> None:
        record = entry.record

        def tell() -> None:
            if record.node is not None:
                entry.seen = min(entry.seen, self.now)
            self.policy.put_pod(record)

        self._watch("pods", tell)

    def _finish(self, entry: Entry, phase: str) -> None:
        """The kubelet reports the pod's end, and soon somebody deletes it."""
        if entry.ended:
            return
        entry.ended = True
        assert entry.record.node is not None
        self._used[entry.record.node] -= entry.request.effective_count
        entry.record = replace(entry.record, phase=phase)
        self._changed(entry)
        self._in(5.0, lambda: self._watch("pods", lambda: self._forget(entry.record.uid)))

    def _forget(self, uid: PodUid) -> None:
        self.policy.drop_pod(uid)
        self.pods.pop(uid, None)

    # kube-scheduler.

    def used_share(self, node: str) -> float:
        """The share of a node's GPUs that kube-scheduler has given out."""
        return self._used[node] / self._size[NodeName(node)]

    def _fits(self, node: str, entry: Entry) -> bool:
        return self._used[node] + entry.request.effective_count <= self._size[NodeName(node)]

    def _schedule(self, entry: Entry, backoff: float) -> None:
        offered = [str(n) for n in self.nodes if self._fits(n, entry)]
        node, reasons = self.policy.pick(entry.pod, offered, self) if offered else (None, Counter())
        if node is None:
            self._wait(entry, backoff, reasons or Counter({"too few free GPUs": 1}))
            return
        # The scheduler assumes the pod and goes on; the bind runs beside it.
        self._used[node] += entry.request.effective_count
        self._in(self.delays.bind, lambda: self._bind(entry, node, backoff))

    def _bind(self, entry: Entry, node: str, backoff: float) -> None:
        self._used[node] -= entry.request.effective_count
        entry.decided = self.now
        refusal = self.policy.bind(entry, node, self)
        if refusal is not None:
            self.tally.refused_by_bind += 1
            self._wait(entry, backoff, Counter({refusal: 1}))
            return
        self.tally.placed += 1
        self.tally.placed_by_kind[entry.kind] += 1
        if entry.request.required:
            self.tally.required_placed += 1
            self.tally.promised[entry.promise or "none"] += 1

    def _wait(self, entry: Entry, backoff: float, reasons: Counter[str]) -> None:
        self.tally.reasons.update(dict.fromkeys(reasons, 1))
        if self.now + backoff > entry.created + entry.job.patience:
            self.tally.gave_up += 1
            self._watch("pods", lambda: self._forget(entry.record.uid))
            return
        again = backoff if backoff >= 8 else backoff * 2
        self._at(self.now + backoff, lambda: self._schedule(entry, again))

    # Kubelets and agents.

    def _kubelet_sees(self, entry: Entry) -> None:
        node = entry.record.node
        assert node is not None
        self._inbox[node].append(entry)
        if node not in self._busy:
            self._busy.add(node)
            self._in(self.delays.container, lambda: self._sync(node))

    def _sync(self, node: NodeName) -> None:
        """Admit everything that came in the meantime, oldest first, one after the other."""
        batch = sorted(self._inbox[node], key=lambda e: (e.created, e.record.uid))
        self._inbox[node] = []
        self._step(node, iter(batch), None)

    def _step(
        self, node: NodeName, batch: Iterator[Entry], current: tuple[Entry, Iterator[str]] | None
    ) -> None:
        if current is None:
            entry = next(batch, None)
            if entry is None:
                if self._inbox[node]:
                    self._in(self.delays.container, lambda: self._sync(node))
                else:
                    self._busy.discard(node)
                return
            uid, name = entry.record.uid, entry.record.name
            steps = self.kubelets[node].admission(uid, "default", name, entry.request)
            current = (entry, steps)
        entry, steps = current
        try:
            given = next(steps, None)
        except Refused as refusal:
            crashed = isinstance(refusal.__cause__, PluginCrash)
            self.tally.kubelet_refusals["plugin crashed" if crashed else str(refusal)] += 1
            self._judge(entry, None)
            self._finish(entry, "Failed")
            self._look(node)
            self._step(node, batch, None)
            return
        self._look(node)
        if given is not None:
            self._in(self.delays.container, lambda: self._step(node, batch, current))
            return
        self._judge(entry, self.kubelets[node].held(entry.record.uid))
        self._admitted[node].append(entry)
        self._at(self.now + entry.job.runs, lambda: self._end(entry))
        self._step(node, batch, None)

    def _end(self, entry: Entry) -> None:
        node = entry.record.node
        assert node is not None
        if entry.job.deleted:
            entry.record = replace(entry.record, deleting=True)
            self._changed(entry)

        def stop() -> None:
            self.kubelets[node].end(entry.record.uid)
            self._look(node)
            self._in(self.delays.watch, lambda: self._finish(entry, "Succeeded"))

        self._in(1.0 if entry.job.deleted else 0.0, stop)

    def _look(self, node: NodeName) -> None:
        """Something changed on a node: its agent will look, unless it is about to."""
        if node not in self._looking:
            self._looking.add(node)
            late = self.rng.random() < self.delays.late_share
            self._in(self.delays.late if late else self.delays.look, lambda: self._publish(node))

    def _publish(self, node: NodeName) -> None:
        self._looking.discard(node)
        forget = self.rng.random() < 0.5
        report = self.kubelets[node].report(forget_ended=forget)
        if not forget and self.delays.look:
            # Ended pods may still have been shown: the agent looks again soon.
            self._in(1.0, lambda: self._look(node))
        topology, before = self.nodes[node], self._published.get(node)
        self._published[node] = report
        self._watch("records", lambda: self.policy.put_report(topology, report))
        if before is not None and self.rng.random() < 0.02:
            # An old one once more, as after a broken watch.
            self._watch("records", lambda: self.policy.put_report(topology, before))

    # What came of it.

    def _judge(self, entry: Entry, held: tuple[int, ...] | None) -> None:
        if entry.promise is None or entry.job.foreign:
            return
        node = entry.record.node
        assert node is not None
        mask = sum(1 << p for p in held or ())
        shape = self.nodes[node].shape
        if held is not None and satisfies(shape, entry.request.constraints, mask):
            return
        unseen = any(
            other.job.foreign and other.seen > entry.decided for other in self._admitted[node]
        )
        (self.tally.excused if unseen else self.tally.broken)[entry.promise] += 1
        if not unseen:
            self.tally.broken_jobs.append(f"{entry.record.name} on {node}: {held}")

    def _restart(self) -> None:
        """The extender is killed; a new one lists everything, as it is at the API server now."""
        self.tally.restarts += 1
        self.policy.restart()
        for name, report in self._published.items():
            self.policy.put_report(self.nodes[name], report)
        for entry in self.pods.values():
            if entry.record.node is not None:
                entry.seen = min(entry.seen, self.now)
            self.policy.put_pod(entry.record)


def manifest(
    name: str,
    number: int,
    annotations: dict[str, str],
    *containers: tuple[str, int],
) -> dict[str, Any]:
    """A Pod; containers are (role, GPUs) with the roles app, sidecar and init, in order."""
    init: list[dict[str, Any]] = []
    apps: list[dict[str, Any]] = []
    for i, (role, count) in enumerate(containers):
        found: dict[str, Any] = {
            "name": f"c{i}",
            "resources": {"limits": {"nvidia.com/gpu": str(count)}},
        }
        if role == "sidecar":
            found["restartPolicy"] = "Always"
        (apps if role == "app" else init).append(found)
    uid = f"{number:032x}"
    spec: dict[str, Any] = {"containers": apps}
    if init:
        spec["initContainers"] = init
    return {
        "metadata": {
            "name": f"{name}-{number}",
            "namespace": "default",
            "uid": uid,
            "annotations": {PREFIX + key: value for key, value in annotations.items()},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }
