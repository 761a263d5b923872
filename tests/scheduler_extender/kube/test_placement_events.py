"""Events on pods that are placed and pods that wait: short, stable and bounded."""

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.kube.events import PLACED, WAITS
from scheduler_extender.kube.sinks import RECORDS_PATH
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.kube.waiting import AGAIN, AT_ONCE, EVERY, RARELY, WaitingPods
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.verbs import BindError, Binding
from scheduler_extender.wire import Taint
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pcie, pod, switched
from tests.scheduler_extender.conftest import Kube
from tests.scheduler_extender.evictions.scenes import NVLINKED, Held, cluster_of, waiting
from tests.scheduler_extender.kube.test_events import Api, make
from tests.waiting import eventually
from topology import codec
from topology.core.devices import NodeName, PodUid
from topology.core.report import Report
from topology.core.requests import gpu_request
from topology.kubeapi.apiserver import ApiServer

PAIR = gpu_request(2, NVLINKED)
LINKS = "the hardware has no set of 2 GPUs with link=nvlink"
PLACEMENT = '{"verdict":"guaranteed","node":"n","uid":"u","sets":[[0,1],[2,3]]}'


class RecordedEvents:
    """The Events of waiting pods, by pod."""

    def __init__(self, cluster: Cache) -> None:
        self.texts: list[tuple[str, str]] = []
        self.waiting = WaitingPods(cluster, lambda pod, text: self.texts.append((pod.name, text)))

    def round(self, now: float) -> list[tuple[str, str]]:
        self.texts.clear()
        self.waiting.round(now)
        return list(self.texts)


def test_a_waiting_pod_gets_one_event_with_counts_of_nodes() -> None:
    cluster = cluster_of({pcie(2, "a"): {}, pcie(2, "b"): {}, switched(2, "c"): {"x": Held((0,))}})
    cluster.put_pod(waiting("wants", PAIR))
    events = RecordedEvents(cluster)
    words = (
        f"no node takes it: {LINKS} (2 nodes); not enough free GPUs (1 node) "
        "(kubectl gpu-topology why gives details)"
    )
    assert events.round(0.0) == [("wants", words)]
    for now in range(1, int(RARELY), int(EVERY)):
        assert events.round(now) == [], "nothing is new"


def test_what_is_kept_of_a_waiting_pod_does_not_grow_with_the_taints() -> None:
    nodes = [switched(2, f"node-{number}") for number in range(300)]
    cluster = cluster_of({pcie(2, "a"): {}, **{node: {} for node in nodes}})
    for node in nodes:
        taint = Taint("reserved", f"for-{node.name}", "NoSchedule")
        cluster.put_node(node.name, NodeObject(exists=True, taints=(taint,)))
    events = RecordedEvents(cluster)
    cluster.put_pod(waiting("first", PAIR))
    assert len(events.round(0.0)) == 1
    for number in range(AT_ONCE):
        cluster.put_pod(waiting(f"wants-{number}", PAIR))
    cluster.snapshot()
    tracemalloc.start()
    try:
        assert len(events.round(EVERY)) == AT_ONCE
        assert tracemalloc.get_traced_memory()[0] < AT_ONCE * 5_000
    finally:
        tracemalloc.stop()


def test_nodes_without_gpus_are_not_counted() -> None:
    cluster = cluster_of({pcie(2, "a"): {}})
    cluster.put_node(NodeName("cpus"), NodeObject(advertises_none=True))
    cluster.put_pod(waiting("wants", PAIR))
    ((_, text),) = RecordedEvents(cluster).round(0.0)
    assert text.startswith(f"no node takes it: {LINKS} (1 node) (")


def test_ineligible_nodes_are_counted_as_in_why() -> None:
    cluster = cluster_of({pcie(2, "a"): {}, switched(2, "b"): {}})
    cluster.put_node(NodeName("b"), NodeObject(exists=True, cordoned=True))
    cluster.put_pod(waiting("wants", PAIR))
    ((_, text),) = RecordedEvents(cluster).round(0.0)
    barred = "the node that would take it is not eligible because of a cordon"
    assert text.startswith(f"no node takes it: {barred}; {LINKS} (1 node) (")


def test_another_reason_is_a_new_event_and_another_count_only_rarely() -> None:
    cluster = cluster_of({pcie(2, "a"): {}})
    cluster.put_pod(waiting("wants", PAIR))
    events = RecordedEvents(cluster)
    assert len(events.round(0.0)) == 1
    cluster.put_record(pcie(2, "b"), cluster.node_info(NodeName("a")).report)
    assert events.round(AGAIN) == []
    ((_, text),) = events.round(RARELY + AGAIN)
    assert f"{LINKS} (2 nodes)" in text
    cluster.put_record(switched(1, "c"), cluster.node_info(NodeName("a")).report)
    ((_, text),) = events.round(RARELY + 3 * AGAIN)
    assert "node has fewer GPUs than requested (1 node)" in text


def test_pods_that_fit_or_are_in_a_group_get_no_false_event() -> None:
    cluster = cluster_of({switched(4, "a"): {}})
    cluster.put_pod(waiting("fits", PAIR))
    rack = GroupReference(Group("team", "g"), 2, "rack")
    cluster.put_pod(replace(waiting("member", PAIR), group_ref=rack))
    ((name, text),) = RecordedEvents(cluster).round(0.0)
    assert name == "member"
    assert "no node has the label rack of group-domain" in text


def test_a_round_evaluates_few_pods_and_forgets_deleted_ones() -> None:
    cluster = cluster_of({pcie(2, "a"): {}})
    for i in range(3 * AT_ONCE):
        cluster.put_pod(waiting(f"p{i:02}", PAIR))
    events, names = RecordedEvents(cluster), set[str]()
    for turn in range(3):
        found = events.round(turn * EVERY)
        assert len(found) == AT_ONCE
        names |= {name for name, _ in found}
    assert len(names) == 3 * AT_ONCE
    cluster.keep_pods(set())
    events.round(1000.0)
    assert not events.waiting._told


def test_events_of_placed_pods_have_the_promise_and_the_sets() -> None:
    api = Api()
    writer, _ = make(api)
    writer.note_placed(Binding("team", "p", PodUid("u"), NodeName("n"), PLACEMENT, 0, PAIR))
    writer.note_waiting(waiting("w", PAIR), "no node takes it: 1 node is busy")
    writer.round()
    placed, waits = api.written
    assert (placed["reason"], placed["type"]) == (PLACED, "Normal")
    assert placed["message"] == "on n; guaranteed: 2 GPUs link=nvlink; possible GPUs: 0,1 | 2,3"
    assert placed["involvedObject"]["uid"] == "u"
    assert (waits["reason"], waits["type"]) == (WAITS, "Warning")
    assert "host" not in waits["source"]


@pytest.mark.parametrize("placement", ["", "{", '{"verdict":7}', "[" * 100_000])
def test_an_unreadable_placement_fails_no_bind(placement: str) -> None:
    api = Api()
    writer, _ = make(api)
    writer.note_placed(Binding("team", "p", PodUid("u"), NodeName("n"), placement, 0, PAIR))
    writer.round()
    assert api.written[0]["message"] == "bound"


def events(fake: FakeApiServer) -> dict[tuple[str, str], str]:
    found = fake.items("/api/v1/events")
    return {(e["involvedObject"]["name"], e["reason"]): e["message"] for e in found}


def test_only_a_bind_that_was_written_is_reported(kube: Kube, tmp_path: Path) -> None:
    api = ApiServer.from_kubeconfig(kube.fake.write_kubeconfig(tmp_path / "news"))
    source = KubeSource(api, kube.cluster)
    kube.create(pod(2, {"link": "nvlink"}, name="p", uid="u"))
    kube.create(pod(2, {"link": "nvlink"}, name="other", uid="new"))
    right = Binding("default", "p", PodUid("u"), NodeName("n"), PLACEMENT, 0, PAIR)
    with source.following(lambda *_: None, lambda *_: None):
        with pytest.raises(BindError):
            source.binder.write(replace(right, name="other", uid=PodUid("old")))
        source.binder.write(right)
        eventually(lambda: events(kube.fake))
    words = "on n; guaranteed: 2 GPUs link=nvlink; possible GPUs: 0,1 | 2,3"
    assert events(kube.fake) == {("p", PLACED): words}


def test_why_a_pod_waits_reaches_the_api_server(kube: Kube, tmp_path: Path) -> None:
    kube.fake.put(RECORDS_PATH, codec.encode(pcie(2, "no-links"), Report("boot", 1)))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    kube.create(pod(2, {"link": "nvlink"}, name="w", uid="w", conditions=[condition]))
    api = ApiServer.from_kubeconfig(kube.fake.write_kubeconfig(tmp_path / "news"))
    with KubeSource(api, Cache(time.monotonic)).following(lambda *_: None, lambda *_: None):
        eventually(lambda: LINKS in events(kube.fake).get(("w", WAITS), ""))
    assert events(kube.fake)["w", WAITS].startswith(f"no node takes it: {LINKS}")
