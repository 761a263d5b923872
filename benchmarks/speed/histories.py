"""Clusters whose nodes have seen different pods come: what profile and the rounds are asked on."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from benchmarks.promises.pods import GpuContainer, manifest
from benchmarks.promises.workloads import EVERYTHING
from scheduler_extender.annotations import Asks, parse
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.emulation import EmulatedKubelet
from topology.machines import machine


def cluster_of(count: int, states: int, seed: int) -> tuple[Cluster, list[NodeName]]:
    """Nodes with so many different histories of pods, and their names."""
    rng = random.Random(seed)
    cluster = Cluster(lambda: 0.0, Settings(stale_after=None))
    machines = ("dgx1-v100", "a100-pcie-4-bridged", "hgx-h100-8")
    patterns = [_history(rng.choice(machines), rng) for _ in range(states)]
    names = [NodeName(f"node-{i}") for i in range(count)]
    for i, name in enumerate(names):
        _play(cluster, name, patterns[i % states])
    return cluster, names


@dataclass(frozen=True, slots=True)
class _History:
    """A machine, the GPU containers of each pod that came to it, and how many are unreported.

    The last pods are those that no report shows yet.
    """

    machine: str
    came: tuple[tuple[GpuContainer, ...], ...]
    unreported: int

    @property
    def seed(self) -> str:
        """Equal for equal pods on equal machines, so that such nodes end in one state."""
        return repr((self.machine, [tuple((c.role, c.gpus) for c in pod) for pod in self.came]))


def _history(name: str, rng: random.Random) -> _History:
    came = []
    for _ in range(rng.randint(0, 5)):
        weights = [template.weight for template in EVERYTHING]
        came.append(rng.choices(EVERYTHING, weights)[0].containers)
    return _History(name, tuple(came), rng.choice((0, 0, 0, 1, 2)))


def _play(cluster: Cluster, name: str, history: _History) -> None:
    """Let the pods of a history come to a node, and publish its report."""
    node = machine(history.machine).topology(name)
    emulated = EmulatedKubelet(node, random.Random(history.seed))
    report: Report | None = None
    for i, containers in enumerate(history.came):
        pod = msgspec.convert(manifest(name, i, {}, *containers), Pod)
        asks = parse(pod)
        uid = PodUid(f"{name}-{i}")
        assert isinstance(asks, Asks)
        request = asks.request
        if request.effective_count > len(emulated.free()):
            continue
        if i >= len(history.came) - history.unreported:
            report = report or emulated.report()
        emulated.admit(uid, "default", f"{name}-{i}", request)
        cluster.put_pod(PodRecord(uid, "default", f"{name}-{i}", NodeName(name), request))
    cluster.put_record(node, report or emulated.report())
