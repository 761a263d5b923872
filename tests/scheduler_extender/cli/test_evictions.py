"""Evictions of ``gpu-topology unblock --evict``. Whole runs are tried on a real API server
(``tests/e2e/test_unblock_partial.py``)."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from scheduler_extender.annotations import RESERVED
from scheduler_extender.cli.unblock import (
    AGAIN,
    LONGEST_PAUSE,
    PATIENCE,
    Evicting,
    pause_before_another_try,
    perhaps_done,
)
from scheduler_extender.explain.evictions import LATE, Eviction, EvictionAdvice, Reservation
from scheduler_extender.kube.sinks import RECORDS_PATH
from scheduler_extender.state.pods.reservation import value_of
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.waiting import eventually
from topology.core.devices import NodeName, PodUid
from topology.kubeapi.apiserver import (
    ApiFailure,
    ApiMisconfigured,
    ApiNotSent,
    ApiServer,
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


@pytest.mark.parametrize(
    ("error", "perhaps"),
    [
        (ApiUnreachable("no answer"), True),
        (answered(504), True),
        (answered(409), False),
        (ApiNotSent("refused"), False),
        (ApiMisconfigured("token"), False),
    ],
)
def test_a_write_may_have_been_done_where_no_answer_says_that_it_was_not(
    error: ApiFailure, perhaps: bool
) -> None:
    assert perhaps_done(error) is perhaps


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
    """The pods for which an eviction was asked, dry runs left out."""
    asked = [r for r in cluster.fake.requests if r.method == "POST" and "dryRun" not in r.query]
    return [each.path.split("/")[-2] for each in asked]


def reserve(cluster: Cluster, victims: list[str], **selector: str) -> None:
    """Write the annotation on the pod that waits."""
    value = value_of(PodUid("waits"), NodeName("pairs"), time.time() + 600, map(PodUid, victims))
    wants = pod(2, {"link": "nvlink", "reserved": value}, name="waits", uid="waits")
    wants["spec"] |= {"priority": 3, "nodeSelector": selector}
    cluster.pod(wants, "team")


def written(cluster: Cluster) -> Any:
    """What is written of the place that is reserved."""
    (found,) = [p for p in cluster.fake.items("/api/v1/pods") if p["metadata"]["name"] == "waits"]
    value = (found["metadata"].get("annotations") or {}).get(RESERVED)
    return None if value is None else json.loads(value)


def test_the_reservation_is_written_before_a_pod_is_evicted(cluster: Cluster) -> None:
    cluster.fake.refuse(422, None, path="eviction$")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 1
    assert "was not evicted: 422" in done.stderr
    kept = written(cluster)
    assert (kept["uid"], kept["node"], len(kept["victims"])) == ("waits", "pairs", 1)
    assert evictions(cluster) == kept["victims"]


def test_a_client_that_may_not_evict_writes_no_reservation(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path="eviction$")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 2
    assert "you need permission to create pods/eviction in the namespace team: 403" in done.stderr
    assert written(cluster) is None
    assert evictions(cluster) == []


@pytest.mark.parametrize(
    ("victims", "more", "evicted", "message"),
    [
        pytest.param(["b"], {}, ["b"], "", id="a pod that a plan may name"),
        pytest.param(["a", "b"], {}, ["b"], "", id="one would do"),
        pytest.param(["b"], {"priority": 4}, [], "no plan may evict team/b", id="more important"),
        pytest.param(["b"], {"priority": 3}, [], "no plan may evict team/b", id="not made anew"),
        pytest.param(["b"], {"priority": 3, "by": "Job"}, ["b"], "", id="made anew beside it"),
        pytest.param(
            ["b"], {"priority": 3, "by": "Job", "full": True}, [], "would be lost", id="no home"
        ),
        pytest.param(["b"], {"by": "DaemonSet"}, [], "no plan may evict team/b", id="comes back"),
        pytest.param(["b"], {"pool": "x"}, [], "has no guaranteed placement", id="other nodes"),
    ],
)
def test_victims_that_another_wrote_are_judged_as_if_planned(
    cluster: Cluster, victims: list[str], more: dict[str, Any], evicted: list[str], message: str
) -> None:
    """So the right to ``reserve`` does not have an operator evict just any pod of a node."""
    held = pod(1, name="b", uid="b", node="pairs", phase="Running")
    held["spec"]["priority"] = more.get("priority", 0)
    by = {"apiVersion": "apps/v1", "kind": more.get("by"), "name": "by", "uid": "by"}
    if "full" in more:
        cluster.node(PAIRS, a=("team", 0), c=("team", 1), b=("team", 2))
    cluster.pod(held, "team", by if "by" in more else None)
    reserve(cluster, victims, **({"pool": more["pool"]} if "pool" in more else {}))
    cluster.fake.refuse(404, None, path="eviction$")  # a pod that has been evicted is gone
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert evictions(cluster) == evicted
    assert done.returncode == (0 if evicted else 1), done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("priority_of_b", [0, 3])
def test_a_victim_stays_if_another_victim_goes_where_it_would_go(
    cluster: Cluster, priority_of_b: int
) -> None:
    """a moves to the other node, and b, which may be on this one only, to the GPU of a."""
    host, web = {"kubernetes.io/hostname": "pairs"}, {"kind": "ReplicaSet", "name": "web"}
    cluster.labelled(PAIRS, host, None, a=("team", 2), b=("team", 0), c=("team", 3))
    other = machine("a100-pcie-4-bridged").topology("other")
    cluster.node(other, d=("team", 0), e=("team", 1), f=("team", 2))
    priorities = {"a": 0, "b": priority_of_b, "c": 9, "d": 9, "e": 9, "f": 9}
    for name, priority in priorities.items():
        node = "pairs" if name in "abc" else "other"
        held = pod(1, name=name, uid=name, node=node, phase="Running")
        held["spec"] |= {"priority": priority} | ({"nodeSelector": host} if name == "b" else {})
        cluster.pod(held, "team", {"apiVersion": "apps/v1", "uid": "web", **web})
    cluster.fake.refuse(404, None, path="eviction$")  # a pod that has been evicted is gone
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert "other has a guaranteed placement" in done.stdout
    assert len(written(cluster)["victims"]) == 2
    assert sorted(evictions(cluster)) == ["a", "b"], done.stderr


def test_the_api_servers_clock_says_until_when(cluster: Cluster) -> None:
    cluster.fake.ahead = 1800.0
    cluster.fake.refuse(404, None, path="eviction$")
    before = time.time()
    assert cluster.asked("unblock", "team/waits", "--evict", "--keep", "60").returncode == 0
    until = datetime.fromisoformat(written(cluster)["until"]).timestamp()
    assert until > before + 1800 + 60 - 5
    assert "until" in cluster.asked("unblock", "team/waits").stdout, "it lasts by that clock"
    reserve(cluster, ["a"])
    assert "evict 1 pod" in cluster.asked("unblock", "team/waits").stdout, "it ended by that clock"


def test_after_a_write_without_an_answer_the_reservation_is_unknown(cluster: Cluster) -> None:
    cluster.fake.commit_then_hang(f"^{WAITS}$")

    def cut() -> None:
        eventually(lambda: written(cluster) is not None, "the place is written")
        cluster.fake.allow()

    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(cut)
        done = cluster.asked("unblock", "team/waits", "--evict")
        cutting.result()
    assert done.returncode == 2
    assert "and it is unknown whether the reservation was written: " in done.stderr
    assert evictions(cluster) == []


def test_a_late_answer_does_not_say_that_there_is_no_reservation(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    late = EvictionAdvice("team/waits", "waits", None, undecided=LATE)
    with closing(ApiServer.from_kubeconfig(cluster.kubeconfig)) as api, pytest.raises(typer.Exit):
        Evicting(api, late, lambda: late).carry_out()
    assert f"no more pods are evicted: {LATE}" in capsys.readouterr().err


def test_a_reservation_too_far_ahead_is_reported(cluster: Cluster) -> None:
    value = value_of(PodUid("waits"), NodeName("pairs"), time.time() + 7200, [])
    cluster.pod(pod(2, {"link": "nvlink", "reserved": value}, name="waits", uid="waits"), "team")
    done = cluster.asked("unblock", "team/waits")
    assert "the annotation gpu-topology.io/reserved is not in effect yet: it ends at" in done.stdout


def test_a_cluster_without_records_is_reported(cluster: Cluster) -> None:
    cluster.fake.refuse(404, None, path=f"^{RECORDS_PATH}$")
    done = cluster.asked("unblock", "team/waits")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is gpu-topology installed?" in done.stderr


def test_a_list_that_fails_once_ends_nothing(cluster: Cluster) -> None:
    cluster.fake.refuse(429, 2, path="eviction$")  # the dry run, and the first try
    cluster.fake.refuse(404, None, path="eviction$")  # then the pod has gone

    def fail_once() -> None:
        eventually(lambda: evictions(cluster), "a pod was tried")
        cluster.fake.refuse(503, path="^/api/v1/nodes")

    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(fail_once)
        done = cluster.asked("unblock", "team/waits", "--evict")
        failed.result()
    assert done.returncode == 0, done.stderr
    assert "all pods of the plan are evicted" in done.stderr
    assert len(evictions(cluster)) == 2


def test_each_victim_is_retried_for_as_long_as_the_first_one(cluster: Cluster) -> None:
    """The first one has been refused for almost the whole time when it leaves by itself."""
    steps = [Eviction("team", name, name, 0, "ReplicaSet") for name in "ab"]
    pauses = [0.0]

    def look() -> EvictionAdvice:
        left = steps[1:] if sum(pauses) >= PATIENCE - 2 * AGAIN else steps
        reserved = Reservation("pairs", "later", ["a", "b"], left, "")
        return EvictionAdvice("team/waits", "waits", None, reservation=reserved)

    cluster.fake.refuse(500, None, path="eviction$")
    with closing(ApiServer.from_kubeconfig(cluster.kubeconfig)) as api, pytest.raises(typer.Exit):
        Evicting(api, look(), look, now=partial(sum, pauses), pause=pauses.append).carry_out()
    assert evictions(cluster).count("b") > evictions(cluster).count("a")


def test_no_pod_is_evicted_where_the_reservation_cannot_be_written(cluster: Cluster) -> None:
    cluster.fake.refuse(403, None, path=f"^{WAITS}$")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 2
    assert "no pod was evicted: no reservation was written: 403" in done.stderr
    assert evictions(cluster) == []


def test_no_pod_is_evicted_where_an_older_pods_reservation_counts(cluster: Cluster) -> None:
    """Both were written at once."""
    node, until = NodeName("pairs"), time.time() + 600
    for name, created in (("waits", "2026-01-02T00:00:00Z"), ("older", "2026-01-01T00:00:00Z")):
        value = value_of(PodUid(name), node, until, [PodUid("a")])
        wants = pod(2, {"link": "nvlink", "reserved": value}, name=name, uid=name)
        wants["metadata"]["creationTimestamp"] = created
        cluster.pod(wants, "team")
    done = cluster.asked("unblock", "team/waits", "--evict")
    assert done.returncode == 1
    assert (
        "no more pods are evicted: another pod's reservation on pairs takes precedence"
        in done.stderr
    )
    assert evictions(cluster) == []


@pytest.mark.parametrize("kind", ["pods", "poddisruptionbudgets", "nodes", "gputopologies"])
def test_a_client_that_may_not_list_all_reads_the_missing_right(
    cluster: Cluster, kind: str
) -> None:
    cluster.fake.refuse(403, None, path=f"^/api[^?]*/{kind}$")
    for words in ((), ("--evict",)):
        done = cluster.asked("unblock", "team/waits", *words)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        needed = f"error: you need permission to list {kind} in the whole cluster: 403"
        assert line.startswith(needed)
    assert evictions(cluster) == []
