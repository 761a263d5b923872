"""A cluster in virtual time: API server, kube-scheduler, kubelets, agents, and what goes wrong.

The extender in it is the real one (its verbs over its cluster); the nodes are emulated
(:mod:`topology.emulation`). Everything takes time and arrives late: watches lag, each on its own;
binds run behind the scheduler's back; kubelets admit in batches, oldest pod first, container by
container; agents look at a node when they get to it, and now and then a report comes late or twice.
Pods end and are deleted, others bind pods of their own, and the extender is killed and starts anew.
``faults.Faults`` adds what happens more rarely: pods that are deleted by force, Bindings that are
written late, watches that bring nothing, agents that die.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from benchmarks.promises.faults import Delays, Faults
from scheduler_extender.annotations import PLACEMENT, PREFIX, parse
from scheduler_extender.state.decision import Settings
from scheduler_extender.state.pods import PodRecord, pod_record
from scheduler_extender.verbs import Binding
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.core.report import Report
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet, PluginCrash, Refused

MANAGED = Settings().managed

HEARTBEAT = 60.0
STALE_AFTER = 180.0
SLACK = 15.0
"""Seconds: how often an agent looks without a cause, when its record is stale, and how long it may
take until a fault is known."""


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
    """What happened.

    ``excused`` promises fell to a pod that others bound and nobody had seen yet. ``unseen`` ones
    fell to such a pod, too, but the watch had been failing for so long that the extender should
    have stopped promising. ``faults`` are nodes about which deciding failed.
    ``stale`` counts required pods placed on nodes whose agent was dead, ``blind`` those placed
    while a watch had been failing for long.
    """

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
    unseen: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    blind: int = 0
    restarts: int = 0
    forced: int = 0
    late_commits: int = 0
    blindings: int = 0
    deaths: int = 0
    recreated: int = 0
    faults: list[str] = field(default_factory=list)
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

    def start(self, world: World) -> None:
        """The world begins."""
        ...

    def put_pod(self, record: PodRecord) -> None:
        """News of a pod."""
        ...

    def drop_pod(self, uid: PodUid, version: int) -> None:
        """A pod is gone from the API server, as of this resourceVersion."""
        ...

    def put_report(self, topology: NodeTopology, heard: Heard) -> None:
        """News of a node."""
        ...

    def drop_record(self, name: NodeName) -> None:
        """A node's record is gone."""
        ...

    def watch_heard(self, watch: str) -> None:
        """The watch on ``pods`` or ``records`` has brought something, if only a bookmark."""
        ...

    def watch_failing(self, watch: str, *, failing: bool) -> None:
        """The watch is broken and cannot be opened again; or it can."""
        ...

    def restart(self) -> None:
        """Forget everything."""
        ...


@dataclass(slots=True)
class Entry:
    """A pod at the API server, and what the world knows about it."""

    job: Job
    pod: Pod
    manifest: dict[str, Any]
    record: PodRecord
    request: GpuRequest
    created: float
    kind: str
    promise: str | None = None
    decided: float = 0.0
    blind_for: float = 0.0
    bound: float = float("inf")
    seen: float = float("inf")
    ended: bool = False
    gone: bool = False
    admitted: bool = False


class Heard(NamedTuple):
    """A report as it stands in a record: the record's UID, and when the agent looked."""

    report: Report
    record: str
    looked: float


class World:
    """Runs jobs over nodes under a policy, until all have gone."""

    def __init__(
        self,
        nodes: list[NodeTopology],
        jobs: list[Job],
        policy: Policy,
        seed: int,
        delays: Delays = Delays(),  # noqa: B008 (it is frozen)
        restarts: tuple[float, ...] = (),
        faults: Faults = Faults(),  # noqa: B008
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.policy = policy
        self.delays = delays
        self.faults = faults
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
        self.named: dict[str, Entry] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._watches: dict[str, float] = {}
        self._inbox: dict[NodeName, list[Entry]] = {name: [] for name in self.nodes}
        self._busy: set[NodeName] = set()
        self._looking: set[NodeName] = set()
        self._used: Counter[str] = Counter()
        self._size = {
            name: len(node.gpus) * node.resources[0].replicas for name, node in self.nodes.items()
        }
        self._admitted: dict[NodeName, list[Entry]] = {name: [] for name in self.nodes}
        self._published: dict[NodeName, Heard] = {}
        self._lives = 0
        self.version = 0
        self._agent_version: dict[NodeName, int] = dict.fromkeys(self.nodes, 0)
        self._records: Counter[NodeName] = Counter()
        self._dead: set[NodeName] = set()
        self._fails: dict[str, float] = {}
        policy.start(self)
        for name in self.nodes:
            self._publish(name)
        for job in jobs:
            self._at(job.arrives, partial(self._arrive, job))
        for when in restarts:
            self._at(when, self._restart)
        self._last = max((job.arrives for job in jobs), default=0.0)
        self._begin_faults()

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

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen so many seconds from now."""
        self._at(self.now + seconds, event)

    def _in(self, mean: float, event: Callable[[], None]) -> None:
        self._at(self.now + self._some(mean), event)

    def _some(self, mean: float) -> float:
        return self.rng.expovariate(1 / mean) if mean else 0.0

    def _watch(self, watcher: str, event: Callable[[], None]) -> None:
        """Deliver over a watch: late, but in order."""
        when = max(self._watches.get(watcher, 0.0), self.now + self._some(self.delays.watch))
        self._watches[watcher] = when
        self._at(when, event)

    def _tell(self, watch: str, event: Callable[[], None]) -> None:
        """Deliver to the extender that runs now; one that starts later lists instead."""
        life = self._lives

        def deliver() -> None:
            if life == self._lives:
                self.policy.watch_heard(watch)
                event()

        self._watch(watch, deliver)

    # The API server.

    def _arrive(self, job: Job) -> None:
        pod = msgspec.convert(job.manifest, Pod)
        record, request = pod_record(pod, MANAGED), parse(pod, MANAGED)
        assert record is not None and isinstance(request, GpuRequest)  # noqa: PT018
        kind = record.name.rpartition("-")[0]
        entry = Entry(job, pod, job.manifest, record, request, self.now, kind)
        if job.foreign:
            fits = [n for n in self.nodes if self._fits(n, entry)]
            if not fits:
                return
            self.pods[record.uid] = self.named[record.name] = entry
            self.tally.foreign += 1
            self._bound(entry, self.rng.choice(fits), {})
            return
        self.pods[record.uid] = self.named[record.name] = entry
        self.tally.required += request.required
        self.tally.asked_by_kind[kind] += 1
        self._changed(entry)
        self._in(self.delays.watch, lambda: self._schedule(entry, 1.0))

    def commit(self, entry: Entry, binding: Binding) -> bool:
        """Write a Binding: nodeName and annotations at once. False where it cannot be any more."""
        if entry.gone or entry.record.node is not None:
            return False
        self._bound(entry, binding.node, {PLACEMENT: binding.placement})
        self.tally.placed += 1
        self.tally.placed_by_kind[entry.kind] += 1
        if entry.request.required:
            entry.promise = json.loads(binding.placement)["verdict"]
            self.tally.required_placed += 1
            self.tally.promised[entry.promise] += 1
            if self.now - self._published[binding.node].looked > STALE_AFTER + SLACK:
                self.tally.stale += 1
            if entry.blind_for > SLACK + 1:
                self.tally.blind += 1
        return True

    def write_bind(self, entry: Entry, node: str, promise: str) -> None:
        """Bind without any fault; ``promise`` is what a pod with constraints was promised."""
        placement = json.dumps({"verdict": promise})
        meta = entry.pod.metadata
        binding = Binding(meta.namespace, meta.name, entry.record.uid, NodeName(node), placement)
        assert self.commit(entry, binding)

    def _bound(self, entry: Entry, node: NodeName, annotations: dict[str, str]) -> None:
        manifest = dict(entry.manifest)
        meta = manifest["metadata"]
        manifest["metadata"] = {
            **meta,
            "annotations": {**meta.get("annotations", {}), **annotations},
        }
        manifest["spec"] = {**manifest["spec"], "nodeName": node}
        record = pod_record(msgspec.convert(manifest, Pod), MANAGED)
        assert record is not None
        entry.record, entry.manifest, entry.bound = record, manifest, self.now
        self._used[node] += entry.request.effective_count
        self._changed(entry)
        self._watch(node, lambda: self._kubelet_sees(entry))
        if self.rng.random() < self.faults.forced:
            soon = self._some(1.0) if self.rng.random() < 0.5 else self._some(entry.job.runs)
            self.after(soon, lambda: self._force(entry))

    def _changed(self, entry: Entry) -> None:
        record = entry.record
        self._agent_learns(record.node)

        def tell() -> None:
            if record.node is not None:
                entry.seen = min(entry.seen, self.now)
            self.policy.put_pod(record)

        self._tell("pods", tell)

    def _agent_learns(self, node: NodeName | None, *, left: bool = False) -> int:
        """The next resourceVersion, of which the node's agent hears in time.

        A pod that has ``left`` makes it look again.
        """
        self.version += 1
        version = self.version
        if node is not None:

            def learn() -> None:
                self._agent_version[node] = version
                if left:
                    self._look(node)

            self._watch(f"agent of {node}", learn)
        return version

    def _finish(self, entry: Entry, phase: str) -> None:
        """The kubelet reports the pod's end, and soon somebody deletes it."""
        if entry.ended:
            return
        entry.ended = True
        assert entry.record.node is not None
        self._used[entry.record.node] -= entry.request.effective_count
        entry.record = replace(entry.record, phase=phase)
        self._changed(entry)
        self._in(5.0, lambda: self._delete(entry))

    def _delete(self, entry: Entry) -> None:
        """The API server forgets a pod; the extender hears of it later."""
        entry.gone = True
        uid = entry.record.uid
        del self.pods[uid], self.named[entry.record.name]
        version = self._agent_learns(entry.record.node, left=True)
        self._tell("pods", lambda: self.policy.drop_pod(uid, version))

    def _force(self, entry: Entry) -> None:
        """Somebody deletes a bound pod with a grace period of 0."""
        node = entry.record.node
        assert node is not None
        if entry.ended:
            return
        entry.ended = True
        self.tally.forced += 1
        self._used[node] -= entry.request.effective_count
        self._delete(entry)
        self._watch(node, lambda: self._kubelet_drops(entry))

    # kube-scheduler.

    def used_share(self, node: str) -> float:
        """The share of a node's GPUs that kube-scheduler has given out."""
        return self._used[node] / self._size[NodeName(node)]

    def _fits(self, node: str, entry: Entry) -> bool:
        return self._used[node] + entry.request.effective_count <= self._size[NodeName(node)]

    def _schedule(self, entry: Entry, backoff: float) -> None:
        if entry.record.node is not None or entry.gone:
            return  # a Binding that nobody answered was written after all
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
        if entry.record.node is not None or entry.gone:
            return
        entry.decided = self.now
        entry.blind_for = self.now - min(self._fails.values(), default=self.now)
        refusal = self.policy.bind(entry, node, self)
        if refusal is not None:
            self.tally.refused_by_bind += 1
            self._wait(entry, backoff, Counter({refusal: 1}))

    def _wait(self, entry: Entry, backoff: float, reasons: Counter[str]) -> None:
        self.tally.reasons.update(dict.fromkeys(reasons, 1))
        if self.now + backoff > entry.created + entry.job.patience:
            if entry.record.node is None and not entry.gone:
                self.tally.gave_up += 1
                self._delete(entry)
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

    def _kubelet_drops(self, entry: Entry) -> None:
        """The kubelet hears of a force deletion: sooner or later it lets go."""
        node = entry.record.node
        assert node is not None
        if entry in self._inbox[node] and self.rng.random() < 0.5:
            self._inbox[node].remove(entry)
        else:
            self._in(self.faults.linger, lambda: self._let_go(entry))

    def _let_go(self, entry: Entry) -> None:
        node = entry.record.node
        assert node is not None
        if not entry.admitted:  # its admission is under way, or waits
            self._in(self.faults.linger, lambda: self._let_go(entry))
            return
        self.kubelets[node].end(entry.record.uid)
        self._look(node)

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
            entry.admitted = True
            crashed = isinstance(refusal.__cause__, PluginCrash)
            if not entry.gone:
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
        entry.admitted = True
        self._judge(entry, self.kubelets[node].held(entry.record.uid))
        self._admitted[node].append(entry)
        self._at(self.now + entry.job.runs, lambda: self._end(entry))
        self._step(node, batch, None)

    def _end(self, entry: Entry) -> None:
        node = entry.record.node
        assert node is not None
        if entry.gone:
            return
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
        if node in self._dead:
            return
        before = self._published.get(node)
        recreated = before is not None and self.rng.random() < self.faults.recreated
        if recreated:
            self.tally.recreated += 1
            self._records[node] += 1
            self.kubelets[node].forget_sequence()
            if self.rng.random() < 0.5:  # otherwise it is missed, and a list shows the new record
                self._tell("records", lambda: self.policy.drop_record(node))
        forget = self.rng.random() < 0.5
        report = self.kubelets[node].report(forget_ended=forget)
        report = replace(report, pods_version=str(self._agent_version[node]))
        if not forget and self.delays.look:
            # Ended pods may still have been shown: the agent looks again soon.
            self._in(1.0, lambda: self._look(node))
        topology, heard = self.nodes[node], Heard(report, str(self._records[node]), self.now)
        self._published[node] = heard
        self._tell("records", lambda: self.policy.put_report(topology, heard))
        if before is not None and not recreated and self.rng.random() < self.delays.repeated:
            # An old one once more, as after a broken watch.
            self._tell("records", lambda: self.policy.put_report(topology, before))

    # Faults.

    def _begin_faults(self) -> None:
        if self.faults.blind_every:
            self._in(self.faults.blind_every, self._blindfold)
            self._bookmark()
        if self.faults.dies_every:
            self._in(self.faults.dies_every, self._kill_agent)
            for name in self.nodes:
                self._heartbeat(name)

    def _blindfold(self) -> None:
        """One watch or both bring nothing for a while; what happens meanwhile comes at its end."""
        if self.now > self._last:
            return
        self.tally.blindings += 1
        until = self.now + self.rng.uniform(1.0, self.faults.blind_for)
        fails = self.rng.random() < self.faults.failing
        watches = ["pods", "records"]
        if self.rng.random() >= self.faults.both:
            watches.remove(self.rng.choice(watches))
        for watch in watches:
            self._watches[watch] = max(self._watches.get(watch, 0.0), until)
            if fails:
                self._fails[watch] = self.now
                self.policy.watch_failing(watch, failing=True)
                self._at(until, partial(self._restore_watch, watch))
        self._at(until + self._some(self.faults.blind_every), self._blindfold)

    def _restore_watch(self, watch: str) -> None:
        self._fails.pop(watch, None)
        self.policy.watch_failing(watch, failing=False)

    def _bookmark(self) -> None:
        for watch in ("pods", "records"):
            self._tell(watch, lambda: None)
        if self.now <= self._last:
            self.after(30.0, self._bookmark)

    def _heartbeat(self, node: NodeName) -> None:
        self._look(node)
        if self.now <= self._last:
            self.after(HEARTBEAT * self.rng.uniform(0.8, 1.2), lambda: self._heartbeat(node))

    def _kill_agent(self) -> None:
        if self.now > self._last:
            return
        node = self.rng.choice(list(self.nodes))
        if node not in self._dead:
            self.tally.deaths += 1
            self._dead.add(node)

            def revive() -> None:
                self._dead.discard(node)
                self._look(node)

            self._in(self.faults.dead_for, revive)
        self._in(self.faults.dies_every, self._kill_agent)

    # What came of it.

    def _judge(self, entry: Entry, held: tuple[int, ...] | None) -> None:
        if entry.promise is None or entry.job.foreign or entry.gone:
            return
        node = entry.record.node
        assert node is not None
        mask = sum(1 << p for p in held or ())
        shape = self.nodes[node].shape
        if held is not None and satisfies(shape, entry.request.constraints, mask):
            return
        strangers = [
            other
            for other in self._admitted[node]
            if other.job.foreign and other.seen > entry.decided
        ]
        if not strangers:
            self.tally.broken[entry.promise] += 1
            self.tally.broken_jobs.append(f"{entry.record.name} on {node}: {held}")
        elif all(self._should_have_known(other, entry) for other in strangers):
            self.tally.unseen[entry.promise] += 1
        else:
            self.tally.excused[entry.promise] += 1

    def _should_have_known(self, other: Entry, entry: Entry) -> bool:
        """Whether the watch on pods had been failing for long when the promise was made."""
        return entry.blind_for > SLACK + 1 and other.bound < entry.decided

    def _restart(self) -> None:
        """The extender is killed; a new one lists everything, as it is at the API server now."""
        self.tally.restarts += 1
        self._lives += 1
        self.policy.restart()
        for watch in ("pods", "records"):
            self._watches.pop(watch, None)
            self._fails.pop(watch, None)
            self.policy.watch_heard(watch)
        for name, heard in self._published.items():
            self.policy.put_report(self.nodes[name], heard)
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
