"""Events are written in a thread of their own, and never more than a few."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from structlog.testing import capture_logs

from scheduler_extender.http.metrics import LOG_BURST, Metrics
from scheduler_extender.kube.events import BURST, MOST_WAITING, PAUSE, EventWriter
from scheduler_extender.state.answers.refusing import NodeRefusal
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.verification import BROKEN, OUTSIDE, Misprediction
from scheduler_extender.state.pods.record import PodRecord
from tests.waiting import PATIENCE
from topology.core.devices import NodeName, PodUid
from topology.core.refusal import Refusal
from topology.core.requests import gpu_request
from topology.kubeapi.apiserver import ApiServer, ApiUnreachable, Query


def misprediction(name: str, kind: str = BROKEN) -> Misprediction:
    pod = PodRecord(PodUid(f"uid-{name}"), "default", name, NodeName("node"), gpu_request(1))
    return Misprediction(kind, pod, "node", (0,), (), "state")


class Api(ApiServer):
    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
        self.written.append(json.loads(body))
        return b""


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def clock(self) -> float:
        return self.seconds


def make(api: Any) -> tuple[EventWriter, Time]:
    time = Time()
    return EventWriter(api, time.now, time.clock), time


def test_what_happens_to_one_pod_again_is_one_event_with_a_count() -> None:
    api = Api()
    writer, time = make(api)
    for second in range(int(PAUSE)):
        time.seconds = second
        writer.note(misprediction("a"))
        writer.note(misprediction("a", OUTSIDE))
        writer.round()
    assert [event["count"] for event in api.written] == [1, 1]
    time.seconds = PAUSE
    writer.round()
    assert [event["count"] for event in api.written[2:]] == [PAUSE - 1, PAUSE - 1]
    first, last = (api.written[2][key] for key in ("firstTimestamp", "lastTimestamp"))
    assert (first, last) == ("2026-11-21T00:00:01Z", "2026-11-21T00:00:59Z")


def test_an_event_names_no_pod_but_its_own() -> None:
    api = Api()
    writer, _ = make(api)
    writer.note(replace(misprediction("a"), foreign=("team-b/secret",)))
    writer.round()
    (event,) = api.written
    assert event["involvedObject"]["uid"] == "uid-a"
    assert (event["type"], event["reason"]) == ("Warning", "GPUPlacementMispredicted")
    assert "bound without the extender" in event["message"]
    assert "secret" not in json.dumps(event)


def test_events_are_bounded_in_all_and_drops_are_counted() -> None:
    api = Api()
    writer, time = make(api)
    for i in range(3 * MOST_WAITING):
        writer.note(misprediction(f"p{i}"))
    assert writer.dropped == 2 * MOST_WAITING
    writer.round()
    assert len(api.written) == BURST
    for second in range(10):
        time.seconds = second
        writer.round()
    assert len(api.written) <= BURST + 20
    time.seconds = 1e6
    for _ in range(MOST_WAITING):
        time.seconds += 10
        writer.round()
    assert len(api.written) == MOST_WAITING


def test_what_cannot_be_written_is_counted() -> None:
    class Down(Api):
        def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
            raise ApiUnreachable("down")

    writer, _ = make(Down())
    for _ in range(3):
        writer.note(misprediction("a"))
    writer.round()
    assert writer.dropped == 3


def test_a_pod_named_like_a_path_is_not_requested() -> None:
    api = Api()
    writer, _ = make(api)
    odd = misprediction("a")
    writer.note(replace(odd, pod=replace(odd.pod, namespace="../nodes")))
    writer.round()
    assert writer.dropped == 1
    assert not api.written


def test_a_slow_api_server_delays_no_caller() -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(Api):
        def create(self, path: str, body: bytes, query: Query = (), *, timeout: float) -> bytes:
            entered.set()
            assert go.wait(PATIENCE)
            return super().create(path, body, query, timeout=timeout)

    api = Slow()
    writer, _ = make(api)
    writer.note(misprediction("a"))
    writing = threading.Thread(target=writer.round)
    writing.start()
    try:
        assert entered.wait(PATIENCE)
        writer.note(misprediction("b"))  # while the first is being written
    finally:
        go.set()
        writing.join(PATIENCE)
    writer.round()
    assert len(api.written) == 2


def test_every_misprediction_is_counted_and_few_are_logged() -> None:
    metrics, cluster = Metrics(), Cache(lambda: 0.0)
    metrics.watch(cluster)
    (note,) = cluster.on_misprediction
    with capture_logs() as logs:
        for i in range(100):
            note(misprediction("same"))
            note(misprediction(f"other-{i}"))
    assert (
        metrics.registry.get_sample_value("gpu_topology_mispredictions_total", {"kind": BROKEN})
        == 200
    )
    assert 1 < len(logs) <= LOG_BURST + 5
    assert sum(entry["pod"] == "default/same" for entry in logs) == 1
    assert sum(entry["untold"] for entry in logs) > 0


def test_an_event_outside_the_pods_namespace_names_no_pod() -> None:
    """The Node's stands in the namespace default; the pod's is for those who may read its own."""
    api = Api()
    writer, _ = make(api)
    pod = PodRecord(PodUid("u"), "team-a", "secret-x", NodeName("node"), gpu_request(1))
    refusal = Refusal("UnexpectedAdmissionError", "team-b/other-y holds GPU-77")
    writer.note_refusal(NodeRefusal("node", pod, refusal, 2, 30.0, ()))
    writer.round()
    on_node, on_pod = api.written
    assert on_node["involvedObject"]["kind"] == "Node"
    assert on_node["metadata"]["namespace"] == "default"
    assert on_node["message"] == (
        "the kubelet refused a pod with GPUs (UnexpectedAdmissionError); 2 refusals in a row; "
        "the node gets no GPU pods for 30 s"
    )
    assert on_pod["involvedObject"]["uid"] == "u"
    assert on_pod["metadata"]["namespace"] == "team-a"
    assert on_pod["message"].endswith(": team-b/other-y holds GPU-77")
