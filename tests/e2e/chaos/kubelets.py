"""Emulated kubelets and agents that go on while the API server is away, as real ones do.

Each node has a thread. It admits the pods that are bound to it, oldest first, gives them devices as
NVIDIA's plugin would (:mod:`topology.emulation`), ends them after the seconds that their annotation
gives, and finishes deletions. What it cannot write to the API server it writes later. Its agent
reports after a while, now and then late, and not at all while it is :attr:`Node.silent`.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from tests.chaos import history
from tests.chaos.history import Recorder
from tests.e2e.cluster import RECORDS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.emulated import ALL_PODS, MERGE, EmulatedNode
from tests.waiting import PATIENCE
from topology import codec
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.core.requests import gpu_request
from topology.emulation import Refused
from topology.kubeapi.apiserver import ApiServer
from topology.kubeapi.reflector import Reflector, Watched

RESOURCE = "nvidia.com/gpu"
WRITE_TIMEOUT = 2.0
# Seconds after which an agent reports though nothing has changed; the real one takes a minute.
HEARTBEAT = 15.0
AGAIN = 0.5  # seconds before a write that failed is tried again


class Kubelets:
    """Plays the kubelets and agents of some nodes while the context is open.

    ``reports`` is how many seconds the agents take to report a change, from and to.
    """

    def __init__(
        self,
        plane: ControlPlane,
        nodes: Sequence[NodeTopology],
        seed: int,
        recorder: Recorder,
        reports: tuple[float, float] = (0.0, 0.3),
    ) -> None:
        self._plane = plane
        self.reports = reports
        self.recorder = recorder
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.nodes = {
            str(node.name): Node(self, node, random.Random(seed * 1000 + i))
            for i, node in enumerate(nodes)
        }
        recorder.extend(_described(node) for node in nodes)

    def __enter__(self) -> Self:
        self._api = ApiServer.from_kubeconfig(self._plane.kubeconfig())
        self._reflector = Reflector(self._api, Watched(ALL_PODS, "kubelets"), _Inboxes(self.nodes))
        self._reflector.start()
        for node in self.nodes.values():
            node.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        for node in self.nodes.values():
            node.thread.join(PATIENCE)
        self._api.close()
        self._reflector.stop(PATIENCE)

    def client(self) -> httpx.Client:
        """A client of the API server for one thread."""
        found = self._plane.client()
        found.timeout = httpx.Timeout(WRITE_TIMEOUT)
        return found


def _described(node: NodeTopology) -> history.Node:
    uuids = [str(gpu.uuid) for gpu in node.gpus]
    linked = [[uuids[link.a], uuids[link.b]] for link in node.links if link.nvlinks]
    return history.Node(str(node.name), uuids, linked)


@dataclass(frozen=True, slots=True)
class _News:
    """What the API server says as of a resourceVersion: a pod, or that it is gone (no ``pod``), or
    that nothing else has happened (no ``uid``)."""

    version: str
    uid: str = ""
    pod: dict[str, Any] | None = None


class _Inboxes:
    """Hands each node what the API server says of its pods."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes
        self._known: dict[str, str] = {}

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        pods = [msgspec.json.decode(obj) for obj in objects]
        gone = self._known.keys() - {pod["metadata"]["uid"] for pod in pods}
        for uid in gone:
            self._nodes[self._known.pop(uid)].inbox.put(_News(resource_version, uid))
        for pod in pods:
            self._take(pod)
        for node in self._nodes.values():
            node.inbox.put(_News(resource_version))

    def apply(self, obj: msgspec.Raw) -> None:
        self._take(msgspec.json.decode(obj))

    def delete(self, obj: msgspec.Raw) -> None:
        meta = msgspec.json.decode(obj)["metadata"]
        if meta["uid"] in self._known:
            news = _News(meta["resourceVersion"], meta["uid"])
            self._nodes[self._known.pop(meta["uid"])].inbox.put(news)

    def _take(self, pod: dict[str, Any]) -> None:
        node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
        if node in self._nodes:
            self._known[meta["uid"]] = node
            self._nodes[node].inbox.put(_News(meta["resourceVersion"], meta["uid"], pod))


@dataclass(slots=True)
class _Write:
    """What is to be written about a pod: its phase, or that it can be deleted."""

    uid: str
    path: str
    phase: str
    due: float = 0.0


class Node(EmulatedNode):
    """One node's kubelet and agent. While it is ``silent`` the agent writes nothing."""

    def __init__(self, kubelets: Kubelets, topology: NodeTopology, rng: random.Random) -> None:
        super().__init__(topology, rng)
        self.reports = kubelets.reports
        self._kubelets = kubelets
        self._recorder = kubelets.recorder
        self._record = f"{RECORDS}/{self.name}"
        self.inbox: queue.Queue[_News] = queue.Queue()
        self.silent = False
        self._pods_version = ""
        self._holding: set[str] = set()
        self._writes: list[_Write] = []
        self._due = 0.0
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def restart_agent(self) -> None:
        """The agent has started again: it reports at once, whatever has changed."""
        self.silent = False
        self._due = 0.0

    def _run(self) -> None:
        try:
            with self._kubelets.client() as self._api:
                while not self._kubelets.stopping.is_set():
                    self._turn()
        except BaseException as error:
            self._kubelets.errors.append(error)
            raise

    def _turn(self) -> None:
        self._kubelets.stopping.wait(self._rng.uniform(0.02, 0.1))  # in which more may come
        self._take(self._news())
        self._let_end()
        self._write()
        self._report()

    def _news(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        while not self.inbox.empty():
            news = self.inbox.get_nowait()
            self._pods_version = news.version
            if news.uid:
                yield news.uid, news.pod

    def _admit(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        count = _gpus(pod)
        if not count:
            return
        recorder = self._recorder
        try:
            self._kubelet.admit(PodUid(uid), meta["namespace"], meta["name"], gpu_request(count))
        except Refused as refusal:
            recorder.add(history.Refused(recorder.now, self.name, uid, str(refusal)))
            self._say(uid, "Failed")
            return
        held = self._kubelet.held(PodUid(uid))
        devices = [str(self._kubelet.topology.gpus[p].uuid) for p in held]
        recorder.add(history.Given(recorder.now, self.name, uid, devices))
        self._holding.add(uid)
        self._run_for_a_while(pod)

    def _end(self, uid: str) -> None:
        if uid in self._holding:
            self._holding.remove(uid)
            self._recorder.add(history.Released(self._recorder.now, self.name, uid))
            self._kubelet.end(PodUid(uid))
            self.changed()

    def _say(self, uid: str, phase: str) -> None:
        self._writes.append(_Write(uid, self._path(uid), phase))

    def _write(self) -> None:
        """Write what is due; of one pod, one thing after the other."""
        now = time.monotonic()
        blocked: set[str] = set()
        for write in list(self._writes):
            if write.uid not in blocked and now >= write.due:
                if self._written(write):
                    self._writes.remove(write)
                    continue
                write.due = now + AGAIN
            blocked.add(write.uid)

    def _written(self, write: _Write) -> bool:
        """Whether the API server has taken it, or has no use for it."""
        try:
            if write.phase:
                body = {"metadata": {"uid": write.uid}, "status": {"phase": write.phase}}
                content = json.dumps(body)
                answer = self._api.patch(f"{write.path}/status", content=content, headers=MERGE)
            else:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": write.uid}}
                answer = self._api.request("DELETE", write.path, json=options)
            if answer.status_code == 409:  # another pod of its name, or somebody else was faster
                found = self._api.get(write.path)
                return found.is_success and found.json()["metadata"]["uid"] != write.uid
        except httpx.HTTPError:
            return False
        return answer.is_success or answer.status_code == 404

    def _report(self) -> None:
        due = min(self._due, self._report_at if self._report_at is not None else self._due)
        if self.silent or time.monotonic() < due:
            return
        report = replace(self._kubelet.report(), pods_version=self._pods_version)
        status = codec.encode_report(report)
        try:
            version = self._api.get(self._record).json()["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "status": status}
            where = f"{self._record}/status"
            answer = self._api.patch(where, content=json.dumps(body), headers=MERGE)
        except (httpx.HTTPError, ValueError, KeyError):
            self._report_at, self._due = None, time.monotonic() + AGAIN
            return
        self._report_at = None
        self._due = time.monotonic() + (HEARTBEAT if answer.is_success else AGAIN)


def _gpus(pod: dict[str, Any]) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(found.get(RESOURCE, 0)) for found in limits)
