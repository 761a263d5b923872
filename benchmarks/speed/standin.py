"""A stand-in for the API server of a large cluster. It serves lists and watches only.

``python -m benchmarks.speed.standin NODES PODS`` prints its port and serves until it is ended.
Objects are as long as those of a real server (``managedFields``, images, conditions), because the
benchmark measures how they are read. Every node has eight GPUs and two pods of two GPUs. The other
pods request no GPU. ``POST /burst?reports=N&seconds=S`` publishes N changed reports, each of a node
drawn at random, evenly over S seconds. Only the records change: the pods stay the same, although a
new report gives them other GPUs.
"""

import json
import queue
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.speed.processes import HOST, node_name, tell
from scheduler_extender.kube.sinks import NODES_PATH, PODS_PATH, RECORDS_PATH
from scheduler_extender.simulator.pods import GPU
from topology.codec import encode, encode_report
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine
from topology.times import time_text

MACHINES = ("dgx1-v100", "hgx-h100-8")
GPU_PODS = 2  # pods of two GPUs on each node
NOW = time_text(int(time.time()))


class World:
    """The objects as JSON, by path, and their watchers."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._rng = random.Random(1)
        self._version, self._sequence = 1_000, 1
        self._topologies = [
            machine(MACHINES[i % len(MACHINES)]).topology(node_name(i)) for i in range(nodes)
        ]
        self.items: dict[str, list[bytes]] = {
            RECORDS_PATH: [self._record(i) for i in range(nodes)],
            PODS_PATH: [_json(_pod(i, nodes)) for i in range(pods)],
            NODES_PATH: [_json(_node(i)) for i in range(nodes)],
        }
        self.watching: dict[str, list[queue.Queue[bytes]]] = {path: [] for path in self.items}

    def burst(self, reports: int, seconds: float) -> None:
        """Publish changed reports of random nodes, evenly over the given seconds."""
        began = time.monotonic()
        for n in range(reports):
            time.sleep(max(0.0, began + n * seconds / reports - time.monotonic()))
            i = self._rng.randrange(len(self._topologies))
            self._sequence += 1
            self._version += 1
            line = b'{"type":"MODIFIED","object":' + self._record(i) + b"}\n"
            for watcher in self.watching[RECORDS_PATH]:
                watcher.put(line)

    def _record(self, node: int) -> bytes:
        """Return a node's record, with the GPUs of each of its pods drawn anew."""
        topology = self._topologies[node]
        drawn = self._rng.sample([DeviceId(gpu.uuid) for gpu in topology.gpus], 2 * GPU_PODS)
        allocations = tuple(
            Allocation(
                *(PodUid(_uid(node, k)), "team", _pod_name(node, k), "main", GPU),
                tuple(sorted(drawn[2 * k : 2 * k + 2])),
            )
            for k in range(GPU_PODS)
        )
        ids = frozenset(DeviceId(gpu.uuid) for gpu in topology.gpus)
        report = Report(
            "boot", self._sequence, observed_at=NOW, allocatable=ids, allocations=allocations
        )
        whole = encode(topology, report)
        meta = _metadata(str(topology.name), "", self._version, 1_200)
        return _json({**dict(whole), "metadata": meta, "status": encode_report(report)})


def _uid(node: int, pod: int) -> str:
    return f"{node:08}-0000-4000-8000-{pod:012}"


def _pod_name(node: int, pod: int) -> str:
    return f"train-{node}-{pod}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=dict).encode()


def _metadata(name: str, namespace: str, version: int, fields: int) -> dict[str, Any]:
    """Return metadata with about ``fields`` bytes of ``managedFields``."""
    found: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{namespace}-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": NOW,
        "labels": {"app": "work", "pod-template-hash": "6c9f8d7b5d"},
        "managedFields": [
            {"manager": "kubelet", "fieldsV1": {f"f:field-{i:03}": {} for i in range(fields // 20)}}
        ],
    }
    return {**found, "namespace": namespace} if namespace else found


def _pod(i: int, nodes: int) -> dict[str, Any]:
    """Return the ``i``-th pod. The first ones, :data:`GPU_PODS` for each node, request GPUs."""
    asks, node, k = i < GPU_PODS * nodes, i % nodes, i // nodes
    name = _pod_name(node, k) if asks else f"service-{i}"
    limits = {"cpu": "2", "memory": "4Gi", **({GPU: "2"} if asks else {})}
    meta = _metadata(name, "team", 900, 2_500)
    if asks:
        meta["uid"] = _uid(node, k)
        meta["annotations"] = {"gpu-topology.io/policy": "preferred"}
    mounts = [{"name": f"volume-{n}", "mountPath": f"/var/lib/work/{n}"} for n in range(6)]
    container = {
        "name": "main",
        "image": "registry.example/team/work:v1.2.3",
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": mounts,
        "env": [{"name": f"SETTING_{n}", "value": "a value of some length"} for n in range(10)],
    }
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "PodScheduled")
    return {
        "metadata": meta,
        "spec": {"nodeName": node_name(node), "containers": [container], "volumes": mounts},
        "status": {
            "phase": "Running",
            "startTime": NOW,
            "qosClass": "Guaranteed",
            "conditions": [{"type": c, "status": "True", "reason": ""} for c in conditions],
            "containerStatuses": [{"name": "main", "ready": True, "image": container["image"]}],
        },
    }


def _node(i: int) -> dict[str, Any]:
    names = [f"registry.example/team/image-{n}@sha256:{n:064x}" for n in range(30)]
    return {
        "metadata": _metadata(node_name(i), "", 800, 2_500),
        "status": {
            "allocatable": {"cpu": "96", "memory": "1000Gi", "pods": "110", GPU: "8"},
            "images": [{"names": [name], "sizeBytes": 1_000_000} for name in names],
        },
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    world: World


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Answer with a page of a list, or serve a watch."""
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path not in self.server.world.items:
            self._answer(404, b"{}")
        elif query.get("watch") == "true":
            self._watch(url.path)
        else:
            self._list(url.path, int(query.get("limit", "0")), int(query.get("continue", "0")))

    def do_POST(self) -> None:
        """Publish a burst, and answer after its end."""
        query = parse_qs(urlsplit(self.path).query)
        self.server.world.burst(int(query["reports"][0]), float(query["seconds"][0]))
        self._answer(200, b"{}")

    def _list(self, path: str, limit: int, start: int) -> None:
        items: Sequence[bytes] = self.server.world.items[path]
        end = min(len(items), start + limit) if limit else len(items)
        more = str(end) if end < len(items) else ""
        meta = _json({"resourceVersion": "1000", "continue": more})
        page = b",".join(items[start:end])
        self._answer(200, b'{"metadata":' + meta + b',"items":[' + page + b"]}")

    def _watch(self, path: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):
            for line in self._lines(path):
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def _lines(self, path: str) -> Iterator[bytes]:
        mine: queue.Queue[bytes] = queue.Queue()
        self.server.world.watching[path].append(mine)
        while True:
            yield mine.get()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write no log."""


if __name__ == "__main__":
    server = _Server((HOST, 0), _Handler)
    server.world = World(int(sys.argv[1]), int(sys.argv[2]))
    tell(server.server_port)
    server.serve_forever()
