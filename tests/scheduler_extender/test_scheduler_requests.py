"""The twenty-five requests of kube-scheduler.md and what must come back, over real HTTP."""

import json
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import PodRecord
from tests.nodes import bridged, container, pcie, pod, switched
from tests.recorded import files, shared
from tests.scheduler_extender.conftest import Kube
from tests.scheduler_extender.serving import Running, running
from tests.waiting import PATIENCE
from topology.core.devices import DeviceId, NodeName, PodUid
from topology.core.report import CLIENT, Allocation, Condition, MissingGpu, Report
from topology.core.requests import gpu_request

NVLINK = {"link": "nvlink"}


@pytest.fixture
def service() -> Iterator[Running]:
    with running(switched(), pcie(), bridged()) as found:
        yield found


def hold(
    service: Running,
    node: str,
    *gpus: int,
    uid: str = "other",
    sequence: int = 2,
    conditions: tuple[Condition, ...] = (),
) -> None:
    """The agent reports GPUs as held by a running pod."""
    devices = tuple(DeviceId(f"GPU-{i}") for i in gpus)
    allocation = Allocation(PodUid(uid), "x", uid, "main", "nvidia.com/gpu", devices)
    allocations = (allocation,) if gpus else ()
    report = Report("boot", sequence, allocations=allocations, conditions=conditions)
    if gpus:
        name = NodeName(node)
        holder = PodRecord(PodUid(uid), "x", uid, name, gpu_request(len(gpus)), "Running")
        service.cluster.put_pod(holder)
    assert service.cluster.put_report(NodeName(node), report)


def test_case_01_one_of_two_fits(service: Running) -> None:
    answer = service.filter(pod(2, NVLINK), "switched", "pcie")
    assert answer["NodeNames"] == ["switched"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["pcie"]


def test_cases_02_05_06_none_fits_and_no_other_node_is_named(service: Running) -> None:
    answer = service.filter(pod(2, NVLINK), "pcie")
    reason = "the hardware has no set of 2 GPUs with link=nvlink"
    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    assert answer["FailedAndUnresolvableNodes"] == {"pcie": reason}


def test_case_03_every_offered_node_once(service: Running) -> None:
    offered = ["bridged", "pcie", "nobody", "switched", "pcie"]
    answer = service.filter(pod(2, NVLINK), *offered)
    parts = [
        *answer["NodeNames"],
        *answer["FailedNodes"],
        *answer["FailedAndUnresolvableNodes"],
    ]
    assert sorted(parts) == sorted(set(offered))


def test_case_04_unknown_node(service: Running) -> None:
    answer = service.filter(pod(2, NVLINK), "nobody", "switched")
    assert answer["FailedAndUnresolvableNodes"] == {"nobody": "no topology report"}
    assert service.filter(pod(2), "nobody")["NodeNames"] == ["nobody"]


def test_case_07_busy_is_resolvable(service: Running) -> None:
    hold(service, "switched", 0, 1, 2)
    answer = service.filter(pod(2, NVLINK), "switched")
    assert answer["FailedNodes"] == {"switched": "not enough free GPUs"}


def test_case_08_same_request_same_bytes(service: Running) -> None:
    body = {"Pod": pod(2, NVLINK), "Nodes": None, "NodeNames": ["pcie", "bridged", "switched", "x"]}
    answers = {service.http.post("/scheduler/filter", json=body).content for _ in range(5)}
    scores = {service.http.post("/scheduler/prioritize", json=body).content for _ in range(5)}
    assert len(answers) == len(scores) == 1


def test_case_09_no_varying_text_in_reasons(service: Running) -> None:
    """Equal kinds of refusal have equal text on different nodes and at different times."""
    hold(service, "switched", 0, 1, 2)
    first = service.filter(pod(2, NVLINK), "switched", "bridged")["FailedNodes"]
    service.clock.now += 60
    hold(service, "switched", 1, 2, 3, uid="another", sequence=3)
    hold(service, "bridged", 1, 2, 3)
    second = service.filter(pod(2, NVLINK), "switched", "bridged")["FailedNodes"]
    assert second["switched"] == second["bridged"] == first["switched"]


def test_a_reason_shows_the_model_that_is_there(service: Running) -> None:
    def answer(model: str) -> tuple[list[str], dict[str, str]]:
        found = service.filter(pod(2, {"gpu-model": model}), "switched", "pcie")
        return found["NodeNames"], found["FailedAndUnresolvableNodes"]

    assert answer("l40s") == (["pcie"], {"switched": "GPU model is a100-sxm4-40gb, not l40s"})
    assert answer("A100 SXM4")[0] == ["switched"]
    assert answer("nvidia") == (["switched", "pcie"], {})
    assert answer("L40") == (
        [],
        {"switched": "GPU model is a100-sxm4-40gb, not l40", "pcie": "GPU model is l40s, not l40"},
    )


def test_case_10_stale_report_node_by_node(service: Running) -> None:
    service.clock.now = 100
    hold(service, "switched")
    service.clock.now = 200  # bridged and pcie were last heard at 0
    answer = service.filter(pod(1, NVLINK), "switched", "bridged")
    assert answer["NodeNames"] == ["switched"]
    assert answer["FailedAndUnresolvableNodes"] == {"bridged": "topology report is stale"}
    assert service.filter(pod(1), "bridged")["NodeNames"] == ["bridged"]
    hold(service, "bridged", sequence=3)
    assert service.filter(pod(1, NVLINK), "bridged")["NodeNames"] == ["bridged"]


def test_a_node_under_maintenance_promises_nothing_and_then_goes_on(service: Running) -> None:
    """The GPU operator stops our agent by a label: the node waits for it, and is not broken."""

    def labelled(value: str) -> None:
        node_object = NodeObject(labels={CLIENT: value} if value else {})
        service.cluster.put_node(NodeName("bridged"), node_object)

    def refused() -> dict[str, str]:
        found = service.filter(pod(1, NVLINK), "bridged")
        return {**found["FailedNodes"], **found["FailedAndUnresolvableNodes"]}

    maintained = {"bridged": "node is under maintenance"}
    hold(service, "bridged")
    for value in ("", "true"):
        labelled(value)
        assert refused() == {}
    labelled("paused-for-driver-upgrade")
    assert refused() == maintained
    assert service.filter(pod(1), "bridged")["NodeNames"] == ["bridged"]
    service.clock.now = 400
    assert refused() == maintained, "the agent is gone for a reason"
    assert service.admin.get("/v1/nodes/bridged").json()["maintenance"] is True
    labelled("true")
    assert refused() == {"bridged": "topology report is stale"}
    assert "maintenance" not in service.admin.get("/v1/nodes/bridged").json()
    hold(service, "bridged", sequence=3)
    assert refused() == {}
    labelled("paused-for-mig-change")
    assert refused() == maintained


def test_a_gpu_that_does_not_answer_is_shown_and_ends_promises(service: Running) -> None:
    """This node's plugin is unknown: it may fail over the GPU, or do well without."""
    missing = (MissingGpu("GPU-2", counted=True),)
    name = NodeName("switched")
    assert service.cluster.put_report(name, Report("boot", 7, missing=missing))
    answer = service.filter(pod(1, NVLINK), "switched")
    assert answer["FailedNodes"] == {
        "switched": "not guaranteed: the node's kubelet may refuse the pod"
    }
    assert service.filter(pod(1), "switched")["NodeNames"] == ["switched"]
    assert service.admin.get("/v1/nodes/switched").json()["missing"] == ["GPU-2"]
    assert service.cluster.put_report(name, Report("boot", 8))
    assert service.filter(pod(1, NVLINK), "switched")["NodeNames"] == ["switched"]
    assert "missing" not in service.admin.get("/v1/nodes/switched").json()


def test_a_report_that_its_agent_does_not_vouch_for_promises_nothing(service: Running) -> None:
    """The rows of a stale report: required pods go elsewhere, the others are let through."""
    condition = Condition("Ready", False, "KubeletUnavailable", "no socket")
    hold(service, "bridged", sequence=7, conditions=(condition,))
    answer = service.filter(pod(1, NVLINK), "bridged", "switched")
    assert answer["NodeNames"] == ["switched"]
    assert answer["FailedAndUnresolvableNodes"] == {"bridged": "topology report is not Ready"}
    assert service.filter(pod(1), "bridged")["NodeNames"] == ["bridged"]
    assert service.admin.get("/v1/nodes/bridged").json()["notReady"] == "no socket"
    ready = Condition("Ready", True, "Watching")
    hold(service, "bridged", sequence=8, conditions=(ready,))
    assert service.filter(pod(1, NVLINK), "bridged")["NodeNames"] == ["bridged"]


def test_case_11_not_synced(service: Running) -> None:
    service.unready.append("not synced: pods")
    assert service.http.get("/readyz").status_code == 503
    assert service.http.get("/healthz").status_code == 200
    answer = service.filter(pod(2, NVLINK), "switched")
    assert "has not read the cluster" in answer["Error"]
    assert not answer["NodeNames"]
    body = {"Pod": pod(1), "NodeNames": ["switched"]}
    assert service.http.post("/scheduler/prioritize", json=body).status_code == 503
    assert "has not read the cluster" in service.bind(pod(1), "switched")
    service.unready.clear()
    assert service.http.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        pytest.param({"link": "nvlnk"}, 'link="nvlnk": allowed are nvlink, pix', id="link"),
        pytest.param({"lnk": "nvlink"}, "annotation gpu-topology.io/lnk: unknown key", id="key"),
        pytest.param({"min-nvlinks": "0"}, "whole numbers from 1 to 18", id="nvlinks"),
        pytest.param({"min-nvlinks": "19"}, "whole numbers from 1 to 18", id="nvlinks, many"),
        pytest.param({"min-gpu-memory": "lots"}, "quantities of bytes from 64Mi", id="memory"),
        pytest.param({"min-bandwidth": "-5"}, "GB/s above 0", id="bandwidth"),
        pytest.param({"same-numa": "yes"}, "allowed are true, false", id="numa"),
        pytest.param({"gpu-model": "A100*,,"}, "product names or globs", id="model"),
        pytest.param({"policy": "please"}, "allowed are required, preferred", id="policy"),
    ],
)
def test_case_12_malformed_annotation(
    service: Running, annotations: dict[str, str], words: str
) -> None:
    answer = service.filter(pod(2, annotations), "switched", "pcie")
    assert answer["NodeNames"] == []
    reasons = set(answer["FailedAndUnresolvableNodes"].values())
    assert len(answer["FailedAndUnresolvableNodes"]) == 2
    assert len(reasons) == 1
    assert words in reasons.pop()
    assert service.filter(pod(2, NVLINK), "switched")["NodeNames"] == ["switched"]


def test_case_13_malformed_record_fails_alone(service: Running) -> None:
    service.cluster.put_problem(NodeName("bridged"), "spec.devices.0.index: …")
    answer = service.filter(pod(2, NVLINK), "switched", "bridged")
    assert answer["NodeNames"] == ["switched"]
    assert answer["FailedAndUnresolvableNodes"] == {"bridged": "topology record unusable"}
    reported = service.admin.get("/v1/nodes/bridged").json()
    assert reported["problem"].startswith("spec.devices.0.index")


def test_case_13_contradictory_report(service: Running) -> None:
    one = Allocation(PodUid("a"), "x", "a", "main", "nvidia.com/gpu", (DeviceId("GPU-0"),))
    two = Allocation(PodUid("b"), "x", "b", "main", "nvidia.com/gpu", (DeviceId("GPU-0"),))
    service.cluster.put_report(NodeName("switched"), Report("boot", 2, allocations=(one, two)))
    answer = service.filter(pod(2, NVLINK), "switched")
    assert answer["FailedAndUnresolvableNodes"] == {"switched": "topology record unusable"}
    assert "GPU-0 is held by two pods or containers" in service.admin.get("/v1/nodes").text


def test_case_14_pod_without_gpus(service: Running) -> None:
    answer = service.filter(pod(None, {"link": "nonsense"}), "switched", "nobody")
    assert answer["NodeNames"] == ["switched", "nobody"]


def test_case_15_init_sidecar_and_several_containers(service: Running) -> None:
    apps = [container("a", 1), container("b", 1)]
    sidecar = container("s", 1, restartPolicy="Always")
    two = pod(annotations=NVLINK, containers=apps)
    three = pod(annotations=NVLINK, containers=apps, init=[sidecar])
    four = pod(annotations=NVLINK, containers=apps, init=[sidecar, container("i", 3)])
    hold(service, "switched", 0, 1)
    assert service.filter(two, "switched")["NodeNames"] == ["switched"]
    assert service.filter(three, "switched")["NodeNames"] == []
    hold(service, "switched", 0, sequence=3)
    assert service.filter(three, "switched")["NodeNames"] == ["switched"]
    assert service.filter(four, "switched")["NodeNames"] == []


def test_case_16_prioritize_gives_integers_from_0_to_10(service: Running) -> None:
    hold(service, "bridged", 2, 3)
    body = {"Pod": pod(2, NVLINK), "NodeNames": ["switched", "bridged", "pcie", "nobody"]}
    text = service.http.post("/scheduler/prioritize", json=body).text
    rows = json.loads(text)
    assert [row["Host"] for row in rows] == body["NodeNames"]
    assert all(type(row["Score"]) is int and 0 <= row["Score"] <= 10 for row in rows)
    assert "." not in text
    scores = {row["Host"]: row["Score"] for row in rows}
    assert scores["switched"] > scores["bridged"] > scores["pcie"] == scores["nobody"] == 0


def test_case_17_no_names(service: Running) -> None:
    assert service.filter(pod(2, NVLINK))["NodeNames"] == []
    assert service.prioritize(pod(2, NVLINK)) == {}


def test_case_18_full_nodes(service: Running) -> None:
    items = [{"metadata": {"name": n}, "spec": {"x": n}} for n in ("pcie", "switched")]
    body = {"Pod": pod(2, NVLINK), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    answer = service.http.post("/scheduler/filter", json=body).json()
    assert answer["Nodes"]["items"] == [items[1]]
    assert answer["NodeNames"] is None
    assert list(answer["FailedAndUnresolvableNodes"]) == ["pcie"]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"Pod": 3}',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"NodeNames": ["a"]}',
    ],
    ids=["empty", "cut", "null", "list", "wrong type", "not text", "deep", "field missing"],
)
def test_case_19_invalid_json(service: Running, verb: str, body: bytes) -> None:
    answer = service.http.post(f"/scheduler/{verb}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert service.http.get("/healthz").status_code == 200


def test_case_19_oversize_body(service: Running) -> None:
    """The server says so itself, however much is still to come, and serves the next one."""
    url = service.http.base_url
    head = (
        f"POST /scheduler/filter HTTP/1.1\r\nHost: {url.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    size = 1024 * 1024
    chunk = b"%x\r\n" % size + b"x" * size + b"\r\n"
    sent = 0
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        # Until it answers; whoever sends on is cut off, and the answer with it.
        while not select.select([connection], [], [], 0)[0] and sent < 200:
            connection.sendall(chunk)
            sent += 1
        answer = connection.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 413 "), answer
    assert sent < 200
    assert service.filter(pod(2, NVLINK), "switched")["NodeNames"] == ["switched"]


# Bind, against a fake API server that behaves.


def test_case_20_bind_writes_one_binding(kube: Kube, bound: Running) -> None:
    assert bound.bind(kube.create(pod(2, NVLINK)), "switched") == ""
    assert kube.bindings() == 1
    stored = kube.fake.read("/api/v1/namespaces/default/pods/train")
    assert stored["spec"]["nodeName"] == "switched"
    placement = json.loads(stored["metadata"]["annotations"]["gpu-topology.io/placement"])
    assert placement["verdict"] == "guaranteed"
    assert placement["node"] == "switched"
    assert placement["sets"] == [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]
    assert placement["time"].endswith("Z")


def test_case_21_the_same_bind_again(kube: Kube, bound: Running) -> None:
    train = kube.create(pod(2, NVLINK))
    assert bound.bind(train, "switched") == ""
    before = kube.fake.read("/api/v1/namespaces/default/pods/train")
    assert bound.bind(train, "switched") == ""
    assert kube.fake.read("/api/v1/namespaces/default/pods/train") == before
    PodSink(kube.cluster).apply(_raw(before))
    assert bound.bind(train, "switched") == ""
    assert len(kube.cluster.node_info(NodeName("switched")).pods.every) == 1
    assert "already bound to switched" in bound.bind(train, "bridged")


def test_case_22_gpus_gone_since_filter(kube: Kube, bound: Running) -> None:
    train = kube.create(pod(2, NVLINK))
    assert bound.filter(train, "switched")["NodeNames"] == ["switched"]
    hold(bound, "switched", 0, 1, 2)
    assert bound.bind(train, "switched") == "not enough free GPUs"
    assert kube.bindings() == 0
    assert list(kube.cluster.snapshot().assumed.values()) == []


def test_case_23_a_hundred_binds_at_once(kube: Kube, bound: Running) -> None:
    pods = [kube.create(pod(1, name=f"p{i}", uid=f"uid-{i}")) for i in range(100)]
    barrier = threading.Barrier(20)

    def one(manifest: dict[str, Any]) -> str:
        if int(manifest["metadata"]["name"][1:]) < 20:
            barrier.wait(PATIENCE)
        return bound.bind(manifest, "switched")

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, pods))
    assert answers.count("") == 4
    assert set(answers) == {"", "not enough free GPUs"}
    assert kube.bindings() == 4


def test_case_24_bind_times_out_after_commit(
    kube: Kube, bound: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_extender.kube.binder.WRITE_TIMEOUT", 1.0)
    train = kube.create(pod(2, NVLINK))
    kube.fake.commit_then_hang("/binding$")
    assert bound.bind(train, "switched") == ""
    assert [p.name for p in kube.cluster.node_info(NodeName("switched")).pods.every] == ["train"]


@pytest.mark.parametrize("status", [403, 409, 422, 429])
def test_case_24_refused_is_released(kube: Kube, bound: Running, status: int) -> None:
    train = kube.create(pod(2, NVLINK))
    kube.fake.refuse(status, path="/binding$")
    assert bound.bind(train, "switched") != ""
    assert list(kube.cluster.snapshot().assumed.values()) == []


@pytest.mark.parametrize("there", ["gone", "another"])
def test_case_24_pod_gone_or_another(kube: Kube, bound: Running, there: str) -> None:
    train = pod(2, NVLINK)
    if there == "another":
        kube.create(pod(2, NVLINK, uid="uid-2"))
    PodSink(kube.cluster).apply(_raw(train))  # our cache still shows the old one
    assert bound.bind(train, "switched") != ""
    assert list(kube.cluster.snapshot().assumed.values()) == []


def _raw(manifest: dict[str, Any]) -> Any:
    import msgspec

    return msgspec.Raw(json.dumps(manifest).encode())


# The recorded requests of a real kube-scheduler.


@pytest.mark.parametrize(
    "recording", files("recorded/kube-scheduler-1.36", "*/[bfp]*.json"), ids=lambda p: p[-28:-5]
)
def test_recorded_request(recording: str) -> None:
    """A real scheduler's request is understood; filter answers with a partition of the offer."""
    recorded = json.loads(shared(recording).read_text())
    verb, body = recorded["path"].rsplit("/", 1)[1], recorded["body"]
    nodes = [switched(8, f"gpu-node-{i}") for i in (1, 2)]
    with running(*nodes, pcie(8, "gpu-node-3")) as service:
        answer = service.http.post(recorded["path"], json=body)
        assert answer.status_code == 200
        found = answer.json()
        if verb == "preempt":
            # Nothing stands in the way on the linked nodes; the third could never do.
            offered = body["NodeNameToMetaVictims"] or body["NodeNameToVictims"]
            kept = found["NodeNameToMetaVictims"]
            assert set(kept) == set(offered) - {"gpu-node-3"}
            assert all(pod["UID"] for victims in kept.values() for pod in victims["Pods"])
            return
        if verb == "bind":
            assert "with this UID is gone" in found["Error"]
            return
        full = body.get("Nodes")
        offered = [n["metadata"]["name"] for n in full["items"]] if full else body["NodeNames"]
        if verb == "prioritize":
            assert [row["Host"] for row in found] == offered
            return
        kept = (
            [n["metadata"]["name"] for n in found["Nodes"]["items"]] if full else found["NodeNames"]
        )
        assert "gpu-node-3" in found["FailedAndUnresolvableNodes"] or "gpu-node-3" not in offered
        refused = [*found["FailedNodes"], *found["FailedAndUnresolvableNodes"]]
        assert sorted([*kept, *refused]) == sorted(offered)
        assert kept
