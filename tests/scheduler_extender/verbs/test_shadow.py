"""``--shadow``: nothing is rejected, and what would have been rejected is reported."""

from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.files.clusterfile import ClusterFile
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.kube.events import PAUSE
from scheduler_extender.serving import file_service, in_thread
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.verbs import WouldReject
from tests.nodes import bridged, pcie, pod, switched
from tests.scheduler_extender.conftest import Kube
from tests.scheduler_extender.kube.test_events import Api, make
from tests.scheduler_extender.serving import running
from tests.waiting import PATIENCE
from topology.core.devices import PodUid
from topology.core.placement import Reason

NODES = (switched(), bridged(), pcie())
NAMES = [node.name for node in NODES]
PAIR = pod(2, {"link": "nvlink"})
SHADOW = Settings(stale_after=None, shadow=True)


def shadow_filter(asking: dict[str, Any], *names: str) -> tuple[list[str], list[WouldReject]]:
    """The nodes that filter passes in shadow, and what it tells."""
    would_reject: list[WouldReject] = []
    with running(*NODES, settings=SHADOW, shadow=would_reject.append) as service:
        found = service.filter(asking, *(names or NAMES))
    assert not found["FailedNodes"]
    assert not found["FailedAndUnresolvableNodes"]
    assert not found["Error"]
    return found["NodeNames"], would_reject


def test_every_node_passes_and_what_would_be_refused_is_reported() -> None:
    with running(*NODES) as service:  # without the shadow
        found = service.filter(PAIR, *NAMES)
        words = found["FailedAndUnresolvableNodes"]["pcie"]
        assert "pcie" not in found["NodeNames"]
    passed, (would,) = shadow_filter(PAIR)
    assert passed == NAMES
    assert would.by_words[words] == 1
    assert Reason.LINKS in would.reasons
    assert not would.none_left
    assert f"1 × {words}" in would.words
    assert would.words.startswith(f"in shadow: {would.rejected} of 3 nodes would be rejected (")


def test_nothing_is_reported_of_a_pod_that_passes_everywhere() -> None:
    assert shadow_filter(pod(1)) == (NAMES, [])
    assert shadow_filter(pod(None)) == (NAMES, [])


def test_an_annotation_that_cannot_be_read_refuses_nothing() -> None:
    passed, (would,) = shadow_filter(pod(2, {"link": "warp"}))
    assert passed == NAMES
    assert would.reasons == {Reason.MALFORMED}
    assert would.none_left


def test_an_extender_that_knows_nothing_yet_refuses_nothing() -> None:
    would_reject: list[WouldReject] = []
    with running(*NODES, settings=SHADOW, shadow=would_reject.append) as service:
        service.unready.append("not synced: pods")
        assert service.filter(PAIR, *NAMES)["NodeNames"] == NAMES
        assert (
            service.bind(PAIR, "pcie") != ""
        )  # it was never shown the pod, and binds nothing unseen
    assert would_reject == []


def test_nodes_are_scored_as_ever() -> None:
    with running(*NODES) as service:
        expected = service.prioritize(PAIR, *NAMES)
    with running(*NODES, settings=SHADOW, shadow=lambda _: None) as service:
        assert service.prioritize(PAIR, *NAMES) == expected
    assert expected["pcie"] == 0 < expected["switched"]


def test_a_bind_is_written_without_a_promise(kube: Kube) -> None:
    pair = kube.create(PAIR)
    kube.sees(pair)
    with running(
        *NODES,
        binder=kube.binder,
        cluster=kube.cluster,
        clock=kube.clock,
        shadow=lambda _: None,
    ) as service:
        assert service.bind(pair, "pcie") == ""
        assert service.bind(pair, "no-such-node") == "the node does not exist"
    stored = msgspec.json.decode(
        kube.api.get("/api/v1/namespaces/default/pods/train", timeout=PATIENCE)
    )
    assert stored["spec"]["nodeName"] == "pcie"
    assert PLACEMENT not in stored["metadata"]["annotations"]
    assert kube.cluster.assumed(PodUid(pair["metadata"]["uid"])) is None


def test_the_schedulers_own_victims_stay() -> None:
    victims = {"a": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 1}, "b": {"Pods": []}}
    body = {"Pod": PAIR, "NodeNameToMetaVictims": victims}
    with running(*NODES, settings=SHADOW, shadow=lambda _: None) as service:
        answer = service.http.post("/scheduler/preempt", json=body).json()
    assert answer == {"NodeNameToMetaVictims": {"a": victims["a"]}}


def would(name: str, **counts: int) -> WouldReject:
    reasons = frozenset({Reason.LINKS, Reason.BUSY})
    return WouldReject(PodUid(f"uid-{name}"), "default", name, 9, counts, reasons)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"x": 9}, "all 9 nodes would be rejected (9 × x); the pod would stay Pending"),
        ({"x": 1, "y": 2}, "3 of 9 nodes would be rejected (2 × y, 1 × x)"),
        (
            {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2},
            "6 of 9 nodes would be rejected (2 × e, 1 × a, 1 × b, 2 × other reasons)",
        ),
    ],
    ids=["all", "some", "many-reasons"],
)
def test_the_words_are_few_and_the_same_in_any_order(counts: dict[str, int], words: str) -> None:
    assert would("a", **counts).words == f"in shadow: {words}"
    assert would("a", **dict(reversed(counts.items()))).words == f"in shadow: {words}"


def test_it_is_counted_by_reason() -> None:
    metrics = Metrics()
    note = metrics.tell_shadow()
    note(would("a", x=3))
    note(would("b", x=9))
    shown = generate_latest(metrics.registry).decode()
    assert 'gpu_topology_would_have_rejected_total{reason="links"} 2.0' in shown
    assert 'gpu_topology_would_have_rejected_total{reason="report-stale"} 0.0' in shown
    assert "gpu_topology_would_have_waited_total 1.0" in shown
    assert "gpu_topology_shadow 1.0" in shown


def test_the_pod_gets_one_event_a_while() -> None:
    writer, time = make(api := Api())
    for _ in range(int(PAUSE)):
        time.seconds += 1
        writer.note_would_reject(would("a", x=3))
        writer.round()
    (event,) = api.written
    assert (event["type"], event["reason"]) == ("Normal", "GPUPlacementWouldBeRejected")
    assert event["message"] == "in shadow: 3 of 9 nodes would be rejected (3 × x)"
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Pod", "a")


def test_the_setting_reaches_the_service_and_the_log() -> None:
    service = file_service(ClusterFile((), ()), SHADOW)
    assert service.shadow is not None
    with in_thread(service) as serving:
        assert "shadow mode: the extender rejects no node" in " ".join(serving.warnings)
    service = file_service(ClusterFile((), ()), Settings(stale_after=None))
    assert service.shadow is None
