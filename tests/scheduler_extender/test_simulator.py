"""The simulator: nodes over a real API server. The played one is tried by the closed loop."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.annotations import PLACEMENT, PLAY_SECONDS
from scheduler_extender.kube.sinks import RECORDS_PATH
from scheduler_extender.simulator.clock import Clock
from scheduler_extender.simulator.cluster import PlayedCluster
from scheduler_extender.simulator.extender import Extender
from scheduler_extender.simulator.faults import Delays, Faults
from scheduler_extender.simulator.overapi import PlayedNodes
from scheduler_extender.simulator.pods import Job, PodEntry
from scheduler_extender.simulator.scene import Observer, Scene
from scheduler_extender.verbs import Binding
from tests.crd import faults
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.waiting import FOREVER, eventually
from topology import codec
from topology.core.report import Report
from topology.emulation import EmulatedKubelet
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine
from topology.times import seconds_of

NODE = machine("l40s-4").topology("node")
PODS = "/api/v1/namespaces/default/pods"


class Seen(Observer):
    def __init__(self) -> None:
        self.what: list[tuple[str, str]] = []

    def admitted(self, entry: PodEntry, held: tuple[int, ...]) -> None:
        self.what.append((entry.record.name, f"admitted {len(held)}"))

    def refused(self, entry: PodEntry, reason: str) -> None:
        self.what.append((entry.record.name, reason))

    def released(self, entry: PodEntry) -> None:
        self.what.append((entry.record.name, "released"))


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as found:
        found.validate(RECORDS_PATH, faults)
        found.put(RECORDS_PATH, dict(codec.encode(NODE, Report("boot", 1))))
        yield found


def played(server: FakeApiServer, folder: Path, seen: Observer) -> PlayedNodes:
    """The node; without a heartbeat, so that it reports when it has something to say."""
    api = ApiServer.from_kubeconfig(server.write_kubeconfig(folder / "kubeconfig"))
    return PlayedNodes(api, [NODE], 1, seen, FOREVER)


def put(server: FakeApiServer, name: str, gpus: int | None, **meta: Any) -> dict[str, Any]:
    """A pod that is bound to the node."""
    made = pod(gpus, name=name, uid=f"uid-of-{name}")
    made["metadata"].update(meta)
    made["spec"]["nodeName"] = "node"
    return server.put(PODS, {**made, "status": {"phase": "Pending"}})


def phase(server: FakeApiServer, name: str) -> str:
    return str(server.read(f"{PODS}/{name}")["status"]["phase"])


def ready(status: dict[str, Any]) -> set[str]:
    """The Ready condition, and what kubectl counts in the column READY."""
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    return {conditions["Ready"], *(str(c["ready"]) for c in status["containerStatuses"])}


def holders(server: FakeApiServer) -> set[str]:
    """The pods with GPUs, by the node's record."""
    report = codec.decode(server.read(f"{RECORDS_PATH}/node")).report
    return {a.pod for a in report.allocations} if report else set()


def test_pods_run_end_and_go_and_the_record_says_which_gpus_they_have(
    server: FakeApiServer, tmp_path: Path
) -> None:
    seen = Seen()
    put(server, "stays", 2)
    put(server, "bare", None)
    put(server, "leaves", 1, deletionTimestamp="2026-01-01T00:00:00Z")
    with played(server, tmp_path, seen) as nodes:
        put(server, "ends", 2, annotations={PLAY_SECONDS: "0"})
        eventually(lambda: phase(server, "ends") == "Succeeded", "it ends by itself")
        put(server, "many", 3)
        eventually(lambda: phase(server, "many") == "Failed", "there are too few GPUs")
        eventually(lambda: phase(server, "bare") == "Running", "it asks for nothing and runs")
        status = {
            name: server.read(f"{PODS}/{name}")["status"] for name in ("bare", "ends", "many")
        }
        assert (ready(status["bare"]), ready(status["ends"])) == ({"True"}, {"False"})
        assert status["many"]["reason"] == "UnexpectedAdmissionError"
        assert "containerStatuses" not in status["many"]
        eventually(lambda: holders(server) == {"stays"}, "the record shows who runs")
        record = server.read(f"{RECORDS_PATH}/node")["status"]
        assert (record["summary"]["free"], record["conditions"][0]["status"]) == (2, "True")
        assert seconds_of(record["observedAt"])
        deleted = server.read(f"{PODS}/stays")
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        server.put(PODS, deleted)
        gone = {"bare", "ends", "many"}
        eventually(lambda: {p["metadata"]["name"] for p in server.items(PODS)} == gone, "it goes")
        eventually(lambda: holders(server) == set(), "the record shows it no more")
    assert nodes.errors == []
    assert seen.what.count(("stays", "released")) == 1
    assert ("ends", "admitted 2") in seen.what
    assert ("many", "UnexpectedAdmissionError") in seen.what
    assert ("leaves", "admitted 1") not in seen.what


@pytest.mark.parametrize("given", ["", "-1", "nan", "soon"])
def test_a_pod_runs_on_without_readable_seconds(
    given: str, server: FakeApiServer, tmp_path: Path
) -> None:
    put(server, "odd", 1, annotations={PLAY_SECONDS: given})
    with played(server, tmp_path, Observer()) as nodes:
        eventually(lambda: phase(server, "odd") != "Pending", "it is admitted")
        put(server, "ends", 1, annotations={PLAY_SECONDS: "0"})
        eventually(lambda: phase(server, "ends") == "Succeeded", "the other one ends")
        assert phase(server, "odd") == "Running"
    assert nodes.errors == []


def test_what_could_not_be_written_is_written_later(server: FakeApiServer, tmp_path: Path) -> None:
    put(server, "one", 1)
    server.refuse(503, times=None, path=".*/status")
    with played(server, tmp_path, Observer()) as nodes:
        wanted = {f"{PODS}/one/status", f"{RECORDS_PATH}/node/status"}
        eventually(lambda: wanted <= {r.path for r in server.requests}, "it tries")
        assert (phase(server, "one"), holders(server)) == ("Pending", set())
        server.allow()
        eventually(lambda: phase(server, "one") == "Running", "it is told again")
        eventually(lambda: holders(server) == {"one"}, "so is the record")
    assert nodes.errors == []


def test_a_pod_that_is_gone_holds_nothing(server: FakeApiServer, tmp_path: Path) -> None:
    put(server, "one", 4)
    with played(server, tmp_path, Observer()) as nodes:
        eventually(lambda: holders(server) == {"one"}, "it runs")
        server.remove(f"{PODS}/one")
        put(server, "two", 4, uid="another")
        eventually(lambda: phase(server, "two") != "Pending", "it runs, or came too early")
        eventually(lambda: "one" not in holders(server), "the record shows it no more")
    assert nodes.errors == []


def test_a_binding_without_a_placement_is_written() -> None:
    """As the extender writes it in shadow."""
    clock = Clock(random.Random(1))
    kubelets = {NODE.name: EmulatedKubelet(NODE, clock.rng, NODE.resources[0].name)}
    scene = Scene(clock, {NODE.name: NODE}, kubelets, Delays(), Faults())
    extender = Extender(1)
    played = PlayedCluster(scene, [], extender)
    entry = played.arrive(Job(0, 60, pod(2, name="train", uid="train")))
    meta = entry.pod.metadata
    extender.binder.write(Binding(meta.namespace, meta.name, entry.record.uid, NODE.name, ""))
    assert entry.record.node == NODE.name
    assert PLACEMENT not in entry.manifest["metadata"]["annotations"]
