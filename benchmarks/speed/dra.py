"""The cost of nodes with DRA for the extender, in requests about them and in objects.

*Requests* are filter and prioritize over many nodes, once with device plugins alone and once with
DRA on half of the nodes of each machine. A node with DRA publishes its GPUs in a random order, as
NVIDIA's driver does. The clusters are in one process and have the machines and the states of
:mod:`.latency`. Cold means that nothing is cached, warm that the same request came before. Times
are CPU time, the minimum of several rounds.

*Objects* are a ResourceSlice for each node, and ResourceClaims that hold GPUs of them. The figures
are their memory, the time to process their lists, and the time for which other threads wait
meanwhile.
"""

import gc
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from rich.table import Table

from benchmarks.output import preamble, shown
from benchmarks.promises.workloads import app, manifest
from benchmarks.speed.latency import MACHINES, report_of, topology_of
from benchmarks.speed.processes import memory, node_name, waits
from scheduler_extender import terminal, verbs
from scheduler_extender.kube.dra import DraNodes
from scheduler_extender.kube.drasinks import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from scheduler_extender.simulator.claims import DEVICE_CLASS, claim_of, raw, slice_of
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.graph import NodeTopology
from topology.core.memo import forget
from topology.core.report import Health, Report
from topology.core.requests import gpu_request

Verb = Callable[[Cache, Pod, list[NodeName]], object]

PODS = {"single": (1, {}), "quad": (4, {"link": "nvlink"})}
VERBS: dict[str, Verb] = {"filter": verbs.filter_nodes, "prioritize": verbs.prioritize}
ROUNDS = 3


def measure(nodes: int, claims: int, seed: int, begin: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures, with rows in milliseconds, and objects in MiB and seconds."""
    begin("objects")
    objects = _objects(nodes, claims, seed)
    clusters = [_Side(nodes, seed, dra=dra) for dra in (False, True)]
    rows = []
    gc.disable()  # its runs would count as work
    try:
        for pod, (gpus, annotations) in PODS.items():
            for verb, asked in VERBS.items():
                begin(f"{verb}, {pod}")
                asks = msgspec.convert(manifest(pod, 1, annotations, app(gpus)), Pod)
                times = (side.times(asked, asks) for side in clusters)
                for state, alone, half in zip(("cold", "warm"), *times, strict=True):
                    row = {"pod": pod, "verb": verb, "state": state, "plugin_ms": alone}
                    rows.append({**row, "half_dra_ms": half, "ratio": half / alone})
    finally:
        gc.enable()
    given = preamble("dra", nodes=nodes, claims=claims, seed=seed, machines=MACHINES)
    return {**given, "rows": rows, "objects": objects}


def table(figures: dict[str, Any]) -> Table:
    """Return the table of requests for a terminal."""
    return terminal.table(
        figures["rows"],
        shown("pod", "pod"),
        shown("verb", "verb"),
        shown("cache", "state"),
        shown("plugins ms", "plugin_ms", ".1f"),
        shown("half DRA ms", "half_dra_ms", ".1f"),
        shown("ratio", "ratio", ".2f"),
    )


def objects_table(figures: dict[str, Any]) -> Table:
    """Return the table of objects for a terminal."""
    return terminal.table(
        figures["objects"],
        shown("objects read", "what"),
        shown("memory MiB", "mib", ".0f"),
        shown("reading s", "seconds", ".2f"),
        shown("other threads wait s", "waited_s", ".3f"),
    )


class _Side:
    """One of the clusters. With ``dra`` half of its nodes publish their GPUs by DRA."""

    def __init__(self, nodes: int, seed: int, *, dra: bool) -> None:
        rng, orders = random.Random(seed), random.Random(seed)
        self._cluster = Cache(lambda: 0.0, Settings(stale_after=None, all_pods_known=False))
        self._names = [NodeName(node_name(i)) for i in range(nodes)]
        followed = DraNodes(self._cluster)
        sinks = followed.sinks
        sinks[CLASSES_PATH].apply(raw(DEVICE_CLASS))
        for i in range(nodes):
            topology, report = topology_of(i), report_of(i, rng, 1)
            if dra and i // len(MACHINES) % 2:
                held = [str(d) for a in report.allocations for d in a.device_ids]
                sinks[SLICES_PATH].apply(raw(slice_of(topology, _shuffled(topology, orders))))
                gpus = [g.index for g in topology.gpus if g.uuid in held]
                if gpus:
                    sinks[CLAIMS_PATH].apply(_claim(topology, i, gpus))
                report = replace(report, allocatable=frozenset(), allocations=())
            followed.put_record(topology, report)

    def times(self, verb: Verb, pod: Pod) -> tuple[float, float]:
        """Return the milliseconds of one request over all nodes, cold and warm."""
        ask = partial(verb, self._cluster, pod, self._names)
        cold, warm = [], []
        for _ in range(ROUNDS):
            for name in self._names:
                # Its next report has news on which no answer depends.
                info = self._cluster.node_info(name)
                topology, report = info.topology, info.report
                assert topology is not None
                assert report is not None
                sequence = report.sequence + 1
                news = Health(topology.gpus[0].uuid, healthy=True, reason=f"Xid{sequence}")
                report = replace(report, sequence=sequence, health=(news,))
                self._cluster.put_record(topology, report)
            forget()
            self._cluster.forget_answers()
            cold.append(_timed(ask))
            warm += [_timed(ask) for _ in range(3)]
        return min(cold), min(warm)


def _timed(ask: Callable[[], object]) -> float:
    started = time.process_time()
    ask()
    return 1000 * (time.process_time() - started)


def _objects(nodes: int, claims: int, seed: int) -> list[dict[str, Any]]:
    """Measure the lists of ResourceSlices and ResourceClaims, one after the other."""
    rng = random.Random(seed)
    cluster = Cache(lambda: 0.0, Settings(stale_after=None))
    dra = DraNodes(cluster)
    sinks = dra.sinks
    topologies = [topology_of(i) for i in range(nodes)]
    for topology in topologies:
        dra.put_record(topology, Report("boot", 1, allocatable=frozenset()))
    sinks[CLASSES_PATH].apply(raw(DEVICE_CLASS))
    slices = [raw(slice_of(node, _shuffled(node, rng))) for node in topologies]
    gpus = [(i, g.index) for i in range(nodes) for g in topologies[i].gpus]
    rng.shuffle(gpus)
    # Each claim has one GPU. Claims beyond the number of GPUs wait.
    held = [_claim(topologies[at], n, [gpu]) for n, (at, gpu) in enumerate(gpus[:claims])]
    held += [_claim(topologies[0], n, []) for n in range(len(held), claims)]
    steps: dict[str, Callable[[], None]] = {
        f"{nodes:,} ResourceSlices": lambda: sinks[SLICES_PATH].replace(slices, ""),
        f"{claims:,} ResourceClaims": lambda: sinks[CLAIMS_PATH].replace(held, ""),
    }
    return [{"what": what, **_taken_in(dra, step)} for what, step in steps.items()]


def _taken_in(dra: DraNodes, step: Callable[[], None]) -> dict[str, float]:
    before = memory(os.getpid())
    with waits(lambda: dra.drop_record(NodeName("no-such-node")), 0.001) as waited:
        started = time.perf_counter()
        step()
        seconds = time.perf_counter() - started
    return {"mib": memory(os.getpid()) - before, "seconds": seconds, "waited_s": max(waited)}


def _shuffled(node: NodeTopology, rng: random.Random) -> list[int]:
    return rng.sample(range(len(node.gpus)), len(node.gpus))


def _claim(node: NodeTopology, number: int, gpus: list[int]) -> msgspec.Raw:
    """Return a claim that reserves one pod. Without GPUs the claim waits."""
    name = f"claim-{number}"
    pod = PodRecord(PodUid(name), "default", name, None, gpu_request(1))
    claim = claim_of(name, pod, node, gpus)
    return raw(claim if gpus else {**claim, "status": {}})
