"""How many pods a second the real kube-scheduler places, with and without an extender.

etcd, kube-apiserver and kube-scheduler run as the end-to-end tests run them; kubelets and agents
are played: each bound pod is admitted at once, and its node's record says so. Each *way* to run
kube-scheduler places the same pods (pairs of NVLinked GPUs) in each round, one way after the other,
so that whatever else the machine does hits all alike; the medians' ratio is the figure:

``none``          no extender
``nothing``       the do-nothing extender (:mod:`.nothing`) answers filter and prioritize
``nothing+bind``  it also binds: it writes the Binding that it is asked for
``ours``          the extender

The pods are there before kube-scheduler starts, and the time is from the first bound pod to the
last: how it starts is not measured. TLS is off, for all alike. The pods of a way are deleted after
it, and the extender starts anew each time.

The programs are built by the tests: this benchmark needs the source tree.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from rich.table import Table

from benchmarks.figures.schema import Machine
from benchmarks.figures.speed import Throughput, ThroughputParameters, ThroughputRow
from benchmarks.speed.agent import SourceTreeMissingError
from scheduler_extender.annotations import parse
from scheduler_extender.wire import Pod
from topology.codec import encode, encode_report
from topology.core.devices import DeviceId, PodUid
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.core.requests import GpuRequest
from topology.emulation import EmulatedKubelet
from topology.machines import machine

if TYPE_CHECKING:
    import httpx

    from tests.e2e.controlplane import ControlPlane, Process

MACHINES = ("dgx1-v100", "hgx-h100-8")
WAYS = ("none", "nothing", "nothing+bind", "ours")
RECORDS = "/apis/gpu-topology.io/v1alpha1/gputopologies"
PODS = "/api/v1/namespaces/default/pods"
AT_ONCE = 8
"""Requests of ours at one time while the cluster is filled."""
WITHIN = 600.0
"""Seconds for a round; who takes longer hangs."""
ROOT = Path(__file__).parents[2]


def measure(
    nodes: int, pods: int, rounds: int, percentage: int, tell: Callable[[str], None]
) -> Throughput:
    """The figures. ``tell`` hears what is going on.

    Raises :class:`.SourceTreeMissingError` where the tests that build the programs are not here.
    """
    try:
        from tests.e2e.building import CONTROL_PLANE
    except ImportError as error:
        raise SourceTreeMissingError(f"the tests' control plane is not here: {error}") from error
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder), CONTROL_PLANE.folder(), percentage)
        with bench.running(nodes, tell):
            for number in range(1, rounds + 1):
                for way in WAYS:
                    tell(f"round {number} of {rounds}: {way}")
                    rows.append(bench.round(way, number, pods))
    return Throughput(
        parameters=ThroughputParameters(
            nodes=nodes, pods=pods, rounds=rounds, percentage=percentage
        ),
        machine=Machine(cpus=os.cpu_count(), python=platform.python_version()),
        rows=tuple(rows),
    )


def table(figures: Throughput) -> Table:
    """Medians over the rounds, and the ratio to the extender that does nothing but bind."""
    found = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    found.add_column("extender")
    processes = sorted({name for row in figures.rows for name in row.cpu_ms})
    for column in ("pods/s", "of nothing+bind", *(f"{name} ms/pod" for name in processes)):
        found.add_column(column, justify="right")
    rate = {
        way: median(row.pods_per_second for row in figures.rows if row.way == way) for way in WAYS
    }
    for way in WAYS:
        rows = [row for row in figures.rows if row.way == way]
        spent = [
            f"{median(row.cpu_ms[name] for row in rows):.1f}" if name in rows[0].cpu_ms else "–"
            for name in processes
        ]
        found.add_row(way, f"{rate[way]:.1f}", f"{rate[way] / rate['nothing+bind']:.2f}", *spent)
    return found


class _Bench:
    """One control plane, and who is plugged into its scheduler."""

    def __init__(self, folder: Path, binaries: Path, percentage: int) -> None:
        self._folder, self._binaries = folder, binaries
        self._percentage = percentage
        self._nodes: dict[str, NodeTopology] = {}
        self._plane: ControlPlane
        self._api: httpx.Client

    @contextmanager
    def running(self, nodes: int, tell: Callable[[str], None]) -> Iterator[None]:
        """The control plane with its nodes, inside the block."""
        from tests.e2e.controlplane import ControlPlane, create_node

        with ControlPlane(self._folder, self._binaries) as plane, plane.client() as api:
            self._plane, self._api = plane, api
            plane.kubectl("apply", "-f", str(ROOT / "manifests" / "base" / "crd.yaml"))
            plane.kubectl("wait", "--for=condition=Established", "crd", "--all")

            def add(at: int) -> None:
                node = machine(MACHINES[at % len(MACHINES)]).topology(f"node-{at:05}")
                create_node(api, str(node.name), len(node.gpus))
                self._add_record(node)

            tell(f"{nodes} nodes are made")
            self._together(add, range(nodes))
            yield

    def _add_record(self, node: NodeTopology) -> None:
        ids = frozenset(DeviceId(gpu.uuid) for gpu in node.gpus)
        whole = json.loads(json.dumps(encode(node, Report("boot", 1, allocatable=ids))))
        body = {key: value for key, value in whole.items() if key != "status"}
        self._api.post(RECORDS, json=body).raise_for_status()
        _patch(self._api, f"{RECORDS}/{node.name}/status", {"status": whole["status"]})
        self._nodes[str(node.name)] = node

    def round(self, way: str, number: int, pods: int) -> ThroughputRow:
        """Place so many pods in one way."""
        names = [f"p{number}-{i:05}" for i in range(pods)]
        self._together(self._add_pod, names)
        with self._extender(way) as (extender, config):
            watching = _Kubelets(self._api, pods, self._nodes)
            scheduler = self._plane.start_scheduler(config)
            processes = {"scheduler": scheduler, **({"extender": extender} if extender else {})}
            try:
                watching.first()
                before = {name: _cpu(process) for name, process in processes.items()}
                seconds, counted = watching.rest()
                spent = {name: _cpu(process) - before[name] for name, process in processes.items()}
            finally:
                self._plane.stop_scheduler()
        self._api.delete(PODS, params={"gracePeriodSeconds": "0"}).raise_for_status()
        watching.end()
        return ThroughputRow(
            way=way,
            round=number,
            pods_per_second=counted / seconds,
            cpu_ms={name: 1000 * cpu / counted for name, cpu in spent.items()},
        )

    def _add_pod(self, name: str) -> None:
        limits = {"nvidia.com/gpu": "2"}
        container = {"name": "main", "image": "example/work", "resources": {"limits": limits}}
        pod = {
            "metadata": {"name": name, "annotations": {"gpu-topology.io/link": "nvlink"}},
            "spec": {"containers": [container]},
        }
        self._api.post(PODS, json=pod).raise_for_status()

    @contextmanager
    def _extender(self, way: str) -> Iterator[tuple[Process | None, str]]:
        """The extender's process, once it is ready, and kube-scheduler's configuration."""
        from tests.e2e.controlplane import Process
        from tests.programs import free_port

        port, admin = free_port(), free_port()
        kubeconfig = str(self._plane.kubeconfig())
        nothing = [sys.executable, "-m", "benchmarks.speed.nothing", str(port)]
        ours = [
            *(sys.executable, "-m", "scheduler_extender", "extender"),
            *(f"--kubeconfig={kubeconfig}", f"--port={port}", f"--admin-port={admin}"),
        ]
        command = {"nothing": nothing, "nothing+bind": [*nothing, kubeconfig], "ours": ours}
        verbs = ["filter", "prioritize", *(["bind"] if way in ("nothing+bind", "ours") else [])]
        config = self._config(f"http://127.0.0.1:{port}/scheduler", [] if way == "none" else verbs)
        if way == "none":
            yield None, config
            return
        process = Process("extender", command[way], self._folder / "extender.log")
        try:
            _until(lambda: _answers(port, "/readyz" if way == "ours" else "/"))
            yield process, config
        finally:
            process.stop(signal.SIGTERM)

    def _config(self, prefix: str, verbs: Sequence[str]) -> str:
        shipped = (ROOT / "manifests" / "scheduler" / "kube-scheduler-config.yaml").read_text()
        config = yaml.safe_load(shipped)
        config["clientConnection"] = {"kubeconfig": "{kubeconfig}"}
        config["leaderElection"] = {"leaderElect": False}
        config["percentageOfNodesToScore"] = self._percentage
        (extender,) = config["extenders"]
        kept = {
            key: value
            for key, value in extender.items()
            if key not in ("tlsConfig", "enableHTTPS", "preemptVerb")
            and (not key.endswith("Verb") or value in verbs)
        }
        config["extenders"] = [{**kept, "urlPrefix": prefix}] if verbs else []
        return str(yaml.safe_dump(config))

    @staticmethod
    def _together(do: Callable[[Any], None], items: Sequence[Any]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(do, items))


class _Kubelets:
    """Follows the pods of a round, and plays the kubelets and agents of the nodes they come to.

    Each admits a pod as soon as it hears of it, says so in the pod's status, and publishes who
    holds what: the extender waits for both.
    """

    def __init__(self, api: httpx.Client, pods: int, nodes: dict[str, NodeTopology]) -> None:
        self._api, self._pods, self._topologies = api, pods, nodes
        self._nodes: dict[str, _Node] = {}
        self._changed = threading.Condition()
        self._bound: set[str] = set()
        self._times: list[float] = []
        self._work = ThreadPoolExecutor(AT_ONCE)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def first(self) -> None:
        """Wait until one pod is bound."""
        self._wait(1)

    def rest(self) -> tuple[float, int]:
        """Wait until all are; seconds since the first one, and how many were bound in them."""
        self._wait(self._pods)
        return self._times[-1] - self._times[0], self._pods - 1

    def end(self) -> None:
        """The pods are gone; the records say so."""
        self._thread.join()
        self._work.shutdown()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda node: node.forget(self._api), self._nodes.values()))

    def _wait(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._bound) >= count, WITHIN):
                raise TimeoutError(f"{len(self._bound)} of {count} pods bound in {WITHIN:g} s")

    def _follow(self) -> None:
        version = self._api.get(PODS, params={"limit": 1}).json()["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "fieldSelector": "spec.nodeName!="}
        while len(self._bound) < self._pods:
            with self._api.stream("GET", PODS, params=query) as answer:
                for line in answer.iter_lines():
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._note(event["object"])
                    if len(self._bound) >= self._pods:
                        return

    def _note(self, pod: dict[str, Any]) -> None:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        with self._changed:
            if name in self._bound:
                return
            self._bound.add(name)
            self._times.append(time.monotonic())
            self._changed.notify_all()
            if node not in self._nodes:
                self._nodes[node] = _Node(self._topologies[node])
        self._work.submit(self._nodes[node].admit, self._api, pod)


class _Node:
    """One node's kubelet and agent."""

    def __init__(self, topology: NodeTopology) -> None:
        self._topology = topology
        self._kubelet = EmulatedKubelet(topology, random.Random(1))
        self._lock = threading.Lock()
        self._admitted = self._told = 0

    def admit(self, api: httpx.Client, pod: dict[str, Any]) -> None:
        """Give the pod its GPUs, and tell."""
        meta = pod["metadata"]
        request = parse(msgspec.convert(pod, Pod))
        assert isinstance(request, GpuRequest)
        with self._lock:
            for _ in self._kubelet.admission(
                PodUid(meta["uid"]), meta["namespace"], meta["name"], request
            ):
                pass
            self._admitted += 1
        status = {"phase": "Running", "startTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        _patch(api, f"{PODS}/{meta['name']}/status", {"status": status})
        with self._lock:
            if self._told < self._admitted:  # else another has told of this pod, too
                self._told = self._admitted
                self._publish(api, self._kubelet.report())

    def forget(self, api: httpx.Client) -> None:
        """Nobody holds anything any more."""
        after = replace(self._kubelet.report(), allocations=())
        self._publish(api, replace(after, sequence=after.sequence + 1))

    def _publish(self, api: httpx.Client, report: Report) -> None:
        status = json.loads(json.dumps(encode_report(report)))
        _patch(api, f"{RECORDS}/{self._topology.name}/status", {"status": status})


def _patch(api: httpx.Client, path: str, body: dict[str, Any]) -> None:
    kind = {"Content-Type": "application/merge-patch+json"}
    api.patch(path, content=json.dumps(body), headers=kind).raise_for_status()


def _answers(port: int, path: str) -> bool:
    import httpx

    try:
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=WITHIN)
    except httpx.TransportError:
        return False
    return answer.status_code in (200, 404)


def _until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError("the extender is not ready")
        time.sleep(0.05)


def _cpu(process: Process) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
