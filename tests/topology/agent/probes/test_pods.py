"""The pods of a node as the API server tells of them: what matters here, and what is news."""

from typing import Any

import msgspec
import pytest

from topology.agent.model.nodecontext import Plugin
from topology.agent.probes.pods import NodePods
from topology.core.devices import PodUid

GPU = "nvidia.com/gpu"


def container(name: str, count: int = 0, **fields: Any) -> dict[str, Any]:
    recordlimits = {"limits": {GPU: str(count), "cpu": "2"}} if count else {}
    return {"name": name, "image": "example/work", "resources": recordlimits, **fields}


def manifest(
    name: str, *containers: dict[str, Any], version: str = "1", **fields: Any
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version,
            **fields.get("metadata", {}),
        },
        "spec": {"containers": list(containers), **fields.get("spec", {})},
        "status": fields.get("status", {"phase": "Pending"}),
    }  # fmt: skip


def raw(found: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(found))


class Sink:
    """The pods, and how often they were news."""

    def __init__(self) -> None:
        self.changes = 0
        self.static = False
        self.pods = NodePods(self._note, lambda: self.static)

    def _note(self) -> None:
        self.changes += 1


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        pytest.param({"phase": "Failed", "reason": "TopologyAffinityError"},
                     "TopologyAffinityError", id="refused"),
        pytest.param({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "",
                     id="evicted"),
        pytest.param({"phase": "Running"}, "", id="running"),
    ],
)  # fmt: skip
def test_a_refused_pod_counts_as_a_change_once(
    sink: Sink, status: dict[str, str], refused: str
) -> None:
    for _ in range(2):
        sink.pods.apply(raw(manifest("a", container("main", 1), status=status)))
        assert sink.pods.snapshot()[0][PodUid("uid-a")].refused == refused
        assert sink.changes == 1


def test_what_a_pod_asks_for(sink: Sink) -> None:
    side = container("side", 1, restartPolicy="Always")
    spec = {"initContainers": [container("warm", 4), side]}
    sink.pods.apply(raw(manifest("a", container("main", 2), container("log"), spec=spec)))
    pod = sink.pods.snapshot()[0][PodUid("uid-a")]
    assert pod.wants == {("main", GPU): 2, ("side", GPU): 1}, "no init container is ever shown"
    assert (pod.acknowledged, pod.terminating, pod.ended) == (False, False, False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"status": {"phase": "Running", "startTime": "noon"}}, (True, False, False),
                     id="acknowledged"),
        pytest.param({"metadata": {"deletionTimestamp": "noon"}}, (False, True, False),
                     id="deleting"),
        pytest.param({"status": {"phase": "Succeeded"}}, (False, False, True), id="succeeded"),
        pytest.param({"status": {"phase": "Failed"}}, (False, False, True), id="failed"),
    ],
)  # fmt: skip
def test_how_far_a_pod_is(
    sink: Sink, fields: dict[str, Any], expected: tuple[bool, bool, bool]
) -> None:
    sink.pods.apply(raw(manifest("a", container("main", 1), **fields)))
    pod = sink.pods.snapshot()[0][PodUid("uid-a")]
    assert (pod.acknowledged, pod.terminating, pod.ended) == expected


def test_a_change_that_cannot_change_holders_is_ignored(sink: Sink) -> None:
    changes_seen = []
    for found in (
        manifest("plain", container("main")),
        manifest("a", container("main", 1)),
        manifest("a", container("main", 1), version="2"),
        manifest("a", container("main", 1), status={"phase": "Running", "startTime": "noon"}),
    ):
        sink.pods.apply(raw(found))
        changes_seen.append(sink.changes)
    assert changes_seen == [0, 1, 1, 2]


def limited(name: str, **recordlimits: str | int) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": recordlimits}}


@pytest.mark.parametrize(
    ("quality", "cpus", "expected"),
    [
        pytest.param("Guaranteed", ["2", 3], (5, 2), id="whole CPUs"),
        pytest.param("Guaranteed", ["2", "500m"], (2, 2), id="part of one is shared"),
        pytest.param("Guaranteed", ["2000m", "1500m"], (2, 2), id="thousandths"),
        pytest.param("Guaranteed", ["2k", "x"], (0, 2), id="other notations do not matter"),
        pytest.param("Burstable", ["2", "1"], (0, 0), id="another class"),
        pytest.param("", ["2", "1"], (0, 0), id="of no class yet"),
    ],
)
def test_what_a_pod_gets_for_its_own(
    sink: Sink, quality: str, cpus: list[str | int], expected: tuple[int, int]
) -> None:
    """No ordinary init container is ever shown; a sidecar is."""
    first, second = cpus
    init = [limited("warm", cpu=4), {**limited("side", cpu=second), "restartPolicy": "Always"}]
    sink.pods.apply(
        raw(
            manifest(
                "a",
                limited("main", cpu=first, memory="1Gi"),
                spec={"initContainers": init},
                status={"phase": "Pending", "qosClass": quality},
            )
        )
    )
    pod = sink.pods.snapshot()[0][PodUid("uid-a")]
    assert (pod.own_cpus, pod.own_memory) == expected


def test_a_pod_without_gpus_counts_as_a_change_where_it_gets_cpus_or_memory(sink: Sink) -> None:
    found = manifest("a", limited("main", cpu=2), status={"qosClass": "Guaranteed"})
    sink.pods.apply(raw(found))
    assert sink.changes == 0
    sink.static = True
    sink.pods.apply(raw({**found, "status": {"qosClass": "Guaranteed", "startTime": "noon"}}))
    assert sink.changes == 1
    sink.pods.apply(raw(manifest("b", limited("main", cpu=2), status={"qosClass": "Burstable"})))
    assert sink.changes == 1


def test_pods_that_asked_for_gpus_and_are_gone_are_counted(sink: Sink) -> None:
    warm = {"initContainers": [container("warm", 1)]}
    all_pods = [
        manifest("plain", container("main")),
        manifest("app", container("main", 1)),
        manifest("init", container("main"), spec=warm),
        manifest("other", container("main", 1)),
    ]
    sink.pods.replace([raw(found) for found in all_pods], "10")
    assert sink.pods.snapshot()[2:] == (0, "10")
    counted = []
    for name, version in (("plain", "11"), ("app", "12"), ("init", "13"), ("app", "14")):
        sink.pods.delete(raw(manifest(name, version=version)))
        counted.append(sink.pods.snapshot()[2:])
    assert counted == [(0, "11"), (1, "12"), (2, "13"), (2, "14")]
    sink.pods.replace([], "20")  # a list in which one is missing
    assert sink.pods.snapshot()[2:] == (3, "20")
    assert sink.pods.snapshot()[0] == {}


IMAGE = "example/k8s-device-plugin:v0.17.1"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([manifest("p", container("p", image=IMAGE))], Plugin("v0.17.1", {}), id="one"),
        pytest.param(
            [manifest("p", container("p", image=IMAGE, command=["gpu-feature-discovery"]))], None,
            id="feature discovery runs the same image",
        ),
        pytest.param(
            [manifest("p", container("p", image=IMAGE, args=["--allocation-policy=packed"],
                                     env=[{"name": "A", "value": "b"}, {"name": "C"}]))],
            Plugin("v0.17.1", {"allocation-policy": "packed", "A": "b"}),
            id="its options",
        ),
        pytest.param(
            [manifest("p", container("p", image=IMAGE)),
             manifest("q", container("p", image="k8s-device-plugin:v0.20.0"))],
            None, id="two that disagree",
        ),
        pytest.param(
            [manifest("p", container("p", image=IMAGE), status={"phase": "Failed"}),
             manifest("q", container("p", image="k8s-device-plugin:v0.20.0"))],
            Plugin("v0.20.0", {}), id="one that has ended does not count",
        ),
    ],
)  # fmt: skip
def test_the_device_plugin_among_them(
    sink: Sink, found: list[dict[str, Any]], expected: Plugin | None
) -> None:
    for each in found:
        sink.pods.apply(raw(each))
    assert sink.pods.snapshot()[1] == expected


def test_an_unreadable_pod_hides_no_other(sink: Sink) -> None:
    broken = {"metadata": {"uid": "uid-x"}, "spec": {"containers": "none"}}
    sink.pods.replace([raw(broken), raw(manifest("a", container("main", 1)))], "10")
    assert list(sink.pods.snapshot()[0]) == ["uid-a"]


def plugin(name: str, image: str = "example/k8s-device-plugin:v0.19.3", at: str = "") -> Any:
    running = [{"name": "p", "state": {"running": {"startedAt": at}} if at else {"waiting": {}}}]
    status = {"phase": "Running", "containerStatuses": running}
    return raw(manifest(name, {"name": "p", "image": image}, status=status))


def test_when_the_plugin_started(sink: Sink) -> None:
    sink.pods.apply(plugin("a"))
    assert sink.pods.snapshot()[1] == Plugin("v0.19.3", {})
    before = sink.changes
    sink.pods.apply(plugin("a", at="10:00"))
    assert sink.pods.snapshot()[1] == Plugin("v0.19.3", {}, "10:00")
    assert sink.changes == before + 1
    sink.pods.apply(plugin("b", at="09:00"))
    assert sink.pods.snapshot()[1] == Plugin("v0.19.3", {}, "10:00"), "of two alike, the later"
    sink.pods.apply(plugin("c", "example/k8s-device-plugin:v0.18.2", at="11:00"))
    assert sink.pods.snapshot()[1] is None


@pytest.mark.parametrize(
    ("status", "started", "refusal"),
    [
        pytest.param(
            {"phase": "Running", "startTime": "noon", "message": "x"}, "noon", "", id="runs"),
        pytest.param(
            {"phase": "Failed", "startTime": "noon", "reason": "UnexpectedAdmissionError",
             "message": "no"}, "noon", "no", id="refused"),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "no"}, "", "", id="evicted"),
    ],
)  # fmt: skip
def test_when_a_pod_started_and_why_it_was_refused(
    sink: Sink, status: dict[str, Any], started: str, refusal: str
) -> None:
    sink.pods.apply(raw(manifest("a", container("main", 1), status=status)))
    pod = sink.pods.snapshot()[0][PodUid("uid-a")]
    assert (pod.started, pod.refusal) == (started, refusal)
