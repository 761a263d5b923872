"""``gpu-topology play``: nodes that are registered, played and removed, and nothing else."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from scheduler_extender.annotations import PLAY_SECONDS
from scheduler_extender.cli import main
from scheduler_extender.files.clusterfile import parse
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from scheduler_extender.simulator import registration
from scheduler_extender.simulator.overapi import AGAIN
from scheduler_extender.simulator.registration import (
    LEASES_PATH,
    PLAYED,
    RegisteredNodes,
    remove,
    survey,
)
from scheduler_extender.simulator.scene import Observer
from tests.commands import Done, asked, refused
from tests.crd import faults
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.programs import started
from tests.waiting import PATIENCE, eventually
from topology.codec import decode, encode
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

PODS = "/api/v1/namespaces/default/pods"
EVERYTHING = (NODES_PATH, RECORDS_PATH, LEASES_PATH, PODS)
FILE = """
kind: MachineGroup
machine: a100-pcie-4-bridged
count: 2
namePrefix: gpu-
cpu: 8
---
kind: Node
metadata: {name: gpu-01, labels: {pool: a}}
spec:
  unschedulable: true
  taints:
  - {key: team, value: a, effect: NoSchedule}
  - {key: gpu-topology.io/played, effect: NoSchedule}  # as in what kubectl prints of a played node
"""


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """A cluster with a node of its own that has no GPUs, and a pod on it."""
    with FakeApiServer() as fake:
        fake.validate(RECORDS_PATH, faults)
        fake.put(NODES_PATH, {"metadata": {"name": "own"}, "status": {"allocatable": {"cpu": "8"}}})
        fake.put(LEASES_PATH, {"metadata": {"name": "own"}})
        fake.put(
            PODS, {**pod(None, name="own", uid="own", node="own"), "status": {"phase": "Pending"}}
        )
        yield fake


@pytest.fixture
def given(server: FakeApiServer, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "cluster.yaml").write_text(FILE)
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    return ("--cluster", str(tmp_path / "cluster.yaml"), "--kubeconfig", str(kubeconfig))


@contextmanager
def playing(server: FakeApiServer, given: tuple[str, ...]) -> Iterator[Popen[str]]:
    """The command, once its nodes are there."""
    words = [sys.executable, "-m", "scheduler_extender", "play", *given]
    with started(words, stdout=PIPE, stderr=PIPE) as child:
        eventually(lambda: child.poll() is not None or played(server) == {"gpu-00", "gpu-01"})
        yield child


def names(server: FakeApiServer, path: str) -> set[str]:
    return {each["metadata"]["name"] for each in server.items(path)}


def played(server: FakeApiServer) -> set[str]:
    return names(server, NODES_PATH) - {"own"}


def bound(
    server: FakeApiServer,
    name: str,
    gpus: int,
    resource: str = "nvidia.com/gpu",
    **annotations: str,
) -> None:
    wanted = {"name": "main", "resources": {"limits": {resource: str(gpus)}}}
    made = pod(name=name, uid=name, node="gpu-00", containers=[wanted])
    made["metadata"]["annotations"] = annotations
    server.put(PODS, {**made, "status": {"phase": "Pending"}})


def phase(server: FakeApiServer, name: str) -> str:
    return str(server.read(f"{PODS}/{name}")["status"]["phase"])


def has_phase(server: FakeApiServer, name: str, wanted: str) -> bool:
    return phase(server, name) == wanted


def allocations(server: FakeApiServer) -> dict[tuple[str, str], set[str]]:
    """The ids of the devices that the record names, by pod and resource."""
    report = decode(server.read(f"{RECORDS_PATH}/gpu-00")).report
    shown = report.allocations if report is not None else ()
    return {(each.pod, each.resource): {*each.device_ids} for each in shown}


def only_own(server: FakeApiServer) -> bool:
    found = [names(server, path) for path in EVERYTHING]
    return found == [{"own"}, set(), {"own"}, {"own"}]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pods_run_until_the_play_ends_and_nothing_is_left(
    number: int, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    with playing(server, given) as child:
        bound(server, "ends", 2, **{PLAY_SECONDS: "0"})
        eventually(lambda: phase(server, "ends") == "Succeeded")
        bound(server, "runs", 4, **{PLAY_SECONDS: "long"})
        eventually(lambda: phase(server, "runs") == "Running")
        bound(server, "many", 1)
        eventually(lambda: phase(server, "many") == "Failed")
        assert phase(server, "own") == "Pending", "it is on a node of the cluster's own"
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(4)]
        child.send_signal(number)
        assert child.wait(PATIENCE) == 130
        assert child.stderr is not None
        said = child.stderr.read()
    assert lines[0].startswith("default/ends runs on gpu-00, GPUs ")
    assert lines[1] == "default/ends has ended on gpu-00\n"
    assert lines[2:] == [
        f"default/runs runs on gpu-00, GPUs 0-3 ({PLAY_SECONDS} is no number: it runs on)\n",
        "default/many is refused by gpu-00: UnexpectedAdmissionError\n",
    ]
    assert said == (
        f"nodes played: 2, tainted {PLAYED}; Ctrl-C removes them\n"
        "removing the nodes; if that is stopped: gpu-topology play --remove\nnodes removed: 2\n"
    )
    assert only_own(server)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_if_the_reader_has_gone(
    number: int, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    """As with ``2>&1 | tee``, which Ctrl-C ends first, and with a terminal that is closed."""
    with playing(server, given) as child:
        for stream in (child.stdout, child.stderr):
            assert stream is not None
            stream.close()
        child.send_signal(number)
        assert child.wait(PATIENCE) == 130
    assert only_own(server)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("path", "status"), [(NODES_PATH, 503), (RECORDS_PATH, 429)])
def test_the_removal_waits_for_the_api_server(
    path: str, status: int, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    with playing(server, given) as child:
        server.refuse(status, times=1, path=f"{path}$")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert f"note: trying again until Ctrl-C: {status} " in said
    assert said.endswith("nodes removed: 2\n")
    assert only_own(server)


def test_nodes_whose_removal_was_not_answered_are_counted(
    server: FakeApiServer, api: ApiServer, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RegisteredNodes(api, parse(FILE), Observer()):
        pass
    server.commit_then_hang(f"{RECORDS_PATH}$")
    monkeypatch.setattr(registration, "ALL_TIMEOUT", 0.5)
    monkeypatch.setattr(time, "sleep", lambda _: server.allow())
    done = asked(main, "play", "--remove", *given[2:])
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "nodes removed: 2")
    assert only_own(server)


def test_an_event_that_a_quota_forbids_is_not_written_again(
    server: FakeApiServer, api: ApiServer
) -> None:
    server.refuse(403, times=None, path=".*/events$")
    with RegisteredNodes(api, parse(FILE), Observer()) as nodes:
        bound(server, "many", 9)
        eventually(lambda: phase(server, "many") == "Failed")
        bound(server, "ends", 1, **{PLAY_SECONDS: str(3 * AGAIN)})
        eventually(lambda: phase(server, "ends") == "Succeeded")
    assert nodes.errors == []
    assert [r.method for r in server.requests if r.path.endswith("/events")] == ["POST"]


EVENTS = "/api/v1/namespaces/default/events"


def test_a_refused_pod_and_its_event_say_what_a_kubelet_says(
    server: FakeApiServer, api: ApiServer
) -> None:
    """tests/e2e/test_two_sockets.py compares them with those of a real kubelet."""
    with RegisteredNodes(api, parse(FILE), Observer()):
        bound(server, "many", 9)
        eventually(lambda: server.items(EVENTS))
    said = (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 9, Available: 4, which is unexpected"
    )
    assert server.read(f"{PODS}/many")["status"]["message"] == f"Pod was rejected: {said}"
    (event,) = server.items(EVENTS)
    assert (event["reason"], event["message"]) == ("UnexpectedAdmissionError", said)
    assert (event["source"]["host"], event["reportingInstance"]) == ("gpu-00", "gpu-00")


SLICES = "nvidia.com/mig-2g.20gb"
MIXED = """
kind: MachineGroup
machine: a100-pcie-4-bridged
count: 1
namePrefix: gpu-
mig: {strategy: mixed, profiles: [3g.40gb, 2g.20gb, 2g.20gb], gpus: [0]}
"""


def test_a_node_serves_whole_gpus_and_mig_instances(server: FakeApiServer, api: ApiServer) -> None:
    """The first GPU is in three instances: neither resource has devices of the other."""
    with RegisteredNodes(api, parse(MIXED), Observer()) as nodes:
        found = server.read(f"{NODES_PATH}/gpu-00")["status"]["allocatable"]
        assert {name: found[name] for name in found if "/" in name} == {
            "nvidia.com/gpu": "3",
            "nvidia.com/mig-3g.40gb": "1",
            SLICES: "2",
        }
        bound(server, "whole", 3)
        bound(server, "slices", 2, resource=SLICES)
        for name in ("whole", "slices"):
            eventually(partial(has_phase, server, name, "Running"))
        bound(server, "whole-more", 1)
        bound(server, "slice-more", 1, resource=SLICES)
        for name in ("whole-more", "slice-more"):
            eventually(partial(has_phase, server, name, "Failed"))
        eventually(lambda: len(allocations(server)) == 2)
        gpus = nodes.nodes[NodeName("gpu-00")].topology.gpus
        assert allocations(server) == {
            ("whole", "nvidia.com/gpu"): {gpu.uuid for gpu in gpus[1:]},
            ("slices", SLICES): {part.uuid for part in gpus[0].mig_instances[1:]},
        }
        assert SLICES in server.read(f"{PODS}/slice-more")["status"]["message"]
        server.remove(f"{PODS}/slices")
        eventually(lambda: len(allocations(server)) == 1)
        bound(server, "slice-again", 2, resource=SLICES)
        eventually(partial(has_phase, server, "slice-again", "Running"))


@pytest.mark.parametrize("refused", ["many/status", "events"])
def test_a_write_that_met_another_one_is_written_again(
    refused: str, server: FakeApiServer, api: ApiServer
) -> None:
    server.refuse(409, times=1, path=f".*/{refused}$")
    with RegisteredNodes(api, parse(FILE), Observer()) as nodes:
        bound(server, "many", 9)
        eventually(lambda: phase(server, "many") == "Failed")
    assert nodes.errors == []


def test_a_node_is_as_the_file_says(server: FakeApiServer, given: tuple[str, ...]) -> None:
    with playing(server, given):
        nodes = {each["metadata"]["name"]: each for each in server.items(NODES_PATH)}
        eventually(lambda: "status" in server.read(f"{RECORDS_PATH}/gpu-01"), "it has a report")
    node = nodes["gpu-01"]
    allocatable = node["status"]["allocatable"]
    assert (allocatable["nvidia.com/gpu"], allocatable["cpu"]) == ("4", "8000m")
    labels = node["metadata"]["labels"]
    assert labels["pool"] == "a"
    assert labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
    assert node["spec"]["unschedulable"]
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["team", PLAYED]
    assert node["status"]["conditions"][0]["status"] == "True"


@pytest.mark.parametrize("how", ["remove", "start"])
def test_what_a_killed_play_has_left_is_removed(
    how: str, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    with playing(server, given) as child:
        bound(server, "runs", 1)
        eventually(lambda: phase(server, "runs") == "Running")
        child.kill()
        child.wait(PATIENCE)
    assert played(server) == {"gpu-00", "gpu-01"}
    if how == "remove":
        done = asked(main, "play", "--remove", *given[2:])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "nodes removed: 2\n")
        assert only_own(server)
    else:
        with started(
            [sys.executable, "-m", "scheduler_extender", "play", *given], stderr=PIPE
        ) as child:
            assert child.stderr is not None
            assert child.stderr.readline() == "nodes removed of an earlier play: 2\n"
            assert child.stderr.readline().startswith("nodes played: 2")
            assert names(server, PODS) == {"own"}
            assert played(server) == {"gpu-00", "gpu-01"}


def test_a_node_of_the_same_name_that_has_joined_meanwhile_keeps_its_pods(
    server: FakeApiServer, given: tuple[str, ...]
) -> None:
    server.put(RECORDS_PATH, {"metadata": {"name": "own", "labels": {PLAYED: "true"}}})
    assert asked(main, "play", "--remove", *given[2:]).returncode == 0
    assert only_own(server)


def told(given: tuple[str, ...], *words: str) -> Done:
    return asked(main, "play", *(words or given[:2]), *given[2:])


@pytest.mark.parametrize(
    ("path", "metadata", "said"),
    [
        pytest.param(NODES_PATH, {"name": "real"}, "has GPU nodes (real)", id="gpu-node"),
        pytest.param(RECORDS_PATH, {"name": "real"}, "has GPU nodes (real)", id="record"),
        pytest.param(NODES_PATH, {"name": "gpu-01"}, "has gpu-01 already", id="same-name"),
    ],
)
def test_a_cluster_with_gpus_is_refused(
    path: str,
    metadata: dict[str, Any],
    said: str,
    server: FakeApiServer,
    given: tuple[str, ...],
) -> None:
    status = {"allocatable": {"nvidia.com/gpu": "8"}}
    server.put(path, {"metadata": metadata, "status": status})
    refused(told(given), said)
    assert played(server) <= {metadata["name"]}


def test_a_play_beside_gpu_nodes_leaves_them_alone(
    server: FakeApiServer, given: tuple[str, ...]
) -> None:
    server.put(RECORDS_PATH, {"metadata": {"name": "real"}})
    with playing(server, (*given, "--beside-gpu-nodes")) as child:
        assert played(server) == {"gpu-00", "gpu-01"}
        child.kill()
        child.wait(PATIENCE)
    assert asked(main, "play", "--remove", *given[2:]).returncode == 0
    assert names(server, RECORDS_PATH) == {"real"}


def test_rights_that_are_missing_are_named(server: FakeApiServer, given: tuple[str, ...]) -> None:
    server.denied = {"patch pods/status", "create nodes"}
    refused(told(given), "you need permission to create nodes, patch pods/status")
    assert played(server) == set()


def test_without_the_crd_it_is_said_how_to_get_it(
    server: FakeApiServer, given: tuple[str, ...]
) -> None:
    server.refuse(404, times=None, path=".*/gputopologies")
    refused(told(given), "kubectl apply --server-side -f manifests/base/crd.yaml")
    assert played(server) == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--remove", "--cluster", "x.yaml"), "either --cluster or --remove is needed"),
        (("--beside-gpu-nodes",), "either --cluster or --remove is needed"),
        (("--cluster", "x.yaml"), "x.yaml: No such file or directory; allowed are a cluster file"),
        (("--cluster", "hgx-h100-8"), "or machines with counts, such as hgx-h100-8=2"),
        (("--cluster", "hgx-h100=2"), "hgx-h100=2: document 1: machine: 'hgx-h100' is not in the "),
    ],
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], said: str, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    refused(told(given, *words), said)
    assert server.requests == []


def test_a_node_without_a_gpu_resource_is_refused(
    tmp_path: Path, server: FakeApiServer, given: tuple[str, ...]
) -> None:
    node = replace(machine("t4-4").topology("n"), resources=())
    file = tmp_path / "dra.json"
    file.write_text(json.dumps(encode(node, Report())))
    refused(told(given, "--cluster", str(file)), "node n: it serves no GPU resource")
    assert server.requests == []


@pytest.fixture
def api(server: FakeApiServer, given: tuple[str, ...]) -> ApiServer:
    return ApiServer.from_kubeconfig(given[3])


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed all the time."""
    monkeypatch.setattr(registration, "RENEWAL", 0.02)


@pytest.mark.usefixtures("_hurried")
def test_leases_are_renewed_and_a_lost_node_is_ready_again(
    server: FakeApiServer, api: ApiServer
) -> None:
    with RegisteredNodes(api, parse(FILE), Observer()) as nodes:
        lease = server.read(f"{LEASES_PATH}/gpu-00")["spec"]
        lost = server.read(f"{NODES_PATH}/gpu-00")
        lost["status"]["conditions"][0]["status"] = "Unknown"
        server.refuse(503, times=3, path=".*leases/.*")
        server.put(NODES_PATH, lost)

        def is_ready() -> bool:
            node = server.read(f"{NODES_PATH}/gpu-00")
            return bool(node["status"]["conditions"][0]["status"] == "True")

        eventually(is_ready, "the node is ready")
        eventually(
            lambda: server.read(f"{LEASES_PATH}/gpu-00")["spec"]["renewTime"] > lease["renewTime"],
            "the Lease is renewed",
        )
    assert (nodes.errors, nodes.removed) == ([], False)


@pytest.mark.usefixtures("_hurried")
def test_a_play_whose_nodes_are_removed_ends(
    server: FakeApiServer, api: ApiServer, given: tuple[str, ...]
) -> None:
    with RegisteredNodes(api, parse(FILE), Observer()) as nodes:
        other = ApiServer.from_kubeconfig(given[3])
        remove(other, survey(other)[0])
        eventually(lambda: nodes.removed, "it has noticed")
    assert only_own(server)
