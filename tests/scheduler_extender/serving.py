"""The real service on a real port, in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from scheduler_extender.app import Metrics, Service, create_admin_app, create_app
from scheduler_extender.cluster import Cluster, Settings
from scheduler_extender.filecluster import FileBinder
from scheduler_extender.limits import DEFAULT, Bodies, Limits
from scheduler_extender.serving import Serving, listen
from scheduler_extender.verbs import Binder
from topology.core.graph import NodeTopology
from topology.core.report import Report


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fail after ten seconds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    """A service that runs, clients of its two ports, and reasons (at most one) not to be ready."""

    cluster: Cluster
    clock: Clock
    http: httpx.Client
    admin: httpx.Client
    unready: list[str]
    service: Service
    ports: tuple[int, int]

    def filter(self, pod: dict[str, Any], *names: str) -> dict[str, Any]:
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
        return self._post("filter", body)  # type: ignore[no-any-return]

    def prioritize(self, pod: dict[str, Any], *names: str) -> dict[str, int]:
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
        return {row["Host"]: row["Score"] for row in self._post("prioritize", body)}

    def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        }
        return str(self._post("bind", body)["Error"])

    def _post(self, verb: str, body: Any) -> Any:
        answer = self.http.post(f"/scheduler/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _client(port: int) -> httpx.Client:
    # Plain HTTP on loopback: no certificate store to load, no proxy to ask for.
    base = f"http://127.0.0.1:{port}"
    return httpx.Client(base_url=base, timeout=10, verify=False, trust_env=False)


@contextmanager
def running(
    *nodes: NodeTopology,
    settings: Settings = Settings(),
    binder: Binder | None = None,
    cluster: Cluster | None = None,
    clock: Clock | None = None,
    limits: Limits = DEFAULT,
    bodies: Bodies | None = None,
) -> Iterator[Running]:
    """Serve these nodes, each with an empty report."""
    clock = clock or Clock()
    cluster = cluster or Cluster(clock, settings)
    for node in nodes:
        cluster.put_record(node, Report("boot", 1))
    unready: list[str] = []
    service = Service(
        cluster,
        binder or FileBinder(cluster),
        lambda: unready[0] if unready else None,
        Metrics(),
        file_mode=binder is None,
        bodies=bodies or Bodies(),
    )
    sockets = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    serving = Serving(create_app(service), create_admin_app(service), sockets, limits=limits)
    started = threading.Event()
    thread = threading.Thread(target=lambda: serving.run(started.set, signals=False))
    thread.start()
    try:
        assert started.wait(10)
        ports = (sockets[0].getsockname()[1], sockets[1].getsockname()[1])
        with (
            _client(ports[0]) as http,
            _client(ports[1]) as admin,
        ):
            yield Running(cluster, clock, http, admin, unready, service, ports)
    finally:
        serving.stop()
        thread.join(10)
        assert not thread.is_alive()
