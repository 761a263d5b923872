"""A watch that tells us nothing: required pods are refused, plain ones go as the count says."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from scheduler_extender.framework.stalewatches import OUT_OF_DATE
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.kube import source as kube
from scheduler_extender.kube.source import KubeSource
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster import freshness
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.cluster.freshness import (
    FAILING_AFTER,
    SILENT_AFTER,
    UNREADY_AFTER,
    Watch,
)
from scheduler_extender.state.cluster.snapshot import Snapshot
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Clock, Running, running
from tests.waiting import FOREVER, eventually
from topology.core.devices import NodeName
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer

NVLINK = {"link": "nvlink"}
ON_THE_FENCE = 0.001


@pytest.mark.parametrize(
    ("watch", "after"),
    [
        pytest.param(Watch("pods", 0.0), SILENT_AFTER, id="silent"),
        pytest.param(Watch("pods", 0.0, 0.0), FAILING_AFTER, id="failing"),
    ],
)
def test_when_a_watch_counts_as_stale(watch: Watch, after: float) -> None:
    assert freshness.stale_watches([watch], after - ON_THE_FENCE) == ()
    assert freshness.stale_watches([watch], after) == ("pods",)
    assert (
        freshness.stale_watches([watch], after + UNREADY_AFTER - ON_THE_FENCE, UNREADY_AFTER) == ()
    )
    assert freshness.stale_watches([watch], after + UNREADY_AFTER, UNREADY_AFTER) == ("pods",)


def test_a_watch_that_has_never_spoken_is_stale() -> None:
    assert freshness.stale_watches([Watch("pods", None)], 0.0) == ("pods",)


def test_a_quiet_watch_that_breaks_is_not_stale_at_once() -> None:
    """Without bookmarks a quiet watch is given up after 90 s, and the list tells at once."""
    assert freshness.stale_watches([Watch("pods", 0.0, 90.0)], 91.0) == ()
    assert freshness.stale_watches([Watch("pods", 0.0, 90.0)], SILENT_AFTER) == ("pods",)


@pytest.fixture
def service() -> Iterator[tuple[Running, list[Watch]]]:
    watches: list[Watch] = []
    clock = Clock()
    cluster = Cache(clock, Settings(stale_after=None), lambda: watches)
    with running(switched(), cluster=cluster, clock=clock) as found:
        yield found, watches


def test_what_a_stale_watch_does_to_each_kind_of_pod(
    service: tuple[Running, list[Watch]],
) -> None:
    found, watches = service
    watches += [Watch("pods", 0.0), Watch("nodes", 0.0)]
    assert found.filter(pod(2, NVLINK), "switched")["NodeNames"] == ["switched"]
    found.clock.now = SILENT_AFTER
    watches[1] = Watch("nodes", SILENT_AFTER)
    answer = found.filter(pod(2, NVLINK), "switched", "other")
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(
        ("switched", "other"), OUT_OF_DATE.message
    )
    assert found.bind(pod(2, NVLINK), "switched") == OUT_OF_DATE.message
    assert found.filter(pod(2), "switched")["NodeNames"] == ["switched"]
    preferred = pod(2, {**NVLINK, "policy": "preferred"})
    assert found.filter(preferred, "switched")["NodeNames"] == ["switched"]
    assert found.prioritize(preferred, "switched") == {"switched": 0}
    plain = pod(2, name="plain", uid="uid-2")
    assert found.filter(plain, "switched")["NodeNames"] == ["switched"]
    assert found.bind(plain, "switched") == ""
    watches[0] = Watch("pods", SILENT_AFTER)
    assert found.filter(pod(2, NVLINK), "switched")["NodeNames"] == ["switched"]


def test_readiness_ends_after_a_stated_time(service: tuple[Running, list[Watch]]) -> None:
    found, watches = service
    watches.append(Watch("pods", 0.0, 0.0))
    for now, status in ((0.0, 200), (FAILING_AFTER, 200), (FAILING_AFTER + UNREADY_AFTER, 503)):
        found.clock.now = now
        assert found.http.get("/readyz").status_code == status
        assert found.http.get("/healthz").status_code == 200
    assert "stale watches: pods" in found.http.get("/readyz").text
    assert found.filter(pod(2), "switched")["NodeNames"] == ["switched"], "and still answers"


def test_the_metrics_change_at_once() -> None:
    watches = [Watch("pods", 3.0, 3.0), Watch("nodes", 9.0)]
    metrics, cluster = Metrics(), Cache(lambda: 10.0, watches=lambda: watches)
    metrics.watch(cluster)
    text = generate_latest(metrics.registry).decode()
    assert 'gpu_topology_watch_failing{watch="pods"} 1.0' in text
    assert 'gpu_topology_watch_failing{watch="nodes"} 0.0' in text
    assert 'gpu_topology_watch_age_seconds{watch="pods"} 7.0' in text


@pytest.fixture
def source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeApiServer, KubeSource, Cache, list[float]]]:
    """A source that lists again after a tenth of a second without an event."""
    unhurried = replace(kube.TIMING, list_timeout_s=FOREVER, connect_timeout_s=FOREVER)
    monkeypatch.setattr(kube, "TIMING", replace(unhurried, relist_after_s=0.1))
    skew = [0.0]
    with FakeApiServer() as fake:
        fake.put("/api/v1/nodes", {"metadata": {"name": "switched"}, "status": {}})
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        cluster = Cache(lambda: time.monotonic() + skew[0], Settings())
        found = KubeSource(api, cluster)
        try:
            found.start()
            eventually(lambda: found.unready() is None)
            eventually(lambda: fake.open_streams == 8)
            yield fake, found, cluster, skew
        finally:
            found.stop()


def test_a_refused_watch_is_seen_as_failing_and_heals(
    source: tuple[FakeApiServer, KubeSource, Cache, list[float]],
) -> None:
    fake, found, cluster, skew = source
    woken: list[NodeName] = []
    cluster.on_change.append(woken.append)
    assert not cluster.is_stale()
    fake.refuse(403, times=None, path="/pods$")
    fake.end_streams()
    eventually(lambda: [w.name for w in found.watches() if w.failing] == ["pods"])
    skew[0] = FAILING_AFTER
    assert cluster.is_stale()
    eventually(lambda: found._is_stale)
    fake.allow()
    eventually(lambda: not any(w.failing for w in found.watches()))
    skew[0] = 0.0
    eventually(lambda: not found._is_stale)
    eventually(lambda: "switched" in woken)


def test_lists_do_not_make_up_for_a_watch_that_is_refused(
    source: tuple[FakeApiServer, KubeSource, Cache, list[float]],
) -> None:
    fake, found, cluster, skew = source
    pods = next(r for r in found.reflectors if r.name == "pods")
    fake.refuse(403, times=None, path="/pods$", watch=True)
    fake.end_streams()
    lists = pods.state.lists
    eventually(lambda: pods.state.lists >= lists + 2 and pods.state.failures > 0)
    # All streams were ended, and the others come back when they have waited for a moment.
    eventually(lambda: [w.name for w in found.watches() if w.failing] == ["pods"])
    skew[0] = FAILING_AFTER
    assert cluster.is_stale()
    fake.allow()
    eventually(lambda: not any(w.failing for w in found.watches()))
    assert not cluster.is_stale()


def test_a_silent_stream_is_not_failing(
    source: tuple[FakeApiServer, KubeSource, Cache, list[float]],
) -> None:
    fake, _, cluster, skew = source
    fake.stall()
    skew[0] = FAILING_AFTER + 1
    assert not cluster.is_stale()
    skew[0] = SILENT_AFTER + 1
    assert cluster.is_stale()
    fake.resume()
    fake.bookmark()
    skew[0] = 0.0
    eventually(lambda: not cluster.is_stale())


def test_a_settler_that_is_held_up_does_not_hold_up_the_lookout(
    source: tuple[FakeApiServer, KubeSource, Cache, list[float]],
) -> None:
    _, found, cluster, skew = source
    woken: list[NodeName] = []
    cluster.on_change.append(woken.append)
    busy, done, shipped = threading.Event(), threading.Event(), cluster.snapshot

    def held_up() -> Snapshot:
        if threading.current_thread().name == "settler":
            busy.set()
            done.wait(FOREVER)
        return shipped()

    cluster.snapshot = held_up  # type: ignore[method-assign]
    try:
        eventually(busy.is_set)
        skew[0] = SILENT_AFTER + 1
        eventually(lambda: found._is_stale)
        skew[0] = 0.0
        eventually(lambda: "switched" in woken)
    finally:
        done.set()


def test_a_watch_that_was_fresh_long_ago_is_stale_at_once() -> None:
    """A record that is read again after it could not be used is as old as its agent says."""
    clock = Clock()
    cluster = Cache(clock)
    node = switched(4, "n")
    for now in (0.0, 100.0):
        clock.now = now
        cluster.put_record(node, Report("boot", int(now) + 1))
    clock.now = 150.0
    cluster.put_problem(node.name, "spec: bad")
    clock.now = 185.0
    assert not cluster.node_info(node.name).record.stale
    clock.now = 190.0
    cluster.put_record(node, Report("boot", 500), age=3600.0)
    assert cluster.node_info(node.name).record.stale
    cluster.put_record(node, Report("boot", 501))
    assert not cluster.node_info(node.name).record.stale
    clock.now = 371.0
    assert cluster.node_info(node.name).record.stale
