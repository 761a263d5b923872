"""Simulate the same nodes over a real API server: bound pods run, and records show them.

One thread simulates all nodes. Other threads write to the API server. For each pod and each record
there is one write at a time. A failed write is repeated, since the server may be away.
"""

import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, Self

import msgspec

from scheduler_extender.annotations import PLAY_SECONDS
from scheduler_extender.kube.sinks import PODS_PATH, RECORDS_PATH
from scheduler_extender.simulator.clock import WallClock
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.simulator.node import Node, Server
from scheduler_extender.simulator.pods import Job, Manifest, PodEntry, PublishedReport
from scheduler_extender.simulator.scene import Observer, Scene
from topology.codec import encode_report
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.refusal import REJECTED
from topology.core.report import READY, Condition
from topology.emulation import MixedKubelet, Refused
from topology.kubeapi.apiserver import ApiError, ApiFailure, ApiServer, ConflictError, path
from topology.kubeapi.reflector import Reflector, Watched
from topology.times import time_text

WRITERS = 8
WITHIN = 2.0  # seconds that a write may take
AGAIN = 0.5  # seconds before a failed write is tried again
# Statuses that a repeated write would get again: a quota or policy forbids it, or the pod is gone.
LASTING = (403, 404, 422)
ENDS_WITHIN = 60.0  # seconds for which the simulating thread is awaited
# Agents that mostly report at once.
SOON = Delays(
    watch=0.0, container=0.015, grace=0.25, look=0.15, late=1.0, late_fraction=0.05, forgets=1.0
)
LINGER = Faults(linger=0.1)


class Writes:
    """Pending writes, of each key the latest. A write returns whether it is done."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._wanted: dict[str, Callable[[], bool]] = {}
        self._under_way: set[str] = set()
        self.pool = ThreadPoolExecutor(WRITERS)

    def put(self, key: str, write: Callable[[], bool]) -> None:
        """Write this, in place of an earlier pending write of the key."""
        self._wanted[key] = write
        self._begin(key)

    def _begin(self, key: str) -> None:
        if key in self._wanted and key not in self._under_way:
            self._under_way.add(key)
            write = self._wanted.pop(key)
            ended = self.pool.submit(write)
            ended.add_done_callback(lambda e: self._clock.post(partial(self._end, key, write, e)))

    def _end(self, key: str, write: Callable[[], bool], ended: Future[bool]) -> None:
        self._under_way.discard(key)
        if ended.result():
            self._begin(key)
        else:
            self._wanted.setdefault(key, write)
            self._clock.after(AGAIN, partial(self._begin, key))


class PlayedNodes(Server):
    """The kubelets and agents of nodes, simulated inside the block. The Node objects must exist.

    ``errors`` are those of its threads. At the end the client ``api`` is closed, which ends waiting
    requests.
    """

    def __init__(
        self,
        api: ApiServer,
        nodes: Iterable[NodeTopology],
        seed: int,
        observer: Observer,
        heartbeat: float,
        delays: Delays = SOON,
    ) -> None:
        self._api, self._heartbeat = api, heartbeat
        rng = random.Random(seed)
        known = {node.name: node for node in nodes}
        self.clock = WallClock(rng)
        kubelets = {name: MixedKubelet(node, rng) for name, node in known.items()}
        self._observer = observer
        scene = Scene(self.clock, known, kubelets, delays, LINGER, observer=observer)
        self.nodes = {name: Node(scene, name, self) for name in known}
        self.errors: list[BaseException] = []
        self._ready = Condition(READY, True, "Watching", since=time_text(api.today()))
        self._entries: dict[PodUid, PodEntry] = {}
        self._writes = Writes(self.clock)
        self._reflector = Reflector(api, Watched(PODS_PATH, "played nodes"), self)
        self._thread = threading.Thread(target=self._run, name="played nodes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._reflector.start()
        self.clock.post(self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.stop()
        self._thread.join(ENDS_WITHIN)
        self._reflector.stop(WITHIN)
        self._api.close()  # ends a list that is still under way
        self._writes.pool.shutdown()

    def _run(self) -> None:
        try:
            self.clock.play()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _beat(self) -> None:
        for node in self.nodes.values():
            node.look()
        self.clock.after(self._heartbeat, self._beat)

    # Events from the API server. The reflector's thread calls these methods.

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take in a list of all pods."""
        pods = [msgspec.json.decode(obj) for obj in objects]
        self.clock.post(partial(self._take_list, pods, resource_version))

    def apply(self, obj: msgspec.Raw) -> None:
        """Take in a changed pod."""
        self.clock.post(partial(self._see, msgspec.json.decode(obj)))

    def delete(self, obj: msgspec.Raw) -> None:
        """Take in a deleted pod."""
        meta = msgspec.json.decode(obj)["metadata"]
        self.clock.post(partial(self._forget, PodUid(meta["uid"]), meta["resourceVersion"]))

    def _take_list(self, pods: list[Manifest], version: str) -> None:
        for uid in self._entries.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._forget(uid, version)
        for pod in pods:
            self._see(pod)
        for node in self.nodes.values():
            node.hear(version, left=True)

    def _see(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        if node is None:
            return
        entry = self._entries.get(meta["uid"])
        leaving = entry is not None and entry.record.terminating
        if entry is None:
            created = datetime.fromisoformat(meta["creationTimestamp"]).timestamp()
            entry = PodEntry.of(Job(0.0, _seconds(pod), pod), created)
            self._entries[entry.record.uid] = entry
            self._observer.bound(entry)
            entry.admitted = pod["status"].get("phase", "Pending") != "Pending"
            if not entry.admitted:
                node.bound(entry)
        if "deletionTimestamp" in meta and not leaving:
            entry.record = replace(entry.record, terminating=True)
            node.terminate(entry)
        node.hear(meta["resourceVersion"], left=False)

    def _forget(self, uid: PodUid, version: str) -> None:
        entry = self._entries.pop(uid, None)
        if entry is not None:
            entry.gone = True
            if not entry.ended:
                self.nodes[entry.node].force_deleted(entry)
            self.nodes[entry.node].hear(version, left=True)

    # Writes of the nodes.

    def running(self, entry: PodEntry) -> None:
        """Write to the pod's status that it runs."""
        started = time_text(int(self._api.today()))
        self._say(entry, {"startTime": started, **_status(entry.manifest, "Running")})

    def finish(self, entry: PodEntry, phase: str, refusal: Refused | None = None) -> None:
        """Write to the pod's status how it ended, or delete the pod if it is terminating."""
        entry.ended = True
        status = _status(entry.manifest, phase)
        if refusal is not None:
            words = {"reason": str(refusal), "message": f"{REJECTED}: {refusal.message}"}
            status = {"phase": phase, **words, "startTime": time_text(int(self._api.today()))}
        self._say(entry, {} if entry.record.terminating else status)

    def _say(self, entry: PodEntry, status: Manifest) -> None:
        self._writes.put(entry.record.uid, partial(self._written, entry, status))

    def _written(self, entry: PodEntry, status: Manifest) -> bool:
        """Write a pod's status; return whether that is done, or has no use any more."""
        record = entry.record
        where = path("/api/v1/namespaces", record.namespace, "pods", record.name)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": record.uid}}
        try:
            if status:
                body = {"metadata": {"uid": record.uid}, "status": status}
                self._api.patch(f"{where}/status", msgspec.json.encode(body), timeout=WITHIN)
                if "reason" in status:
                    where = path("/api/v1/namespaces", record.namespace, "events")
                    told = msgspec.json.encode(_event(entry, status))
                    with suppress(ConflictError):  # an earlier try has created it
                        self._api.create(where, told, timeout=WITHIN)
            else:
                self._api.delete(where, msgspec.json.encode(options), timeout=WITHIN)
        except ApiError as error:
            return entry.gone or error.status in LASTING
        except ApiFailure:
            return entry.gone
        return True

    def publish(self, node: NodeName, published: PublishedReport) -> None:
        """Write a report to the node's record."""
        report = replace(
            published.report,
            observed_at=time_text(self._api.today()),
            conditions=published.report.conditions or (self._ready,),
        )
        status = encode_report(report, self.nodes[node].topology)
        self._writes.put(node, partial(self._reported, path(RECORDS_PATH, node), status))

    def _reported(self, where: str, status: Any) -> bool:
        """Write a report; return whether that is done.

        A write that hangs overwrites no later one.
        """
        try:
            found = msgspec.json.decode(self._api.get(where, timeout=WITHIN))
            meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
            body = msgspec.json.encode({"metadata": meta, "status": status})
            self._api.patch(f"{where}/status", body, timeout=WITHIN)
        except ApiFailure:
            return False
        return True


def _seconds(pod: Manifest) -> float:
    """Return for how many seconds a pod runs. Without a readable annotation it runs on."""
    try:
        seconds = float(pod["metadata"].get("annotations", {}).get(PLAY_SECONDS, inf))
    except ValueError:
        return inf
    return seconds if seconds >= 0 else inf


def _event(entry: PodEntry, status: Manifest) -> Manifest:
    """Return the Event of a refusal, with a name of its own, so that it is written once."""
    named = ("namespace", "name", "uid", "resourceVersion")
    pod = {key: entry.manifest["metadata"][key] for key in named}
    return {
        "metadata": {"name": f"refused-{entry.record.uid}"},
        "type": "Warning",
        "reason": status["reason"],
        "message": status["message"].removeprefix(f"{REJECTED}: "),
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **pod},
        "source": {"component": "kubelet", "host": entry.node},
        "firstTimestamp": status["startTime"],
        "lastTimestamp": status["startTime"],
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": entry.node,
    }


def _status(pod: Manifest, phase: str) -> Manifest:
    """Return the status of a pod whose containers run or, in another phase, have succeeded."""
    runs = phase == "Running"
    state = {"running": {}} if runs else {"terminated": {"exitCode": 0, "reason": "Completed"}}
    conditions = {"PodScheduled": True, "Initialized": True, "ContainersReady": runs, "Ready": runs}
    container = {"imageID": "", "ready": runs, "restartCount": 0, "state": state}
    return {
        "phase": phase,
        "conditions": [{"type": kind, "status": str(holds)} for kind, holds in conditions.items()],
        "containerStatuses": [
            {"name": each["name"], "image": each.get("image", ""), **container}
            for each in pod["spec"]["containers"]
        ],
    }
