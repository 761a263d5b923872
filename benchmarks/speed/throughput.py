"""How many pods a second the real kube-scheduler places, with and without an extender.

etcd, kube-apiserver and kube-scheduler run as the end-to-end tests run them; kubelets and agents
are played: each bound pod is admitted at once, and its node's record says so. Each *way* to run
kube-scheduler places the same pods (pairs of NVLinked GPUs) in each round, one way after the other,
so that whatever else the machine does hits all alike; the medians' ratio is the figure:

``none``          no extender
``nothing``       the do-nothing extender (:mod:`.nothing`) answers filter and prioritize
``nothing+bind``  it also binds: it writes the Binding that it is asked for
``ours``          the extender, which has just started: it has not seen any kubelet admit a pod
``ours+known``    the extender, which has seen each kubelet admit one pod that asks the same

The pods are there before kube-scheduler starts, so how it starts is not measured. One rate is of
pods that are *bound*, from the first to the last. The other is of pods that are *settled*: it ends
when each pod runs and its node's record says so; the CPU time is that of this whole time. The
extender waits for kubelets and records, which here share the processors with everything else, and
the others do not: what they leave over is part of the second rate alone. TLS is off, for all alike.
The pods of a way are deleted after it, and the extender starts anew each time.

The programs are built by the tests: this benchmark needs the source tree.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from benchmarks.figures.schema import preamble
from benchmarks.output import table_of
from benchmarks.speed.playedkubelets import (
    AT_ONCE,
    PODS,
    RECORDS,
    PlayedKubelets,
    PlayedNode,
    patch,
    started,
)
from benchmarks.speed.processes import (
    HOST,
    WITHIN,
    Client,
    SourceTreeMissingError,
    cpu_seconds,
    status_of,
    until,
)
from topology.codec import encode
from topology.core.devices import DeviceId
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

if TYPE_CHECKING:
    import httpx

    from tests.e2e.controlplane import ControlPlane, Process


MACHINES = ("dgx1-v100", "hgx-h100-8")
OURS = ("ours", "ours+known")
WAYS = ("none", "nothing", "nothing+bind", *OURS)
TURN, REPORT, WRITE = "bind: a turn", "bind: a report", "bind: the API server"
WAITS = ("filter", "prioritize", TURN, REPORT, WRITE, "bind: the rest")
LATE_FOR_TURN, LATE_FOR_REPORT = "late for a turn", "late for a report"
REFUSED = (LATE_FOR_TURN, LATE_FOR_REPORT, "for other reasons")
VERBS = ("filter", "prioritize", "bind")
ROOT = Path(__file__).parents[2]


def measure(
    nodes: int, pods: int, rounds: int, percentage: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """The figures. ``tell`` hears what is going on.

    Raises :class:`.SourceTreeMissingError` where the tests that build the programs are not here.
    """
    try:
        from tests.e2e.building import CONTROL_PLANE
    except ImportError as error:
        raise SourceTreeMissingError(
            f"the tests build the control plane: start it in a checkout of the source ({error})"
        ) from error
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder), CONTROL_PLANE.folder(), percentage)
        with bench.running(nodes, tell):
            for number in range(1, rounds + 1):
                for way in WAYS:
                    tell(f"round {number} of {rounds}: {way}")
                    rows.append(bench.round(way, number, pods))
    given = {"nodes": nodes, "pods": pods, "rounds": rounds, "percentage": percentage}
    return {**preamble("throughput", **given), "rows": rows}


def table(figures: dict[str, Any]) -> Table:
    """Medians over the rounds, and the ratio to the extender that does nothing but bind."""
    processes = sorted({name for row in figures["rows"] for name in row["cpu_ms"]})
    rates = ("bound/s", "of nothing+bind", "settled/s", "of nothing+bind")
    found = table_of(("extender",), (*rates, *(f"{name} ms/pod" for name in processes)))
    of = {way: [row for row in figures["rows"] if row["way"] == way] for way in WAYS}
    rate = {way: median(row["pods_per_second"] for row in rows) for way, rows in of.items()}
    settled = {way: median(row["settled_per_second"] for row in rows) for way, rows in of.items()}
    for way in WAYS:
        spent = [_of_all(of[way], name) for name in processes]
        shown = [
            text
            for each in (rate, settled)
            for text in (f"{each[way]:.1f}", f"{each[way] / each['nothing+bind']:.2f}")
        ]
        found.add_row(way, *shown, *spent)
    return found


def waits(figures: dict[str, Any]) -> Table:
    """What kube-scheduler waited for at our extender, and how many binds that refused: medians."""
    found = table_of(("kube-scheduler waited for, ms/pod",), OURS)
    rows = [[row for row in figures["rows"] if row["way"] == way] for way in OURS]
    for name in WAITS:
        found.add_row(name, *(f"{median(r['waits_ms'][name] for r in of):.1f}" for of in rows))
    for why in REFUSED:
        shown = (f"{median(r['refused_binds'][why] for r in of):.1f}" for of in rows)
        found.add_row(f"binds refused, of 100 pods: {why}", *shown)
    return found


def _of_all(rows: Sequence[dict[str, Any]], process: str) -> str:
    """The median CPU time of a process, where there is one."""
    if process not in rows[0]["cpu_ms"]:
        return "–"
    return f"{median(row['cpu_ms'][process] for row in rows):.1f}"


class _Bench:
    """One control plane, and who is plugged into its scheduler."""

    def __init__(self, folder: Path, binaries: Path, percentage: int) -> None:
        self._folder, self._binaries = folder, binaries
        self._percentage = percentage
        self._nodes: dict[str, PlayedNode] = {}
        self._plane: ControlPlane
        self._api: ApiServer
        self._client: httpx.Client

    @contextmanager
    def running(self, nodes: int, tell: Callable[[str], None]) -> Iterator[None]:
        """The control plane with its nodes, inside the block."""
        from tests.e2e.controlplane import ControlPlane, create_node

        with ControlPlane(self._folder, self._binaries) as plane, plane.client() as api:
            self._plane, self._client = plane, api
            self._api = ApiServer.from_kubeconfig(plane.kubeconfig())
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
        whole = json.loads(json.dumps(encode(node, Report("boot", 0, allocatable=ids))))
        body = {key: value for key, value in whole.items() if key != "status"}
        self._api.create(RECORDS, json.dumps(body).encode(), timeout=WITHIN)
        patch(self._api, f"{RECORDS}/{node.name}/status", {"status": whole["status"]})
        self._nodes[str(node.name)] = PlayedNode(node)

    def round(self, way: str, number: int, pods: int) -> dict[str, Any]:
        """Place so many pods in one way."""
        names = [f"p{number}-{i:05}" for i in range(pods)]
        self._together(self._add_pod, names)
        with self._extender(way) as (extender, admin, metrics, config):
            if way == "ours+known":
                self._admit_everywhere(admin)
            watching = PlayedKubelets(self._api, pods, self._nodes)
            # Not while pods are placed: the first scrape works out every node.
            waited = _counted(metrics) if way in OURS else {}
            scheduler = self._plane.start_scheduler(config)
            processes = {
                "scheduler": scheduler.pid,
                "API server": self._plane.pid("kube-apiserver"),
            }
            processes |= {"etcd": self._plane.pid("etcd"), "kubelets": os.getpid()}
            processes |= {"extender": extender.pid} if extender else {}
            try:
                watching.first()
                before = {name: cpu_seconds(pid) for name, pid in processes.items()}
                seconds, counted = watching.rest()
                settled = watching.settled()
                spent = {name: cpu_seconds(pid) - before[name] for name, pid in processes.items()}
                if waited:
                    now = _counted(metrics)
                    waited = {name: (now[name] - waited[name]) / counted for name in now}
            finally:
                self._plane.stop_scheduler()
        self._client.delete(PODS, params={"gracePeriodSeconds": "0"}).raise_for_status()
        watching.end()
        return {
            "way": way,
            "round": number,
            "pods_per_second": counted / seconds,  # from the first bound pod to the last
            # Until each pod runs and its node's record says so.
            "settled_per_second": counted / settled,
            # For each pod, by process, over the latter time.
            "cpu_ms": {name: 1000 * cpu / counted for name, cpu in spent.items()},
            # For each pod: what kube-scheduler waited for at our extender, and how long.
            "waits_ms": {name: 1000 * waited[name] for name in WAITS if waited},
            # Of a hundred pods: how many binds our extender refused, by why.
            "refused_binds": {why: 100 * waited[why] for why in REFUSED if waited},
        }

    def _add_pod(self, name: str) -> None:
        meta = {"name": name, "annotations": {"gpu-topology.io/link": "nvlink"}}
        self._create(meta, {})

    def _create(self, metadata: dict[str, Any], spec: dict[str, Any]) -> None:
        limits = {"nvidia.com/gpu": "2"}
        container = {"name": "main", "image": "example/work", "resources": {"limits": limits}}
        pod = {"metadata": metadata, "spec": {"containers": [container], **spec}}
        self._api.create(PODS, json.dumps(pod).encode(), timeout=WITHIN)

    def _admit_everywhere(self, admin: int) -> None:
        """Each kubelet admits one pod, which ends at once, and our extender has seen it."""
        labels = {"labels": {"known": "yes"}}

        def admit(node: str) -> None:
            self._create({"name": f"known-{node}", **labels}, {"nodeName": node})
            patch(self._api, f"{PODS}/known-{node}/status", {"status": started("Succeeded")})

        def delete() -> None:
            which = {"labelSelector": "known=yes", "gracePeriodSeconds": "0"}
            self._client.delete(PODS, params=which).raise_for_status()

        self._together(admit, list(self._nodes))
        delete()
        self._create({"name": "last", **labels}, {})
        until(lambda: status_of(admin, "/v1/explain/default/last") == 200)
        delete()

    @contextmanager
    def _extender(self, way: str) -> Iterator[tuple[Process | None, int, int, str]]:
        """The extender's process, once it is ready, its ports for people and metrics, and
        kube-scheduler's configuration."""
        from tests.e2e.controlplane import Process
        from tests.programs import free_port

        port, admin, metrics = free_port(), free_port(), free_port()
        kubeconfig = str(self._plane.kubeconfig())
        nothing = [sys.executable, "-m", "benchmarks.speed.nothing", str(port)]
        ours = [
            *(sys.executable, "-m", "scheduler_extender", "extender"),
            *(f"--kubeconfig={kubeconfig}", f"--port={port}", f"--admin-port={admin}"),
            f"--metrics-port={metrics}",
        ]
        command = {"nothing": nothing, "nothing+bind": [*nothing, kubeconfig]}
        verbs = VERBS[:2] if way == "nothing" else VERBS
        config = self._config(f"http://{HOST}:{port}/scheduler", verbs if way != "none" else ())
        if way == "none":
            yield None, 0, 0, config
            return
        process = Process("extender", command.get(way, ours), self._folder / "extender.log")
        try:
            path = "/readyz" if way in OURS else "/"
            until(lambda: status_of(port, path) in (200, 404))
            yield process, admin, metrics, config
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


def _counted(metrics: int) -> dict[str, float]:
    """Since our extender's start: seconds that :data:`WAITS` took, and binds :data:`REFUSED`."""
    client = Client(metrics)
    text = client.ask("/metrics").body.decode()
    client.close()
    samples = {
        (sample.name.removeprefix("gpu_topology_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    verb = {name: samples["verb_duration_seconds_sum", name] for name in VERBS}
    parts = {TURN: "turn", REPORT: "report", WRITE: "write"}
    waited = {name: samples["bind_wait_seconds_sum", awaits] for name, awaits in parts.items()}
    late = {
        LATE_FOR_TURN: samples["binds_late_for_turn_total",],
        LATE_FOR_REPORT: samples["binds_late_for_report_total",],
    }
    rest = samples["bind_errors_total",] - sum(late.values())
    return {
        **verb,
        **waited,
        "bind: the rest": verb["bind"] - sum(waited.values()),
        **late,
        "for other reasons": rest,
    }
