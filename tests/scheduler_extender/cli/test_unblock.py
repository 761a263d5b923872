"""``gpu-topology unblock``: what it says. Evictions are in ``test_evictions.py``."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.state.pods.reservation import value_of
from tests.commands import refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology.core.devices import NodeName, PodUid
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("pairs")
LINKED = {"link": "nvlink"}
WEB = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web"}


def wanting(count: int = 2, name: str = "wants", **annotations: str) -> dict[str, Any]:
    """A pod that wants linked GPUs, and is more important than others."""
    made = pod(count, {**LINKED, **annotations}, name=name, uid=name)
    made["spec"]["priority"] = 3
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A node on which one GPU of each pair is held, and a pod that wants a pair."""
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PAIRS, a=("team", 0), b=("team", 2))
        for name, priority in (("a", 0), ("b", 5)):
            held = pod(1, name=name, uid=name, node="pairs", phase="Running")
            held["spec"]["priority"] = priority
            found.pod(held, "team", WEB)
        found.pod(wanting(), "team")
        yield found


def test_it_names_the_pods_to_evict(cluster: Cluster) -> None:
    done = cluster.asked("unblock", "team/wants")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "evict 1 pod on pairs: then team/wants has a guaranteed placement there\n"
        "  team/a (priority 0, 1 GPU) moves: its ReplicaSet recreates it, and pairs has a "
        "guaranteed placement for it\n"
    )
    writes = [each for each in cluster.fake.requests if each.method != "GET"]
    assert writes == [], "it evicts no pod"


def test_it_says_so_as_data(cluster: Cluster) -> None:
    found = json.loads(cluster.asked("unblock", "team/wants", "--output=json").stdout)
    assert found["plan"]["node"] == "pairs"
    assert [step["pod"] for step in found["plan"]["steps"]] == ["a"]
    assert found["whole"]
    assert found["reservation"] is None


def test_pods_that_do_not_wait_and_unknown_pods(cluster: Cluster) -> None:
    assert cluster.asked("unblock", "team/a").stdout == "team/a is on pairs\n"
    refused(
        cluster.asked("unblock", "team/nobody"), "no pod nobody with GPUs in the namespace team"
    )
    cluster.pod(wanting(4, "quad"), "team")
    none = cluster.asked("unblock", "team/quad")
    assert none.returncode == 1
    assert none.stdout.startswith("no pod is worth evicting for team/quad: ")


@pytest.mark.parametrize(
    ("part", "state", "words"),
    [
        ("spec", {"schedulingGates": [{"name": "held"}]}, "has scheduling gates"),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "is being deleted"),
        ("status", {"phase": "Failed"}, "has ended"),
    ],
)
def test_no_pod_is_evicted_for_one_that_is_not_scheduled(
    cluster: Cluster, part: str, state: dict[str, Any], words: str
) -> None:
    """As one that Kueue holds back: kube-scheduler does not try it, whatever is evicted."""
    changed = wanting()
    changed.setdefault(part, {}).update(state)
    cluster.pod(changed, "team")
    done = cluster.asked("unblock", "team/wants", "--evict")
    assert done.returncode == 1
    assert words in done.stdout


@pytest.mark.parametrize(
    ("victims", "problem"),
    [(["a"], ""), ([], "pairs has no guaranteed placement for the pod")],
)
def test_a_reservation_is_reported(cluster: Cluster, victims: list[str], problem: str) -> None:
    value = value_of(PodUid("wants"), NodeName("pairs"), time.time() + 60, map(PodUid, victims))
    cluster.pod(wanting(reserved=value), "team")
    found = json.loads(cluster.asked("unblock", "team/wants", "--output=json").stdout)
    assert found["reservation"]["node"] == "pairs"
    assert found["reservation"]["victims"] == victims
    assert found["reservation"]["problem"] == problem
    assert problem in cluster.asked("unblock", "team/wants").stdout


def test_there_is_a_new_plan_once_a_reservation_has_ended(cluster: Cluster) -> None:
    value = value_of(PodUid("wants"), NodeName("pairs"), time.time() - 1, [PodUid("b")])
    cluster.pod(wanting(reserved=value), "team")
    found = json.loads(cluster.asked("unblock", "team/wants", "--output=json").stdout)
    assert found["reservation"] is None
    assert [step["pod"] for step in found["plan"]["steps"]] == ["a"]


@pytest.mark.parametrize("keep", ["5", "100000"])
def test_a_reservation_lasts_for_a_while(cluster: Cluster, keep: str) -> None:
    done = cluster.asked("unblock", "team/wants", "--evict", "--keep", keep)
    assert done.returncode == 2
    assert "--keep: allowed are 30 to 3600 seconds" in done.stderr
