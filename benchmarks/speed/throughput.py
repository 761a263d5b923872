"""How many pods a second the real kube-scheduler places with our extender.

The ratio is to an extender that does nothing but bind (:mod:`.nothing`). etcd, kube-apiserver and
kube-scheduler run as the end-to-end tests run them. Kubelets and agents are played: each pod that
is bound gets its devices at once, as NVIDIA's plugin would give them, and then the API server hears
that it runs, and what its node's record says.

Both extenders place the same pods (pairs of NVLinked GPUs) in each round, one after the other. The
pods are there before kube-scheduler starts, so how it starts is not measured: the rate is that from
the first pod that is bound to the last. TLS is off for both. After that the pods are deleted, and
the extender starts anew.

The tests build the programs: this benchmark needs the source tree.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from rich.table import Table

from benchmarks.output import preamble, table_of
from benchmarks.speed.processes import (
    HOST,
    WITHIN,
    SourceTreeMissingError,
    extender,
    free_port,
    program,
    status_of,
    until,
)
from scheduler_extender.annotations import Asks, parse
from scheduler_extender.wire import Pod
from topology.core.devices import PodUid
from topology.core.graph import NodeTopology
from topology.emulation import EmulatedKubelet
from topology.machines import machine

if TYPE_CHECKING:
    from tests.e2e.cluster import RealCluster

MACHINES = ("dgx1-v100", "hgx-h100-8")
WAYS = ("nothing", "ours")
AT_ONCE = 8  # requests at one time while the cluster is filled, and of all kubelets in a round
PODS = "/api/v1/namespaces/default/pods"


class _Event(msgspec.Struct):
    object: Pod


class _Node:
    """The kubelet and the agent of a node."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology
        self._admitting = threading.Lock()
        self.empty()

    def empty(self) -> None:
        """The kubelet has no pods, and numbers its reports from the start."""
        self.kubelet = EmulatedKubelet(self.topology, random.Random(1))

    def admit(self, real: RealCluster, pod: Pod) -> None:
        """Give the pod its GPUs; then its status and the node's record say so."""
        meta, asks = pod.metadata, parse(pod)
        assert isinstance(asks, Asks)
        with self._admitting:
            self.kubelet.admit(PodUid(meta.uid), meta.namespace, meta.name, asks.request)
            real.patch(f"{PODS}/{meta.name}/status", {"status": {"phase": "Running"}})
            real.put_report(self.topology.name, self.kubelet.report())


def measure(nodes: int, pods: int, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The figures. ``tell`` hears what is going on.

    Raises :class:`.SourceTreeMissingError` where the tests that build the programs are not here.
    """
    try:
        from tests.e2e.building import CONTROL_PLANE
        from tests.e2e.cluster import RealCluster
    except ImportError as error:
        raise SourceTreeMissingError(
            f"the tests build the control plane: start it in a checkout of the source ({error})"
        ) from error
    given = preamble("throughput", nodes=nodes, pods=pods, rounds=rounds)
    tell("the programs are built")
    with (
        tempfile.TemporaryDirectory() as folder,
        RealCluster(Path(folder), CONTROL_PLANE.folder()) as real,
    ):
        real.control_plane.stop_scheduler()
        real.stop_extender()
        tell(f"{nodes} nodes are made")
        machines = [
            machine(MACHINES[at % len(MACHINES)]).topology(f"node-{at:05}") for at in range(nodes)
        ]
        played = {str(topology.name): _Node(topology) for topology in machines}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(
                pool.map(
                    lambda n: real.add_machine(n.topology, n.kubelet.report()), played.values()
                )
            )
        rows = []
        for number in range(1, rounds + 1):
            for way in WAYS:
                tell(f"round {number} of {rounds}: {way}")
                rate = _round(real, played, way, pods)
                rows.append({"way": way, "round": number, "pods_per_second": rate})
    return {**given, "rows": rows}


def table(figures: dict[str, Any]) -> Table:
    """Medians over the rounds, and the ratio to the extender that does nothing but bind."""
    found = table_of(("extender",), ("bound/s", "ratio"))
    rates = {
        way: median(row["pods_per_second"] for row in figures["rows"] if row["way"] == way)
        for way in WAYS
    }
    for way, rate in rates.items():
        found.add_row(way, f"{rate:.1f}", f"{rate / rates['nothing']:.2f}")
    return found


def _round(real: RealCluster, nodes: Mapping[str, _Node], way: str, pods: int) -> float:
    """Place so many pods with one extender: how many are bound in a second."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda i: real.add_pod(f"p{i:05}", 2, {"link": "nvlink"}), range(pods)))
    version = real.api.get(PODS, params={"limit": 1}).json()["metadata"]["resourceVersion"]
    with _extender(real, way):
        real.control_plane.start_scheduler(str(yaml.safe_dump(real.scheduler_config())))
        try:
            bound = _play(real, nodes, pods, version)
        finally:
            real.control_plane.stop_scheduler()
    real.api.delete(PODS, params={"gracePeriodSeconds": "0"}).raise_for_status()
    for name in {node for node, _ in bound}:
        nodes[name].empty()
        real.put_report(name, nodes[name].kubelet.report())
    return (pods - 1) / (bound[-1][1] - bound[0][1])


def _play(
    real: RealCluster, nodes: Mapping[str, _Node], pods: int, version: str
) -> list[tuple[str, float]]:
    """Play the kubelets until so many pods run; the node of each, and when it was bound."""
    watch = {"watch": "1", "resourceVersion": version, "fieldSelector": "spec.nodeName!="}
    bound: dict[str, tuple[str, float]] = {}
    with ThreadPoolExecutor(AT_ONCE) as kubelets:
        while len(bound) < pods:  # the API server ends a watch when it likes
            with real.api.stream("GET", PODS, params=watch, timeout=WITHIN) as answer:
                for pod in map(_pod, answer.iter_lines()):
                    name, node = pod.metadata.name, pod.spec.node_name
                    if node and name not in bound:
                        bound[name] = node, time.monotonic()
                        kubelets.submit(nodes[node].admit, real, pod)
                    if len(bound) == pods:
                        break
    return list(bound.values())


def _pod(line: str) -> Pod:
    return msgspec.json.decode(line, type=_Event).object


@contextmanager
def _extender(real: RealCluster, way: str) -> Iterator[None]:
    """An extender, once it is ready; kube-scheduler will ask it."""
    from tests.e2e.cluster import EXTENDER

    port, kubeconfig = free_port(), real.control_plane.kubeconfig(EXTENDER)
    real.changed_extender = {
        "urlPrefix": f"http://{HOST}:{port}/scheduler",
        **dict.fromkeys(("enableHTTPS", "tlsConfig", "preemptVerb")),
    }
    if way == "ours":
        with extender(kubeconfig, port):
            yield
    else:
        with program("benchmarks.speed.nothing", str(port), "1", str(kubeconfig)):
            until(lambda: status_of(port, "/") == 404)
            yield
