"""Evictions of ``gpu-topology unblock --evict``. Whole runs are tried on a real API server
(``tests/e2e/test_unblock_halfway.py``)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.annotations import KEPT_PLACE
from scheduler_extender.cli.evictions import (
    AGAIN,
    LONGEST_PAUSE,
    PATIENCE,
    pause_before_another_try,
)
from scheduler_extender.state.pods.keptplace import value_of
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.waiting import eventually
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import (
    ApiFailure,
    ApiMisconfigured,
    ApiNotSent,
    ApiUnreachable,
    api_error,
)
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
WAITS = "/api/v1/namespaces/team/pods/waits"


def answered(status: int, retry_after: float = 0.0) -> ApiFailure:
    found = api_error(status, "", "")
    found.retry_after = retry_after
    return found


@pytest.mark.parametrize(
    ("error", "tried", "pause"),
    [
        pytest.param(answered(429), 0.0, AGAIN, id="a budget forbids it"),
        pytest.param(answered(429, 1), 0.0, AGAIN, id="asked to come at once"),
        pytest.param(answered(429, 10), 0.0, 10.0, id="asked to come later"),
        pytest.param(answered(429, 86400), 0.0, LONGEST_PAUSE, id="asked to come tomorrow"),
        pytest.param(answered(429), 3600.0, LONGEST_PAUSE, id="a budget forbids it for long"),
        pytest.param(answered(503), 0.0, AGAIN, id="the server is overloaded"),
        pytest.param(answered(500), PATIENCE - AGAIN, None, id="and stays so"),
        pytest.param(ApiUnreachable("no answer"), 0.0, AGAIN, id="no answer"),
        pytest.param(ApiNotSent("refused"), PATIENCE, None, id="no answer for long"),
        pytest.param(answered(403), 0.0, None, id="not allowed"),
        pytest.param(answered(422), 0.0, None, id="not understood"),
        pytest.param(ApiMisconfigured("token"), 0.0, None, id="no credentials"),
    ],
)
def test_an_eviction_is_tried_again_where_that_may_help(
    error: ApiFailure, tried: float, pause: float | None
) -> None:
    assert pause_before_another_try(error, tried) == pause


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A node on which one GPU of each pair is held, and a pod that wants a pair."""
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PAIRS, a=("team", 0), b=("team", 2))
        wants = pod(2, {"link": "nvlink"}, name="waits", uid="waits")
        wants["spec"]["priority"] = 3
        found.pod(wants, "team")
        yield found


def evictions(cluster: Cluster) -> list[str]:
    return [each.path for each in cluster.fake.requests if each.method == "POST"]


def written(cluster: Cluster) -> Any:
    """What is written of the place that is kept."""
    (found,) = [p for p in cluster.fake.items("/api/v1/pods") if p["metadata"]["name"] == "waits"]
    value = (found["metadata"].get("annotations") or {}).get(KEPT_PLACE)
    return None if value is None else json.loads(value)


def test_the_place_is_kept_before_a_pod_is_evicted(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path="eviction$")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 1
    assert "was not evicted: 403" in done.stderr
    kept = written(cluster)
    assert (kept["uid"], kept["node"], len(kept["victims"])) == ("waits", "pairs", 1)
    assert evictions(cluster) == [f"/api/v1/namespaces/team/pods/{kept['victims'][0]}/eviction"]


def test_a_list_that_fails_for_a_moment_ends_nothing(cluster: Cluster) -> None:
    cluster.fake.refuse(429, path="eviction$")

    def fail_once() -> None:
        eventually(lambda: evictions(cluster), "a pod was tried")
        cluster.fake.refuse(503, path="^/api/v1/nodes")
        cluster.fake.refuse(404, path="eviction$")  # the pod has gone

    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(fail_once)
        done = cluster.asked("unblock", "team/waits", "--evict")
        failed.result()
    assert done.returncode == 0, done.stderr
    assert "all are evicted" in done.stderr
    assert len(evictions(cluster)) == 2


def test_no_pod_is_evicted_where_the_place_cannot_be_written(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path=f"^{WAITS}$")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 2
    assert "no pod was evicted: no place is kept: 403" in done.stderr
    assert evictions(cluster) == []


def test_no_pod_is_evicted_where_an_older_pods_place_counts(cluster: Cluster) -> None:
    """Both were written at once."""
    node, until = NodeName("pairs"), time.time() + 600
    for name, created in (("waits", "2026-01-02T00:00:00Z"), ("older", "2026-01-01T00:00:00Z")):
        value = value_of(PodUid(name), node, until, [PodUid("a")])
        wants = pod(2, {"link": "nvlink", "reserved": value}, name=name, uid=name)
        wants["metadata"]["creationTimestamp"] = created
        cluster.pod(wants, "team")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 1
    assert "no other pod is evicted: another pod's place on pairs counts" in done.stderr
    assert evictions(cluster) == []


@pytest.mark.parametrize("kind", ["pods", "poddisruptionbudgets", "nodes", "gputopologies"])
def test_who_may_not_list_all_is_told_the_right(cluster: Cluster, kind: str) -> None:
    cluster.fake.refuse(403, None, path=f"^/api[^?]*/{kind}$")
    for words in ((), ("--evict",)):
        done = cluster.asked("unblock", "team/waits", *words)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        needed = f"error: needed is the right to list {kind} of the whole cluster: 403"
        assert line.startswith(needed)
    assert evictions(cluster) == []
