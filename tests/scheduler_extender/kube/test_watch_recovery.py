"""What is known after hard times is what a fresh list tells.

Pods, nodes and records change while streams break, history is forgotten in the middle of a list,
lists are slow, events come twice, one watch is far behind the others, and the time of day jumps.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.kube import source as kube
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH, PodSink, RecordSink
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod, switched
from tests.waiting import FOREVER, eventually
from topology.codec import encode
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import Allocation, Report
from topology.kubeapi.apiserver import ApiServer

PODS = "/api/v1/pods"
COLLECTIONS = (PODS, NODES_PATH, RECORDS_PATH)
NAMES = ("a", "b", "c")
RESOURCE = "nvidia.com/gpu"
HOUR = 3600.0


class Rig:
    """A cluster behind a fake API server, and the extender's picture of it."""

    def __init__(self, fake: FakeApiServer, api: ApiServer, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fake = fake
        self.api = api
        self.step = 0.0  # seconds by which the time of day is wrong
        self.sequence = 0
        self.cluster, self.source = self.follower()

    def follower(self) -> tuple[Cache, KubeSource]:
        cluster = Cache(time.monotonic, Settings())
        return cluster, KubeSource(self.api, cluster)

    def pods(self) -> list[dict[str, Any]]:
        return self.fake.items(PODS)

    # What happens in the cluster.

    def node(self, name: str) -> None:
        status = {"allocatable": {RESOURCE: "4"}}
        self.fake.put(NODES_PATH, {"metadata": {"name": name}, "status": status})

    def create(self) -> None:
        name = f"p{self.rng.randrange(8)}"
        if name not in {p["metadata"]["name"] for p in self.pods()}:
            self.sequence += 1
            notes = self.rng.choice([{}, {"link": "nvlink"}])
            self.fake.put(PODS, pod(1, notes, name=name, uid=f"{name}-{self.sequence}"))

    def change(self) -> None:
        """A pod is bound, begins, ends, has its constraints edited, or goes."""
        if not (pods := self.pods()):
            return
        found = self.rng.choice(pods)
        what = self.rng.randrange(4)
        if what == 0:
            self.fake.remove(f"/api/v1/namespaces/default/pods/{found['metadata']['name']}")
            return
        if what == 1 and "nodeName" not in found["spec"]:
            found["spec"]["nodeName"] = self.rng.choice(NAMES)
        elif what == 2 and "nodeName" in found["spec"]:
            found["status"]["phase"] = self.rng.choice(["Running", "Succeeded"])
        elif "nodeName" not in found["spec"]:
            found["metadata"]["annotations"] = {"gpu-topology.io/link": "pix"}
        self.fake.put(PODS, found)

    def come_or_go(self) -> None:
        name = self.rng.choice(NAMES)
        path = self.rng.choice([NODES_PATH, RECORDS_PATH])
        if name in {item["metadata"]["name"] for item in self.fake.items(path)}:
            self.fake.remove(f"{path}/{name}")
        elif path == NODES_PATH:
            self.node(name)
        else:
            self.report(name)

    def report(self, name: str) -> None:
        """The agent of a node shows who holds what, as of now."""
        self.sequence += 1
        node = switched(4, name)
        on = [
            p["metadata"]
            for p in self.pods()
            if p["spec"].get("nodeName") == name and p["status"]["phase"] != "Succeeded"
        ]
        allocations = tuple(
            Allocation(
                PodUid(m["uid"]), "default", m["name"], "main", RESOURCE, (DeviceId(gpu.uuid),)
            )
            for m, gpu in zip(on, node.gpus, strict=False)
        )
        found = Report(
            "boot",
            self.sequence,
            allocations=allocations,
            observed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            pods_version=str(self.fake.resource_version),
        )
        self.fake.put(RECORDS_PATH, encode(node, found))

    # What makes it hard.

    def mishap(self) -> None:
        fake, rng = self.fake, self.rng
        mishaps: list[Callable[[], object]] = [
            fake.drop_streams,
            fake.end_streams,
            fake.expire_history,
            self.forget,
            lambda: fake.refuse(rng.choice([410, 429, 500])),
            lambda: fake.repeat(rng.choice(COLLECTIONS), rng.randrange(1, 12)),
            lambda: fake.delay(rng.choice(COLLECTIONS) + "$", rng.choice([0.02, 0.2])),
            fake.allow,
            fake.bookmark,
            lambda: setattr(self, "step", rng.choice([-HOUR, 0.0, HOUR])),
        ]
        rng.choice(mishaps)()

    def forget(self) -> None:
        """Each watcher has to list again."""
        self.fake.drop_streams()
        self.fake.expire_history()


@pytest.fixture
def rig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Rig]:
    quick = replace(kube.TIMING, healthy_s=0.02, backoff_initial_s=0.005, backoff_cap_s=0.02)
    unhurried = replace(quick, list_timeout_s=FOREVER, connect_timeout_s=FOREVER)
    monkeypatch.setattr(kube, "TIMING", unhurried)
    monkeypatch.setattr(kube, "PAGE", 2)
    monkeypatch.setattr(kube, "RECORDS_PAGE", 2)
    seed = getattr(request, "param", 0)
    with FakeApiServer(gone_as_event=bool(seed % 2)) as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        found = Rig(fake, api, seed)
        for sink in (r._sink for r in found.source.reflectors):
            if isinstance(sink, RecordSink | PodSink):
                sink._now = lambda: time.time() + found.step
        for name in NAMES:
            found.node(name)
            found.report(name)
        found.source.start()
        try:
            yield found
        finally:
            fake.allow()
            found.source.stop()


def picture(cluster: Cache) -> dict[str, object]:
    """All that answers depend on, node by node, and who waits."""
    nodes: dict[str, object] = {
        name: (
            cluster.node_info(NodeName(name)).key(RESOURCE),
            cluster.has_node(NodeName(name)),
            cluster.node_info(NodeName(name)).record.problem,
            sorted(cluster.node_info(NodeName(name)).pods.bound.values(), key=lambda p: p.uid),
        )
        for name in NAMES
    }
    return nodes | {"waiting": sorted(cluster.snapshot().unbound, key=lambda p: p.uid)}


@pytest.mark.parametrize("rig", range(12), indirect=True, ids=str)
def test_the_cache_after_failed_watches_equals_a_fresh_list(rig: Rig, tmp_path: Path) -> None:
    rng = rig.rng
    for _ in range(150):
        what = rng.choice([rig.create, rig.change, rig.change, rig.come_or_go, rig.mishap])
        what()
        if rng.random() < 0.3:
            rig.report(rng.choice(NAMES))
        time.sleep(rng.choice([0.0, 0.0, 0.005]))
    rig.fake.allow()
    rig.step = 0.0
    for name in NAMES:
        rig.node(name)
    api = ApiServer.from_kubeconfig(tmp_path / "kubeconfig")
    fresh = Cache(time.monotonic, Settings())
    source = KubeSource(api, fresh)
    source.start()
    try:
        eventually(lambda: source.unready() is None)

        def alike() -> bool:
            for name in NAMES:  # agents go on: a pod that is gone counts until one knows of it
                rig.report(name)
            return picture(rig.cluster) == picture(fresh)

        eventually(
            alike,
            "it knows what a fresh list tells",
            every=0.1,
            detail=lambda: f"{picture(rig.cluster)}\n{picture(fresh)}",
        )
    finally:
        source.stop()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_time_of_day_that_jumps_makes_no_node_stale(rig: Rig, hours: int) -> None:
    """Its age is judged by a clock that does not jump, from when its report changed."""
    eventually(lambda: rig.source.unready() is None)
    rig.step = hours * HOUR
    rig.forget()
    for name in NAMES:
        rig.report(name)
    shown = rig.sequence

    def sequences() -> list[int]:
        reports = [rig.cluster.node_info(NodeName(name)).report for name in NAMES]
        return [report.sequence for report in reports if report is not None]

    eventually(lambda: max(sequences()) == shown, "the reports have come")
    assert not any(rig.cluster.node_info(NodeName(name)).record.stale for name in NAMES)
