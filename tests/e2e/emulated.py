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
from collections.abc import Iterable, Iterator
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
# Seconds after which an agent reports though nothing has changed. A pod that was deleted by force
# holds its GPUs until the second report after it, as these do not say which pods they knew.
HEARTBEAT = 3.0
ALL_PODS = "/api/v1/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Kubelets:
    """Plays the kubelets of some nodes while the context is open.

    ``held`` are the pods that hold GPUs, ``refused`` the pods that a kubelet refused, over all
    nodes. At the end no promise may be broken, and no thread may have failed.
    """

    def __init__(self, real: RealCluster, nodes: list[NodeTopology], seed: int) -> None:
        self._real = real
        self.held: set[str] = set()
        self.refused: list[str] = []
        self._broken: list[str] = []
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
        if error is None:
            assert self.errors == []
            assert self._broken == []

    def record(self, pod: dict[str, Any], node: NodeTopology, held: tuple[int, ...]) -> None:
        """Note what an admitted pod got, and whether that keeps what it was promised."""
        meta = pod["metadata"]
        asks = parse(msgspec.convert(pod, Pod))
        mask = sum(1 << p for p in held)
        promised = PLACEMENT in meta.get("annotations", {})
        with self._lock:
            self.held.add(meta["name"])
            if (
                promised
                and isinstance(asks, Asks)
                and asks.request.required
                and not satisfies(node.shape, asks.request.constraints, mask)
            ):
                verdict = json.loads(meta["annotations"][PLACEMENT])["verdict"]
                self._broken.append(f"{verdict}: {meta['name']} on {node.name}: {held}")

    def refuse(self, pod: dict[str, Any], reason: str) -> None:
        """Note a pod that a kubelet refused."""
        with self._lock:
            self.refused.append(f"{pod['metadata']['name']}: {reason}")

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
            node.inbox.put((pod["metadata"]["uid"], None if kind == "DELETED" else pod))


class EmulatedNode:
    """One node's kubelet and agent, as far as it does not matter how they write to the API server.

    Who inherits says how a pod is admitted, what follows when one ends, and what is written.
    """

    reports = (0.0, 0.3)  # seconds that the agent takes to report a change, from and to

    def __init__(self, topology: NodeTopology, rng: random.Random) -> None:
        self.name = str(topology.name)
        self._rng = rng
        self._kubelet = EmulatedKubelet(topology, rng)
        self._known: dict[str, dict[str, Any]] = {}
        self._running: dict[str, float] = {}
        self._leaving: dict[str, float] = {}
        self._report_at: float | None = None

    def _admit(self, pod: dict[str, Any]) -> None:
        """Give the pod its devices, or refuse it."""
        raise NotImplementedError

    def _end(self, uid: str) -> None:
        """A pod holds nothing any more."""
        raise NotImplementedError

    def _say(self, uid: str, phase: str) -> None:
        """Tell the API server a pod's phase, or, if that is empty, that it can be deleted."""
        raise NotImplementedError

    def _take(self, news: Iterable[tuple[str, dict[str, Any] | None]]) -> None:
        """Hear of pods by their UIDs (None: it is gone), and admit the new ones, oldest first."""
        batch: dict[str, dict[str, Any]] = {}
        for uid, pod in news:
            if pod is None:
                batch.pop(uid, None)
                self._end(uid)
                self._running.pop(uid, None)
                self._leaving.pop(uid, None)
                self.changed()  # whoever waits for the pod to go has to hear that we know
                continue
            if pod["metadata"].get("deletionTimestamp") and uid not in self._leaving:
                self._leaving[uid] = time.monotonic() + self._rng.uniform(0.0, 0.5)
            if uid not in self._known:
                self._known[uid] = pod
                if pod["status"].get("phase", "Pending") == "Pending":
                    batch[uid] = pod
        come = [pod for uid, pod in batch.items() if uid not in self._leaving]
        for pod in sorted(come, key=lambda p: p["metadata"]["creationTimestamp"]):
            self._admit(pod)

    def _run_for_a_while(self, pod: dict[str, Any]) -> None:
        """The pod runs for the seconds that its annotation gives."""
        meta = pod["metadata"]
        runs = float(meta.get("annotations", {}).get(RUNS, "1e9"))
        self._running[meta["uid"]] = time.monotonic() + runs
        self.changed()
        self._say(meta["uid"], "Running")

    def _let_end(self) -> None:
        now = time.monotonic()
        for uid in [uid for uid, until in self._running.items() if now >= until]:
            del self._running[uid]
            self._end(uid)
            self._say(uid, "Succeeded")
        for uid in [uid for uid, until in self._leaving.items() if now >= until]:
            del self._leaving[uid]
            self._running.pop(uid, None)
            self._end(uid)
            self._say(uid, "")

    def _path(self, uid: str) -> str:
        meta = self._known[uid]["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    def changed(self) -> None:
        """Something may have changed: there will be a report."""
        if self._report_at is None:
            least, most = self.reports
            late = self._rng.random() < 0.05
            seconds = self._rng.uniform(least, most + 2.0 if late else most)
            self._report_at = time.monotonic() + seconds


class _Node(EmulatedNode):
    """A node whose kubelet writes at once."""

    def __init__(self, kubelets: Kubelets, topology: NodeTopology, rng: random.Random) -> None:
        super().__init__(topology, rng)
        self._kubelets = kubelets
        self._topology = topology
        self._record = f"/apis/gpu-topology.io/v1alpha1/gputopologies/{topology.name}/status"
        self.inbox: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self._heartbeat_at = time.monotonic() + HEARTBEAT
        self.thread = threading.Thread(
            target=kubelets.run, args=(self._run,), name=topology.name, daemon=True
        )

    def _run(self) -> None:
        with self._kubelets.client() as api:
            self._api = api
            while not self._kubelets.stopping:
                time.sleep(self._rng.uniform(0.0, 0.1))  # in which more may come
                self._take(self._news())
                self._let_end()
                self._report()

    def _news(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        while not self.inbox.empty():
            yield self.inbox.get_nowait()

    def _admit(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        asks = parse(msgspec.convert(pod, Pod))
        if not isinstance(asks, Asks):
            return
        uid = PodUid(meta["uid"])
        try:
            for _ in self._kubelet.admission(uid, meta["namespace"], meta["name"], asks.request):
                self.changed()
                time.sleep(self._rng.uniform(0.0, 0.03))
                self._report()
        except Refused as refusal:
            self._kubelets.refuse(pod, str(refusal))
            self._say(uid, "Failed")
            return
        self._kubelets.record(pod, self._topology, self._kubelet.held(uid))
        self._run_for_a_while(pod)

    def _end(self, uid: str) -> None:
        self._kubelet.end(PodUid(uid))
        self.changed()

    def _say(self, uid: str, phase: str) -> None:
        path = self._path(uid)
        if phase:
            content = json.dumps({"status": {"phase": phase}})
            self._api.patch(f"{path}/status", content=content, headers=MERGE)
        else:
            self._api.delete(path, params={"gracePeriodSeconds": 0})

    def _report(self) -> None:
        now = time.monotonic()
        due = self._heartbeat_at if self._report_at is None else self._report_at
        if now < due:
            return
        self._report_at, self._heartbeat_at = None, now + HEARTBEAT
        # A merge leaves in place what it does not name, and this agent does not say what it knew.
        status = {"podsResourceVersion": None, **codec.encode_report(self._kubelet.report())}
        content = json.dumps({"status": status})
        answer = self._api.patch(self._record, content=content, headers=MERGE)
        assert answer.is_success, answer.text
