"""The extender's state under everything at once, against a ledger that only counts.

A random driver creates pods, binds them (again), deletes them by force and makes others of the same
name, loses answers, commits binds late, holds watches and reports back, lists anew, restarts agents
and makes records anew. The ledger is the kubelet's: a pod that was bound by us must find as many
GPUs as it asks for. In the end, when nothing is under way any more, nothing may be left over.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import MANAGED
from scheduler_extender.framework.equivalence import class_ids_of
from scheduler_extender.kube.binder import Settler
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.verbs import BindError, Binding, BindUnknownError, NotWrittenError
from scheduler_extender.wire import BindingArgs, Pod
from tests.deadlines import ending_when
from tests.nodes import offered, pod, switched
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report

GPUS = 4
NODES = ("a", "b")
PATIENCE, LATEST = 10, 9  # a bind is committed at most so long after its answer was lost


@dataclass
class Node:
    """A kubelet and its agent: what each has heard, and what is held."""

    held: dict[str, int] = field(default_factory=dict)
    dying: list[str] = field(default_factory=list)
    news: deque[tuple[int, str, int]] = field(default_factory=deque)
    version: int = 0
    sequence: int = 0
    record: int = 1
    reports: deque[tuple[int, Report]] = field(default_factory=deque)


class Driver:
    """The API server, the nodes, and the extender that is judged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.latest = 1
        self.pods: dict[str, dict[str, Any]] = {}
        self.watch: deque[tuple[int, str, dict[str, Any]]] = deque()
        self.late: list[tuple[float, Binding]] = []
        self.nodes = {name: Node() for name in NODES}
        self.made = 0
        self.keys: dict[int, object] = {}
        self.seen: Counter[str] = Counter()
        self.cluster = Cache(lambda: 0.0)
        self.sink = PodSink(self.cluster)
        self.settler = Settler(self.cluster, self, patience=PATIENCE)  # type: ignore[arg-type]
        for name in NODES:
            self.cluster.put_node(NodeName(name), NodeObject())
            self.look(name)
            self.report(name)

    # What verbs and settler ask of the API server.

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        if self.rng.random() < 0.1:
            raise BindUnknownError("no answer")
        found = self.pods.get(name)
        if found is None or found["metadata"]["uid"] != uid:
            return None
        return pod_record(msgspec.convert(found, Pod), MANAGED)

    def version(self) -> int:
        return self.latest

    def void(self, pod: PodRecord) -> None:
        """One replica only: its Bindings name no version."""

    def write(self, binding: Binding) -> None:
        kind = self.rng.choice(["done", "done", "lost", "late", "never", "refused"])
        self.seen[kind] += 1
        if kind == "refused":
            raise NotWrittenError("refused")
        if kind == "late":
            self.late.append((self.now + self.rng.randint(1, LATEST), binding))
        elif kind != "never" and not self.commit(binding):
            raise NotWrittenError("conflict")
        if kind != "done":
            raise BindUnknownError("no answer")

    def commit(self, binding: Binding) -> bool:
        found = self.pods.get(binding.name)
        if found is None or found["metadata"]["uid"] != binding.uid or "nodeName" in found["spec"]:
            return False
        spec = {**found["spec"], "nodeName": str(binding.node)}
        notes = {"gpu-topology.io/placement": binding.placement}
        notes |= found["metadata"].get("annotations") or {}
        self.store({**found, "metadata": {**found["metadata"], "annotations": notes}, "spec": spec})
        count = int(found["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        self.nodes[binding.node].news.append((self.latest, binding.uid, count))
        return True

    def store(self, manifest: dict[str, Any], *, gone: bool = False) -> None:
        self.latest += 1
        meta = {**manifest["metadata"], "resourceVersion": str(self.latest)}
        manifest = {**manifest, "metadata": meta}
        self.pods[meta["name"]] = manifest
        if gone:
            del self.pods[meta["name"]]
        self.watch.append((self.latest, "delete" if gone else "apply", manifest))

    # What may happen.

    def create(self) -> None:
        name = f"web-{self.rng.randrange(4)}"
        if name not in self.pods:
            self.made += 1
            notes = self.rng.choice([{}, {"link": "nvlink"}])
            self.store(pod(self.rng.randint(1, GPUS), notes, name=name, uid=f"uid-{self.made}"))

    def schedule(self) -> None:
        unbound = [p for p in self.pods.values() if "nodeName" not in p["spec"]]
        if unbound:
            manifest = self.rng.choice(unbound)
            asked = msgspec.convert(manifest, Pod)
            # Where no record is known a plain pod passes unchecked, at its own risk.
            known = [n for n in NODES if self.cluster.node_info(NodeName(n)).report is not None]
            passed = verbs.filter_nodes(self.cluster, asked, known).node_names
            if passed:
                meta = manifest["metadata"]
                node = self.rng.choice(passed)
                args = BindingArgs(meta["name"], meta["namespace"], meta["uid"], node)
                try:
                    verbs.bind(self.cluster, self, args, lambda: "now", ending_when(self.hesitates))
                except BindError:
                    self.seen["not bound"] += 1
                else:
                    self.seen["bound"] += 1

    def hesitates(self) -> bool:
        return self.rng.random() < 0.05

    def delete(self) -> None:
        if self.pods:
            manifest = self.pods[self.rng.choice(sorted(self.pods))]
            self.store(manifest, gone=True)
            node = manifest["spec"].get("nodeName")
            if node:
                self.nodes[node].news.append((self.latest, manifest["metadata"]["uid"], 0))

    def kubelet(self, name: str) -> None:
        """It hears of one pod that comes or goes, and the agent after it."""
        node = self.nodes[name]
        if node.dying and self.rng.random() < 0.3:
            node.held.pop(node.dying.pop(), None)
        elif node.news:
            node.version, uid, count = node.news.popleft()
            if count:
                free = GPUS - sum(node.held.values())
                assert count <= free, f"{uid} was bound to {name}: asks {count}, free {free}"
                node.held[uid] = count
            else:
                node.dying.append(uid)  # and holds its devices until its containers are gone
        elif self.rng.random() < 0.5:
            node.version = self.latest  # a bookmark

    def look(self, name: str) -> None:
        """The agent asks the kubelet, and writes."""
        node = self.nodes[name]
        node.sequence += 1
        ids = (DeviceId(f"GPU-{i}") for i in range(GPUS))
        held = tuple(
            Allocation(
                PodUid(uid),
                "default",
                uid,
                "main",
                "nvidia.com/gpu",
                tuple(next(ids) for _ in range(count)),
            )
            for uid, count in node.held.items()
        )
        says = str(node.version)
        report = Report("boot", node.sequence, allocations=held, pods_version=says)
        node.reports.append((node.record, report))

    def report(self, name: str) -> None:
        """The extender hears of one report."""
        node = self.nodes[name]
        if node.reports:
            record, report = node.reports.popleft()
            self.cluster.put_record(switched(GPUS, name), report, uid=str(record))

    def anew(self, name: str) -> None:
        """The record is deleted, and the agent makes another."""
        node = self.nodes[name]
        node.record, node.sequence = node.record + 1, 0
        node.reports.clear()
        self.cluster.drop_record(NodeName(name))
        self.look(name)

    def hear(self) -> None:
        """The watch of pods brings one event."""
        if self.watch:
            _, what, manifest = self.watch.popleft()
            getattr(self.sink, what)(msgspec.Raw(msgspec.json.encode(manifest)))

    def relist(self) -> None:
        """What happened meanwhile is seen by its result alone."""
        self.watch.clear()
        objects = [msgspec.Raw(msgspec.json.encode(p)) for p in self.pods.values()]
        self.sink.replace(objects, str(self.latest))

    def tick(self) -> None:
        self.now += 1
        due = [binding for at, binding in self.late if at <= self.now]
        self.late = [(at, binding) for at, binding in self.late if at > self.now]
        for binding in due:
            self.seen["committed late"] += self.commit(binding)
        self.settler.round(self.now)

    def step(self) -> None:
        rng, node = self.rng, self.rng.choice(NODES)
        acts: dict[Callable[[], None], float] = {
            self.create: 6,
            self.schedule: 8,
            self.delete: 3,
            self.hear: 12,
            self.relist: 0.3,
            self.tick: 3,
            lambda: self.kubelet(node): 3,
            lambda: self.look(node): 4,
            lambda: self.report(node): 6,
            lambda: self.anew(node): 0.2,
        }
        rng.choices([*acts], [*acts.values()])[0]()
        self.counted()

    def counted(self) -> None:
        """The states that nodes are in are counted rightly."""
        cluster = self.cluster
        seen = cluster.snapshot()
        class_ids, _ = class_ids_of(seen, "nvidia.com/gpu", sorted(seen.by_name))
        keys = [info.key("nvidia.com/gpu") for info in seen.nodes]
        assert len(set(class_ids)) == len(set(keys)) == cluster.answers.size().classes
        for class_id, key in zip(class_ids, keys, strict=True):
            assert class_id is not None
            # A node that has changed has left its state: nothing is answered out of the past.
            assert self.keys.setdefault(class_id, key) == key
        flying = {uid for info in cluster.snapshot().nodes for uid in info.pods.assumed}
        assert flying == {pod.uid for pod in list(cluster.snapshot().assumed.values())}

    def settle(self) -> None:
        """Nothing more begins, and everything under way ends."""
        for _ in range(8 * PATIENCE):
            self.tick()
            self.hear()
            for name, node in self.nodes.items():
                self.kubelet(name)
                self.look(name)
                while node.reports:
                    self.report(name)
        while self.watch:
            self.hear()


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_given_twice_lost_or_left_over(seed: int) -> None:
    driver = Driver(seed)
    for _ in range(600):
        driver.step()
    assert driver.seen["bound"] + driver.seen["not bound"] > 0
    driver.settle()
    assert list(driver.cluster.snapshot().assumed.values()) == []
    for name, node in driver.nodes.items():
        bound = {
            p["metadata"]["uid"] for p in driver.pods.values() if p["spec"].get("nodeName") == name
        }
        assert (
            {p.uid for p in driver.cluster.node_info(NodeName(name)).pods.every}
            == bound
            == node.held.keys()
        )
        available = offered(driver.cluster.node_info(NodeName(name))).availability
        assert (
            available.free.bit_count() == available.devices_left == GPUS - sum(node.held.values())
        )
        assert not available.unacknowledged
        assert not available.releasing
