"""Emulated kubelets and agents against the real API server: one thread a node, one watch for all.

Each thread admits the pods of its node in batches, oldest first, container by container; reports
after a while, now and then late; ends pods after the seconds that their annotation gives; and
finishes deletions. What the device plugin would do is played by :mod:`topology.emulation`.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from scheduler_extender.annotations import PLACEMENT, Asks, parse
from scheduler_extender.wire import Pod
from tests.e2e.cluster import RealCluster
from tests.waiting import PATIENCE
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.placement import satisfies
from topology.emulation import EmulatedKubelet, Refused

RUNS = "e2e/runs-seconds"
HEARTBEAT = 60.0  # seconds after which an agent reports though nothing has changed
ALL_PODS = "/api/v1/pods"


@dataclass(slots=True)
class Kept:
    """What the kubelets saw, over all nodes."""

    admitted: int = 0
    promised: int = 0
    broken: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    held: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


class Kubelets:
    """Plays the kubelets of some nodes while the context is open."""

    def __init__(self, real: RealCluster, nodes: list[NodeTopology], seed: int) -> None:
        self._real = real
        self.kept = Kept()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._nodes = {
            node.name: _Node(self, node, random.Random(seed + i)) for i, node in enumerate(nodes)
        }
        self.errors: list[BaseException] = []
        self._watcher = threading.Thread(target=self._guard, args=(self._watch,), daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        for node in self._nodes.values():
            node.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for node in self._nodes.values():
            node.thread.join(PATIENCE)
        self._watcher.join(PATIENCE)

    def record(self, pod: dict[str, Any], node: NodeTopology, held: tuple[int, ...]) -> None:
        """Note what an admitted pod got, and whether that keeps what it was promised."""
        meta = pod["metadata"]
        asks = parse(msgspec.convert(pod, Pod))
        mask = sum(1 << p for p in held)
        promised = PLACEMENT in meta.get("annotations", {})
        with self._lock:
            self.kept.admitted += 1
            self.kept.held[meta["name"]] = (node.name, held)
            if promised and isinstance(asks, Asks) and asks.request.required:
                self.kept.promised += 1
                if not satisfies(node.shape, asks.request.constraints, mask):
                    verdict = json.loads(meta["annotations"][PLACEMENT])["verdict"]
                    self.kept.broken.append(f"{verdict}: {meta['name']} on {node.name}: {held}")

    def refuse(self, pod: dict[str, Any], reason: str) -> None:
        """Note a pod that a kubelet refused."""
        with self._lock:
            self.kept.refused.append(f"{pod['metadata']['name']}: {reason}")

    def run(self, work: Any) -> None:
        """Run a node's thread until the context closes."""
        self._guard(work)

    def report_again(self, name: str) -> None:
        """Let a node's agent report soon, though nothing has changed."""
        self._nodes[NodeName(name)].changed()

    @property
    def stopping(self) -> bool:
        """Whether the context is closing."""
        return self._stopping.is_set()

    def client(self) -> httpx.Client:
        """A client of its own for a thread."""
        return self._real.control_plane.client()

    def _guard(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            if not self.stopping:
                self.errors.append(error)
                raise

    def _watch(self) -> None:
        with self.client() as api:
            listed = api.get(ALL_PODS).json()
            version = listed["metadata"]["resourceVersion"]
            for pod in listed["items"]:
                self._see("ADDED", pod)
            while not self.stopping:
                params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "5"}
                with api.stream("GET", ALL_PODS, params=params, timeout=PATIENCE) as answer:
                    for line in answer.iter_lines():
                        event = json.loads(line)
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._see(event["type"], event["object"])

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node is not None:
            node.inbox.put((kind, pod))


class _Node:
    """One node's kubelet and agent."""

    def __init__(self, kubelets: Kubelets, topology: NodeTopology, rng: random.Random) -> None:
        self._kubelets = kubelets
        self._topology = topology
        self._rng = rng
        self._kubelet = EmulatedKubelet(topology, rng)
        self._path = f"/apis/gpu-topology.io/v1alpha1/gputopologies/{topology.name}/status"
        self.inbox: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
        self._known: dict[str, dict[str, Any]] = {}
        self._running: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._report_at: float | None = None
        self._heartbeat_at = time.monotonic() + HEARTBEAT
        self.thread = threading.Thread(
            target=kubelets.run, args=(self._run,), name=topology.name, daemon=True
        )

    def _run(self) -> None:
        with self._kubelets.client() as api:
            self._api = api
            while not self._kubelets.stopping:
                batch = self._take()
                for pod in sorted(batch, key=lambda p: p["metadata"]["creationTimestamp"]):
                    self._admit(pod)
                self._let_end()
                self._report()

    def _take(self) -> list[dict[str, Any]]:
        """New pods of this node, after a short while in which more may come."""
        time.sleep(self._rng.uniform(0.0, 0.1))
        batch = []
        while not self.inbox.empty():
            kind, pod = self.inbox.get_nowait()
            uid = pod["metadata"]["uid"]
            if kind == "DELETED":
                self._forget(uid)
            elif pod["metadata"].get("deletionTimestamp") and uid not in self._leaving:
                self._leaving[uid] = time.monotonic() + self._rng.uniform(0.0, 0.5)
            elif uid not in self._known and pod["status"].get("phase", "Pending") == "Pending":
                self._known[uid] = pod
                batch.append(pod)
        return batch

    def _admit(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        asks = parse(msgspec.convert(pod, Pod))
        if not isinstance(asks, Asks) or meta["uid"] in self._leaving:
            return
        uid = PodUid(meta["uid"])
        try:
            for _ in self._kubelet.admission(uid, meta["namespace"], meta["name"], asks.request):
                self.changed()
                time.sleep(self._rng.uniform(0.0, 0.03))
                self._report()
        except Refused as refusal:
            self._kubelets.refuse(pod, str(refusal))
            self._phase(pod, "Failed")
            return
        self._kubelets.record(pod, self._topology, self._kubelet.held(uid))
        runs = float(meta.get("annotations", {}).get(RUNS, "1e9"))
        self._running[meta["uid"]] = time.monotonic() + runs
        self._phase(pod, "Running")

    def _let_end(self) -> None:
        now = time.monotonic()
        for uid, until in list(self._running.items()):
            if now >= until:
                del self._running[uid]
                self._kubelet.end(PodUid(uid))
                self.changed()
                self._phase(self._known[uid], "Succeeded")
        for uid, until in list(self._leaving.items()):
            if now >= until and uid in self._known:
                self._kubelet.end(PodUid(uid))
                self.changed()
                meta = self._known[uid]["metadata"]
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                self._api.delete(path, params={"gracePeriodSeconds": 0})
                self._forget(uid)

    def _forget(self, uid: str) -> None:
        self._kubelet.end(PodUid(uid))
        self.changed()
        self._running.pop(uid, None)

    def _phase(self, pod: dict[str, Any], phase: str) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        kind = {"Content-Type": "application/merge-patch+json"}
        self._api.patch(path, content=json.dumps({"status": {"phase": phase}}), headers=kind)

    def changed(self) -> None:
        """Something may have changed: there will be a report."""
        if self._report_at is None:
            late = self._rng.random() < 0.05
            self._report_at = time.monotonic() + self._rng.uniform(0.0, 2.5 if late else 0.3)

    def _report(self) -> None:
        now = time.monotonic()
        due = self._heartbeat_at if self._report_at is None else self._report_at
        if now < due:
            return
        self._report_at, self._heartbeat_at = None, now + HEARTBEAT
        # A merge leaves in place what it does not name, and this agent does not say what it knew.
        status = {"podsResourceVersion": None, **codec.encode_report(self._kubelet.report())}
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self._api.patch(self._path, content=json.dumps({"status": status}), headers=kind)
        assert answer.is_success, answer.text
