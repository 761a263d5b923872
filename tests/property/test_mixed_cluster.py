"""A mixed cluster of MIG, shared and whole GPUs: cached answers equal fresh ones.

Pods of all kinds come, are reported and go, places are kept for some, nodes are told sick or not
ready. After each step a few requests are asked, with siblings too. The answers that are shared
between nodes and remembered between steps have to be the ones that each node gives by itself.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from scheduler_extender.annotations import RESERVED
from scheduler_extender.deadline import NO_DEADLINE
from scheduler_extender.files import clusterfile
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.framework.capacitycounter import CapacityCounter
from scheduler_extender.framework.equivalence import ask
from scheduler_extender.framework.nodedecision import decide, pod_capacity
from scheduler_extender.state.answers.answercache import CapacityQuery
from scheduler_extender.state.answers.decision import Decision, Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.state.pods.reservation import value_of
from tests.nodes import pod, record_of
from topology.core.devices import Bytes, DeviceId, GpuResource, NodeName, PodUid
from topology.core.graph import AllocatorConfig, NodeTopology
from topology.core.mig import served_devices
from topology.core.placement import UNUSABLE
from topology.core.report import Allocation, Condition, Report
from topology.core.requests import GpuRequest
from topology.machines import machine
from topology.machines.mig import cut

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.6gb"
GIB = 1 << 30
SETTINGS = Settings(stale_after=None)
SAYS: tuple[dict[str, str], ...] = (
    {},
    {"link": "nvlink"},
    {"same-numa": "true"},
    {"gpu-memory": "10Gi"},
    {"gpu-memory": "30Gi"},
    {"gpu-memory": "20Gi", "policy": "preferred"},
    {"same-gpu": "true"},
    {"spread-gpus": "true"},
    {"sharing": "exclusive"},
    {"min-gpu-memory": "1Gi"},
)


def shared(name: str, policy: str) -> NodeTopology:
    """Four GPUs of 40 GiB in three shares each."""
    found = machine("a100-pcie-4-bridged").topology(name)
    gpus = tuple(replace(gpu, memory=Bytes(40 * GIB)) for gpu in found.gpus)
    return replace(
        found,
        gpus=gpus,
        resources=(GpuResource(GPU, "time-slicing", 3, refuses_several=False),),
        allocator=AllocatorConfig(policy, "v0.20.0"),
    )


def parts(name: str) -> NodeTopology:
    """Four GPUs cut into instances of two profiles."""
    found = cut(machine("a30-4-bridged").topology(name), ("2g.12gb", "1g.6gb", "1g.6gb"))
    return replace(found, allocator=AllocatorConfig("distributed", "v0.19.3"))


def nodes() -> list[NodeTopology]:
    """Two of each kind, so that equal states come up."""
    return [
        found
        for i in "ab"
        for found in (
            shared(f"shared-{i}", "distributed"),
            shared(f"packed-{i}", "packed"),
            parts(f"mig-{i}"),
            machine("a100-pcie-4-bridged").topology(f"whole-{i}"),
        )
    ]


class History:
    """Pods, nodes and what the extender hears of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.cluster = Cache(lambda: self.now, SETTINGS)
        self.cluster.today = lambda: 1000.0 + self.now
        self.nodes = {node.name: node for node in nodes()}
        self.held: dict[NodeName, dict[str, Allocation]] = {name: {} for name in self.nodes}
        self.sequence = self.made = 0
        self.waiting: list[dict[str, Any]] = []
        for name in self.nodes:
            self.report(name)

    def manifest(self, **more: Any) -> dict[str, Any]:
        self.made += 1
        count, uid = self.rng.choice((1, 1, 2, 3)), f"u{self.made}"
        found = pod(count, self.rng.choice(SAYS), name=uid, uid=uid, **more)
        resource = self.rng.choice((GPU, GPU, SMALL))
        found["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
        return found

    def put(self, manifest: dict[str, Any]) -> PodRecord:
        found = record_of(manifest)
        self.cluster.put_pod(found)
        return found

    def bound(self) -> None:
        """A pod is bound by hand, or by us."""
        name = self.rng.choice(list(self.nodes))
        found = record_of(self.manifest())
        request = found.request
        assert isinstance(request, GpuRequest)
        if self.nodes[name].resource(request.resource) is None:
            return
        if decide(self.cluster.node_info(name), request, SETTINGS).rejection is None:
            promised = request.constraints if request.required else found.promised
            survives = request.required and self.rng.random() < 0.5
            ours = replace(found, node=name, promised=promised, survives_endings=survives)
            self.cluster.put_pod(ours)

    def reserve(self) -> None:
        """A place is reserved for a pod, perhaps with victims."""
        manifest = self.manifest()
        uid, name = PodUid(manifest["metadata"]["uid"]), self.rng.choice(list(self.nodes))
        here = sorted(self.cluster.node_info(name).pods.bound.alive)
        victims = self.rng.sample(here, min(len(here), self.rng.randrange(3)))
        until = 1000.0 + self.now + self.rng.choice((5, 20))
        written = value_of(uid, name, until, victims)
        manifest["metadata"].setdefault("annotations", {})[RESERVED] = written
        self.put(manifest)

    def admitted(self) -> None:
        """A report shows a pod with devices that are free."""
        name = self.rng.choice(list(self.nodes))
        topology, info = self.nodes[name], self.cluster.node_info(name)
        for uid, found in sorted(info.pods.bound.alive.items()):
            if uid in self.held[name] or not isinstance(found.request, GpuRequest):
                continue
            served = topology.resource(found.request.resource)
            assert served is not None
            names = sorted(served_devices(topology, served).position_of)
            ids = [f"{n}::{i}" for n in names for i in range(served.replicas)]
            ids = ids if served.replicas > 1 else names
            taken = {d for a in self.held[name].values() for d in a.device_ids}
            free = [i for i in ids if i not in taken]
            if len(free) >= found.request.count:
                got = tuple(map(DeviceId, self.rng.sample(free, found.request.count)))
                self.held[name][uid] = Allocation(
                    uid, "default", found.name, "main", served.name, got
                )
                break
        self.report(name)

    def report(self, name: NodeName) -> None:
        self.sequence += 1
        ready = self.rng.random() < 0.9
        conditions = () if ready else (Condition("Ready", False, "Starting"),)
        held = tuple(self.held[name].values())
        found = Report("boot", self.sequence, allocations=held, conditions=conditions)
        self.cluster.put_record(self.nodes[name], found)

    def gone(self) -> None:
        """A pod ends, begins to end, or is gone."""
        known = [
            p for info in self.cluster.snapshot().nodes for p in info.pods.bound.alive.values()
        ]
        known += self.cluster.snapshot().reservations.values()
        if not known:
            return
        found = self.rng.choice(known)
        how = self.rng.choice(("gone", "deleting", "ended"))
        if how == "gone":
            self.cluster.drop_pod(found.uid)
            for held in self.held.values():
                held.pop(found.uid, None)
        elif how == "deleting":
            self.cluster.put_pod(replace(found, terminating=True))
        else:
            self.cluster.put_pod(replace(found, phase="Succeeded"))
            for held in self.held.values():
                held.pop(found.uid, None)

    def later(self) -> None:
        self.now += self.rng.choice((1.0, 8.0))

    def requests(self) -> list[GpuRequest]:
        found = []
        for _ in range(3):
            record = record_of(self.manifest())
            assert isinstance(record.request, GpuRequest)
            peers = self.rng.choice((0, 0, 1, 1024))
            found.append(replace(record.request, peers=peers))
        return found

    def step(self) -> None:
        steps = (self.bound, self.bound, self.admitted, self.admitted, self.reserve, self.gone)
        self.rng.choice((*steps, self.later))()


def compare(history: History) -> int:
    """Ask, and hold each node's answer against its own; how many were promised something."""
    cluster, names = history.cluster, list(history.nodes)
    promised = 0
    for request in history.requests():
        answered = dict(ask(cluster.snapshot(), request, [str(name) for name in names]).each())
        question = CapacityQuery(request, 3)
        seen = cluster.snapshot()
        counted = CapacityCounter(seen, NO_DEADLINE).on(question, names)
        assert CapacityCounter(seen, NO_DEADLINE).on(question, names) == counted
        for name in names:
            info = replace(cluster.node_info(name))  # without what the facts remember
            own = decide(info, request, SETTINGS)
            if answered[name] != own:  # both are very long to print
                pytest.fail(f"{name} remembers another answer to {request.text}", pytrace=False)
            assert counted[name] == pod_capacity(info, request, SETTINGS, 3), (name, request.text)
            promised += own.rejection is None
            if not info.reservations:
                assert info.last_offer(request.resource) is not UNUSABLE
    return promised


@pytest.mark.parametrize("seed", range(6))
def test_cached_answers_equal_fresh_ones(seed: int) -> None:
    history = History(seed)
    promised = 0
    for _ in range(40):
        history.step()
        promised += compare(history)
    assert promised > 100


def answers(cluster: Cache, request: GpuRequest) -> dict[NodeName, Decision]:
    """Each node's answer."""
    found = cluster.snapshot().nodes
    return {info.name: decide(info, request, SETTINGS) for info in found}


@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_answers_alike(seed: int) -> None:
    history = History(100 + seed)
    history.rng.random = lambda: 0.0  # type: ignore[method-assign]
    for _ in range(40):
        history.step()
    text = b"".join(cluster_file(history.cluster)).decode()
    again = Cache(lambda: history.now, SETTINGS)
    again.today = history.cluster.today
    clusterfile.feed(again, clusterfile.parse(text, "snapshot"))
    for request in (r for _ in range(10) for r in history.requests()):
        before, after = answers(history.cluster, request), answers(again, request)
        for name in before:
            if not history.cluster.node_info(name).pods.terminated and after[name] != before[name]:
                pytest.fail(f"{name} answers {request.text} differently", pytrace=False)
