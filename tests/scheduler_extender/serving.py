"""The real service on a real port, in a thread of the test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from scheduler_extender.clientlimits import Bodies, Limits
from scheduler_extender.files.binder import FileBinder
from scheduler_extender.http.bothports import Service
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.servers import Addresses
from scheduler_extender.serving import in_thread
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.verbs import Binder, WouldReject
from tests.waiting import FOREVER, PATIENCE
from topology.core.graph import NodeTopology
from topology.core.report import Report

# The usual bounds of what a client sends, and none of how long it takes.
UNHURRIED = Limits(
    header_seconds=FOREVER,
    body_seconds=FOREVER,
    write_seconds=FOREVER,
    idle_seconds=FOREVER,
    handshake_seconds=FOREVER,
)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    """A service that runs, clients of its ports, and reasons (at most one) not to be ready."""

    cluster: Cache
    clock: Clock
    http: httpx.Client
    admin: httpx.Client
    metrics: httpx.Client
    unready: list[str]
    service: Service
    ports: tuple[int, int, int]

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


def _client(port: int, scheme: str = "http") -> httpx.Client:
    # Loopback: no certificate store to load, no proxy to ask for.
    base = f"{scheme}://127.0.0.1:{port}"
    return httpx.Client(base_url=base, timeout=PATIENCE, verify=False, trust_env=False)


@contextmanager
def running(
    *nodes: NodeTopology,
    settings: Settings = Settings(),
    binder: Binder | None = None,
    cluster: Cache | None = None,
    clock: Clock | None = None,
    limits: Limits = UNHURRIED,
    bodies: Bodies | None = None,
    where: Addresses = Addresses(),
    shadow: Callable[[WouldReject], None] | None = None,
) -> Iterator[Running]:
    """Serve these nodes, each with an empty report. With TLS the clients check nothing."""
    clock = clock or Clock()
    cluster = cluster or Cache(clock, settings)
    for node in nodes:
        cluster.put_record(node, Report("boot", 1))
    unready: list[str] = []
    in_memory = FileBinder(cluster)
    saw = in_memory.saw if binder is None else lambda pod: None
    service = Service(
        cluster,
        binder or in_memory,
        lambda: unready[0] if unready else None,
        Metrics(),
        saw=saw,
        file_mode=binder is None,
        bodies=bodies or Bodies(),
        shadow=shadow,
    )
    scheme = "https" if where.tls else "http"
    with in_thread(service, where, limits) as serving:
        main, people, third = serving.ports
        with (
            _client(main, scheme) as http,
            _client(people) as admin,
            _client(third) as metrics,
        ):
            yield Running(cluster, clock, http, admin, metrics, unready, service, serving.ports)
