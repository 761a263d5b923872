"""The number of pods a second that the real kube-scheduler places with our extender.

The ratio is to an extender that only binds (:mod:`.nothing`). etcd, kube-apiserver and
kube-scheduler run as the end-to-end tests run them. Kubelets and agents are played. Each bound pod
gets its devices at once, as NVIDIA's plugin would give them. Then the pod's phase and its node's
record are written to the API server.

Both extenders place the same pods (pairs of NVLinked GPUs) in each round, one after the other. The
pods exist before kube-scheduler starts. The rate is that from the first bound pod to the last, so
the start of kube-scheduler is not measured. TLS is off for both. After that the pods are deleted,
and the next extender starts.

The tests build the programs, so this benchmark needs the source tree.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml
from rich.table import Table

from benchmarks.output import preamble, table_of
from benchmarks.speed.processes import (
    HOST,
    SourceTreeMissingError,
    extender,
    free_port,
    program,
    status_of,
    until,
)
from scheduler_extender.simulator import faults
from scheduler_extender.simulator.overapi import PlayedNodes
from scheduler_extender.simulator.pods import PodEntry
from scheduler_extender.simulator.scene import Observer
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

if TYPE_CHECKING:
    from tests.e2e.cluster import RealCluster

MACHINES = ("dgx1-v100", "hgx-h100-8")
WAYS = ("nothing", "ours")
# An agent reads its node when the last container has its devices, so each pod is one report.
DELAYS = replace(faults.AT_ONCE, look=0.01)
AT_ONCE = 8  # parallel requests while the cluster is filled
PODS = "/api/v1/namespaces/default/pods"


class _Seen(Observer):
    """An observer of the times of binds, and of the pods that have released their GPUs."""

    def __init__(self) -> None:
        self.when: dict[str, float] = {}
        self.over: set[str] = set()

    def bound(self, entry: PodEntry) -> None:
        """Note the time at which the watch has shown the pod's node."""
        self.when[entry.record.name] = time.monotonic()

    def released(self, entry: PodEntry) -> None:
        """Note that the deleted pod has released its GPUs."""
        self.over.add(entry.record.name)


def measure(nodes: int, pods: int, rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures. ``tell`` is called with each step.

    Raises :class:`.SourceTreeMissingError` if the tests that build the programs are missing.
    """
    try:
        from tests.e2e.building import CONTROL_PLANE
        from tests.e2e.cluster import RealCluster
    except ImportError as error:
        raise SourceTreeMissingError(
            f"the tests build the control plane: run this in a checkout of the source ({error})"
        ) from error
    given = preamble("throughput", nodes=nodes, pods=pods, rounds=rounds)
    tell("building the programs")
    with (
        tempfile.TemporaryDirectory() as folder,
        RealCluster(Path(folder), CONTROL_PLANE.folder()) as real,
    ):
        real.control_plane.stop_scheduler()
        real.stop_extender()
        tell(f"creating {nodes} nodes")
        machines = [
            machine(MACHINES[at % len(MACHINES)]).topology(f"node-{at:05}") for at in range(nodes)
        ]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(real.add_machine, machines))
        api, seen = ApiServer.from_kubeconfig(real.control_plane.kubeconfig()), _Seen()
        rows = []
        with PlayedNodes(api, machines, 1, seen, inf, DELAYS) as played:
            for number in range(1, rounds + 1):
                for way in WAYS:
                    tell(f"round {number} of {rounds}: {way}")
                    rate = _round(real, seen, way, pods)
                    rows.append({"way": way, "round": number, "pods_per_second": rate})
        assert not played.errors
    return {**given, "rows": rows}


def table(figures: dict[str, Any]) -> Table:
    """Return the medians over the rounds, and the ratio to the extender that only binds."""
    found = table_of(("extender",), ("pods bound/s", "ratio"))
    rates = {
        way: median(row["pods_per_second"] for row in figures["rows"] if row["way"] == way)
        for way in WAYS
    }
    for way, rate in rates.items():
        found.add_row(way, f"{rate:.1f}", f"{rate / rates['nothing']:.2f}")
    return found


def _round(real: RealCluster, seen: _Seen, way: str, pods: int) -> float:
    """Place ``pods`` pods with one extender. Return how many were bound a second."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda i: real.add_pod(f"p{i:05}", 2, {"link": "nvlink"}), range(pods)))
    with _extender(real, way):
        real.control_plane.start_scheduler(str(yaml.safe_dump(real.scheduler_config())))
        try:
            until(lambda: len(seen.when) == pods)
        finally:
            real.control_plane.stop_scheduler()
    real.api.delete(PODS, params={"gracePeriodSeconds": "0"}).raise_for_status()
    until(lambda: len(seen.over) == pods)
    first, last = min(seen.when.values()), max(seen.when.values())
    seen.when.clear()
    seen.over.clear()
    return (pods - 1) / (last - first)


@contextmanager
def _extender(real: RealCluster, way: str) -> Iterator[None]:
    """Run an extender during the block, which begins once it is ready.

    kube-scheduler's next configuration names it.
    """
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
