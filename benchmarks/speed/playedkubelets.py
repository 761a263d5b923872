"""The kubelets and agents of a throughput measurement, which are played.

Each bound pod is admitted at once and gets its devices as NVIDIA's plugin would give them; then its
node's record says so.
"""

from __future__ import annotations

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from benchmarks.speed.processes import WITHIN
from scheduler_extender.annotations import Asks, parse
from scheduler_extender.wire import Pod
from topology.codec import encode_report
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.emulation import EmulatedKubelet
from topology.kubeapi.apiserver import ApiServer

PODS = "/api/v1/namespaces/default/pods"
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
AT_ONCE = 8  # requests at one time while the cluster is filled, and of all kubelets in a round
AGENTS_AT_ONCE = 8
"""Records that agents write at one time. Where more have news they write it later, and all of it
at once: an API server of one core would do nothing else."""


class _Event(msgspec.Struct):
    type: str
    object: Pod


_decode_event = msgspec.json.Decoder(_Event).decode


class PlayedKubelets:
    """Follows the pods of a round, and plays the kubelets and agents of the nodes they come to.

    Each admits a pod as soon as it hears of it, says so in the pod's status, and publishes who
    holds what: the extender waits for both.
    """

    def __init__(self, api: ApiServer, pods: int, nodes: dict[str, PlayedNode]) -> None:
        self._api, self._pods, self._nodes = api, pods, nodes
        self._used: set[str] = set()
        self._changed = threading.Condition()
        self._bound: set[str] = set()
        self._times: list[float] = []
        self._kubelets = ThreadPoolExecutor(AT_ONCE)
        self._agents = ThreadPoolExecutor(AGENTS_AT_ONCE)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def first(self) -> None:
        """Wait until one pod is bound."""
        self._wait(1)

    def rest(self) -> tuple[float, int]:
        """Wait until all are; seconds since the first one, and how many were bound in them."""
        self._wait(self._pods)
        return self._times[-1] - self._times[0], self._pods - 1

    def settled(self) -> float:
        """Wait until every pod runs and its node's record says so; seconds since the first pod was
        bound."""
        self._kubelets.shutdown()
        self._agents.shutdown()
        return time.monotonic() - self._times[0]

    def end(self) -> None:
        """The pods are gone; the records say so."""
        self._thread.join()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: self._nodes[name].forget(self._api), self._used))

    def _wait(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._bound) >= count, WITHIN):
                raise TimeoutError(f"{len(self._bound)} of {count} pods bound in {WITHIN:g} s")

    def _follow(self) -> None:
        first = json.loads(self._api.get(PODS, [("limit", "1")], timeout=WITHIN))
        query = [("watch", "true"), ("fieldSelector", "spec.nodeName!=")]
        query.append(("resourceVersion", first["metadata"]["resourceVersion"]))
        while len(self._bound) < self._pods:
            watch = self._api.stream(PODS, query, connect_timeout=WITHIN, read_timeout=WITHIN)
            for line in watch:
                event = _decode_event(line)
                if event.type in ("ADDED", "MODIFIED"):
                    self._note(event.object)
                if len(self._bound) >= self._pods:
                    break
            watch.close()

    def _note(self, pod: Pod) -> None:
        name, node = pod.metadata.name, pod.spec.node_name or ""
        with self._changed:
            if name in self._bound:
                return
            self._bound.add(name)
            self._times.append(time.monotonic())
            self._changed.notify_all()
            self._used.add(node)
        self._kubelets.submit(self._admit, self._nodes[node], pod)

    def _admit(self, node: PlayedNode, pod: Pod) -> None:
        node.admit(self._api, pod)
        self._agents.submit(node.tell, self._api)


class PlayedNode:
    """One node's kubelet and agent. Its record is there, with the sequence 0."""

    def __init__(self, topology: NodeTopology) -> None:
        self._topology = topology
        self._kubelet = EmulatedKubelet(topology, random.Random(1))
        self._admitting, self._telling = threading.Lock(), threading.Lock()
        self._admitted = self._told = self._sequence = 0

    def admit(self, api: ApiServer, pod: Pod) -> None:
        """Give the pod its GPUs, and say so in its status."""
        meta, asks = pod.metadata, parse(pod)
        assert isinstance(asks, Asks)
        with self._admitting:
            self._kubelet.admit(PodUid(meta.uid), meta.namespace, meta.name, asks.request)
            self._admitted += 1
        patch(api, f"{PODS}/{meta.name}/status", {"status": started("Running")})

    def tell(self, api: ApiServer) -> None:
        """Publish who holds what."""
        with self._telling:
            with self._admitting:
                if self._told == self._admitted:
                    return  # another has told of this pod, too
                self._told, report = self._admitted, self._kubelet.report()
            self._publish(api, report)

    def forget(self, api: ApiServer) -> None:
        """Nobody holds anything any more."""
        self._kubelet = EmulatedKubelet(self._topology, random.Random(1))
        self._publish(api, self._kubelet.report())

    def _publish(self, api: ApiServer, report: Report) -> None:
        self._sequence += 1
        status = json.loads(json.dumps(encode_report(replace(report, sequence=self._sequence))))
        patch(api, f"{RECORDS}/{self._topology.name}/status", {"status": status})


def started(phase: str) -> dict[str, str]:
    """The status of a pod that its kubelet has admitted."""
    return {"phase": phase, "startTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def patch(api: ApiServer, path: str, body: dict[str, Any]) -> None:
    """A merge patch."""
    api.patch(path, json.dumps(body).encode(), timeout=WITHIN)
