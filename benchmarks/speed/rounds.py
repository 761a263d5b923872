"""What waiting pods cost: a round of the waker, and preempt over many nodes, every cache empty."""

from __future__ import annotations

import random
import time

import msgspec
from rich.table import Table

from benchmarks.figures.speed import PreemptCost, Profile, WakerCost
from benchmarks.promises.pods import app, manifest
from benchmarks.speed.histories import cluster_of
from scheduler_extender.kube.waker import Waker
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.verbs import preemption
from scheduler_extender.wire import MetaPod, MetaVictims, Pod, PreemptionArgs
from topology.core.devices import PodUid
from topology.core.links import GBps, LinkKind
from topology.core.remembering import forget
from topology.core.requests import Constraints, GpuRequest, gpu_request

WAITING = 5_000
CHANGED = 2_000
REQUESTS = 20
CHANGES = 100
"""Nodes that change before each round after the first."""
ROUNDS = 40
VICTIM_NODES = 1_000


class _Nobody:
    """An API server that takes every patch at once."""

    def patch(self, path: str, body: bytes, *, timeout: float) -> bytes:
        return b""


def waker(states: int, seed: int) -> WakerCost:
    """Rounds over pods that fit nowhere: nobody is woken, so all of them stay to be looked at."""
    cluster, names = cluster_of(CHANGED, states, seed)
    rng = random.Random(seed)
    waking = Waker(cluster, _Nobody())
    for i in range(WAITING):
        wanted = _unmet(i % REQUESTS)
        cluster.put_pod(
            PodRecord(PodUid(f"w{i}"), "d", f"w{i}", None, wanted, called_unschedulable=True)
        )
    forget()
    spent = []
    for n in range(ROUNDS):
        for name in names if n == 0 else rng.sample(names, CHANGES):
            cluster.drop_node(name)  # a node without a Node object: only listeners hear of it
        started = time.perf_counter()
        waking.round(n * 0.25)
        spent.append(1000 * (time.perf_counter() - started))
    return WakerCost(
        waiting=WAITING,
        changed=CHANGED,
        requests=REQUESTS,
        changes=CHANGES,
        first=spent[0],
        longest=max(spent),
        last=spent[-1],
    )


def _unmet(kind: int) -> GpuRequest:
    """One of several requests that no node can meet, most of them for lack of bandwidth."""
    links = Constraints(link=LinkKind.NVLINK, min_bandwidth=GBps(10_000.0 + kind))
    return gpu_request(2 + kind % 3, links)


def preempt(seed: int) -> tuple[PreemptCost, ...]:
    """preempt over nodes in a hundred states, and in as many states as there are nodes."""
    return tuple(_preempt(states, seed) for states in (100, VICTIM_NODES))


def _preempt(states: int, seed: int) -> PreemptCost:
    cluster, names = cluster_of(VICTIM_NODES, states, seed)
    pod = msgspec.convert(manifest("pair", 1, {"link": "nvlink"}, app(2)), Pod)
    victims: dict[str, MetaVictims | None] = {
        name: MetaVictims([MetaPod(pods[0].uid)])
        for name in names
        if (pods := cluster.facts(name).all_pods)
    }
    args = PreemptionArgs(pod, None, victims)
    forget()
    cluster.forget_answers()
    cold = _timed(cluster, args)
    again = _timed(cluster, args)
    return PreemptCost(states=states, nodes=len(victims), cold=cold, again=again)


def _timed(cluster: Cluster, args: PreemptionArgs) -> float:
    started = time.perf_counter()
    preemption.preempt(cluster, args)
    return 1000 * (time.perf_counter() - started)


def table(found: Profile) -> Table:
    """The figures for a terminal."""
    rows = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    rows.title = "waiting pods, ms"
    rows.add_column("what")
    for column in ("cold", "again"):
        rows.add_column(column, justify="right")
    cost = found.waker
    rows.add_row(
        f"a round of the waker, {cost.waiting:,} pods, {cost.changed:,} changed nodes",
        f"{cost.longest:.0f}",
        f"{cost.last:.0f}",
    )
    for row in found.preempt:
        rows.add_row(
            f"preempt over {row.nodes:,} nodes in {row.states:,} histories",
            f"{row.cold:.0f}",
            f"{row.again:.0f}",
        )
    return rows
