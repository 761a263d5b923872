"""What the node agent costs: a process on its node, and writes at the API server.

**The process** is the real command beside the fakes of the tests (a driver library, a kubelet's
socket, an API server), on an 8-GPU machine with 18 NVLinks a GPU. CPU is what the kernel counts for
the process over a time without news; memory is its resident set at the end.

**The writes** are counted: so many real publishers on one simulated clock, each with its heartbeat
and with pods that come and go on its node. Nothing is sent.

The fakes are no part of the benchmarks' image: this one benchmark needs the source tree.
"""

from __future__ import annotations

import heapq
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.figures.schema import preamble
from benchmarks.output import shown
from benchmarks.speed.processes import cpu_seconds, memory, program, until
from scheduler_extender.terminal import table
from topology.agent.publisher import Publisher
from topology.core.devices import DeviceId, GpuResource, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.kubeapi.apiserver import ApiServer, NotFoundError, Query
from topology.machines import machine

if TYPE_CHECKING:
    from tests.fakes.apiserver import FakeApiServer
    from tests.fakes.kubelet import FakeKubelet

MACHINE = "hgx-h100-8"
GPU = GpuResource().name
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
SETTLE = 15.0  # seconds until an agent has done with its start
REPLICAS = 14
WARM_UP = 180.0  # simulated seconds until writes are counted
POD_SECONDS = 1800.0  # how long a pod runs


class SourceTreeMissingError(Exception):
    """The fakes that the agent runs beside are not here; the message is one line."""


def _cost(pods: int, seconds: float, begin: Callable[[str], None]) -> dict[str, Any]:
    """CPU and memory of an agent with so many GPU pods on its node."""
    begin(f"an agent with {pods} pods")
    with _agent(pods) as (pid, kubelet, api):
        time.sleep(SETTLE)
        before, calls, writes = cpu_seconds(pid), dict(kubelet.calls), len(api.requests)
        time.sleep(seconds)
        spent = cpu_seconds(pid) - before
        called = sum(kubelet.calls[m] - calls[m] for m in calls)
        return {
            "pods": pods,
            "cpu_percent": 100 * spent / seconds,
            "memory_mib": memory(pid),
            "kubelet_calls_per_minute": 60 * called / seconds,
            "api_requests_per_minute": 60 * (len(api.requests) - writes) / seconds,
        }


@contextmanager
def _agent(pods: int) -> Iterator[tuple[int, FakeKubelet, FakeApiServer]]:
    """A running agent with ``pods`` pods that share its GPUs.

    Raises :class:`SourceTreeMissingError`.
    """
    try:
        from tests.fakes.apiserver import FakeApiServer
        from tests.fakes.kubelet import FakeKubelet
        from tests.fakes.nvml import FakeNvml
    except ModuleNotFoundError as error:
        raise SourceTreeMissingError(
            f"the agent's benchmark runs beside the fakes under tests/: start it in a checkout of "
            f"the source, after 'make test' ({error})"
        ) from error
    topology = machine(MACHINE).topology("n")
    ids = [f"{gpu.uuid}::{n}" for n in range(REPLICAS) for gpu in topology.gpus]
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        FakeKubelet(folder := Path(name)) as kubelet,
        FakeApiServer() as api,
    ):
        kubelet.allocatable(*ids)
        _fill(api, kubelet, ids[:pods])
        flags = (
            "--node-name=n",
            f"--kubeconfig={api.write_kubeconfig(folder / 'kubeconfig')}",
            f"--pod-resources={kubelet.socket}",
            "--topology-manager-policy=none",
            "--metrics-port=0",
        )
        environment = FakeNvml(folder, topology).environment
        with program("scheduler_extender", "agent", *flags, environment=environment) as child:
            until(lambda: any("status" in found for found in api.items(RECORDS)), within=60)
            yield child.pid, kubelet, api


def _fill(api: FakeApiServer, kubelet: FakeKubelet, devices: Sequence[str]) -> None:
    """A node object, and on the node a running pod for each of the devices."""
    api.put("/api/v1/nodes", {"kind": "Node", "metadata": {"name": "n", "uid": "node"}})
    for i, device in enumerate(devices):
        limits = {"limits": {GPU: "1"}}
        containers = [{"name": "main", "image": "example/work", "resources": limits}]
        api.put(
            "/api/v1/namespaces/default/pods",
            {
                "metadata": {"name": f"p{i}", "namespace": "default"},
                "spec": {"nodeName": "n", "containers": containers},
                "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
            },
        )
        kubelet.show("default", f"p{i}", {"main": {GPU: [device]}})


class _CountingServer(ApiServer):
    """Takes every write and keeps the object; one for each agent, since no two share one."""

    def __init__(self) -> None:
        self._stored: bytes | None = None
        self.writes = 0
        self.bytes = 0

    def get(self, path: str, query: Query = (), *, timeout: float) -> bytes:
        if self._stored is None:
            raise NotFoundError(404, "NotFound", path)
        return self._stored

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        return self._take(body)

    def update(self, path: str, body: bytes, *, timeout: float) -> bytes:
        return self._take(body)

    def _take(self, body: bytes) -> bytes:
        self.writes += 1
        self.bytes += len(body)
        self._stored = body
        return body


class _Writers:
    """So many real publishers on one simulated clock, each with pods that come and go on its node.

    On each node a pod starts ``pods_per_hour`` times an hour and ends half an hour later.
    """

    def __init__(self, agents: int, pods_per_hour: float, seed: int) -> None:
        rng = self._rng = random.Random(seed)
        self._now = 0.0
        self._topology = machine(MACHINE).topology("n")
        self._servers = [_CountingServer() for _ in range(agents)]
        self._publishers = [
            Publisher(server, NodeName("n"), lambda: self._now, random.Random(rng.random()))
            for server in self._servers
        ]
        self._pods_per_hour = pods_per_hour
        self._held: list[tuple[Allocation, ...]] = [()] * agents
        self._queue: list[tuple[float, int, bool]] = []
        for i in range(agents):
            self._at(rng.uniform(0, 60), i)  # agents start one by one
            if pods_per_hour:
                self._at(rng.expovariate(pods_per_hour / 3600), i, arrival=True)

    @property
    def writes(self) -> int:
        """Writes of all agents so far."""
        return sum(server.writes for server in self._servers)

    @property
    def bytes(self) -> int:
        """Bytes that they have written."""
        return sum(server.bytes for server in self._servers)

    def run(self, until: float) -> None:
        """Let everything happen that is due before this time, in seconds."""
        while self._queue and self._queue[0][0] < until:
            self._now, i, arrival = heapq.heappop(self._queue)
            if arrival:
                self._arrive(i)
            elif self._held[i] and self._now > POD_SECONDS:
                self._held[i] = self._held[i][1:]
            self._publishers[i].write(self._topology, Report("boot", 0, None, self._held[i]))
            self._at(self._publishers[i].next_write() + 1e-6, i)

    def _arrive(self, i: int) -> None:
        """A pod starts on a node; another will, and this one ends."""
        uid = PodUid(f"{i}-{self._now}")
        ids = (DeviceId(self._topology.gpus[int(self._now) % 8].uuid),)
        self._held[i] = (*self._held[i][-7:], Allocation(uid, "ns", uid, "main", GPU, ids))
        following = self._now + self._rng.expovariate(self._pods_per_hour / 3600)
        self._at(following, i, arrival=True)
        self._at(self._now + POD_SECONDS, i)

    def _at(self, when: float, agent: int, *, arrival: bool = False) -> None:
        heapq.heappush(self._queue, (when, agent, arrival))


def writes(agents: int, minutes: float, pods_per_hour: float, seed: int) -> dict[str, Any]:
    """Writes a second of ``agents`` agents together, once their start is over."""
    writers = _Writers(agents, pods_per_hour, seed)
    writers.run(WARM_UP)
    writes_before, bytes_before = writers.writes, writers.bytes
    writers.run(WARM_UP + minutes * 60)
    total, size = writers.writes - writes_before, writers.bytes - bytes_before
    return {
        "agents": agents,
        "pods_per_node_and_hour": pods_per_hour,
        "writes_per_second": total / (minutes * 60),
        "writes_per_agent_and_minute": total / minutes / agents,
        "kib_per_write": size / max(1, total) / 1024,
    }


def measure(seconds: float, agents: int, seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """Both tables, with the parameters. Raises :class:`SourceTreeMissingError`."""
    return {
        **preamble("agent", seconds=seconds, agents=agents, seed=seed, machine=MACHINE),
        "cost": [_cost(pods, seconds, begin) for pods in (0, 8, 110)],
        "writes": [writes(agents, 5, rate, seed) for rate in (0.0, 4.0, 30.0)],
    }


def cost_table(figures: dict[str, Any]) -> Table:
    """The process, for a terminal."""
    return table(
        figures["cost"],
        shown("GPU pods", "pods"),
        shown("CPU %", "cpu_percent", ".2f"),
        shown("memory MiB", "memory_mib", ".0f"),
        shown("kubelet calls/min", "kubelet_calls_per_minute", ".0f"),
        shown("API requests/min", "api_requests_per_minute", ".1f"),
    )


def writes_table(figures: dict[str, Any]) -> Table:
    """The writes, for a terminal."""
    return table(
        figures["writes"],
        shown("agents", "agents", ","),
        shown("pods/node/hour", "pods_per_node_and_hour", "g"),
        shown("writes/s", "writes_per_second", ".1f"),
        shown("writes/agent/min", "writes_per_agent_and_minute", ".2f"),
        shown("KiB a write", "kib_per_write", ".1f"),
    )
