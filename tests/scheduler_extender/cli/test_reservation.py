"""A place that ``unblock --evict`` keeps: what commands say to others, to its pod, and later."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from scheduler_extender.state.pods.reservation import value_of
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology.core.devices import NodeName, PodUid
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
NVLINK = {"link": "nvlink"}
RESERVED_FOR = 1800.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PAIRS)
        yield found


def reserved_message(cluster: Cluster, seconds: float) -> str:
    """The node is kept for a pod that wants all of it; what is said of that to others."""
    until = time.time() + seconds
    value = value_of(PodUid("urgent"), NodeName("train-07"), until, ())
    cluster.pod(pod(4, {"reserved": value}, name="urgent", uid="urgent"), "team-b")
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    when = datetime.fromtimestamp(int(until), UTC).strftime("%H:%M")
    return f"reserved for another pod until {when} UTC"


def file(folder: Path) -> Path:
    path = folder / "pod.yaml"
    path.write_text(yaml.safe_dump({"kind": "Pod", **pod(2, NVLINK, name="mine")}))
    return path


def test_others_read_until_when_a_reservation_lasts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # so that no cell of a table is broken
    message = reserved_message(cluster, RESERVED_FOR)
    done = cluster.why("train", "-o", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["takes"], found["rejections"]) == (1, 0, {"reserved": 1})
    assert [node["message"] for node in found["nodes"]] == [message]
    done = cluster.why("train")
    assert "no node takes it: reserved for another pod" in done.stdout
    until = message.partition("until")[2]
    near = f"GPUs 0,1 are suitable and seem free, but are reserved for team-b/urgent until{until}"
    assert f"train-07: {near}" in done.stdout
    done = cluster.asked("waiting")
    assert (done.returncode, done.stderr) == (1, "")
    assert "no node takes it: reserved for another pod" in " ".join(done.stdout.split())
    done = cluster.asked("check", file(tmp_path))
    assert done.returncode == 1
    assert message in " ".join(done.stdout.split())
    done = cluster.asked("node", "train-07")
    assert "reserved for team-b/urgent" in done.stdout


def test_each_pod_with_a_reservation_is_named(cluster: Cluster) -> None:
    names = [f"default/wants-{number}" for number in range(4)]
    for name in names:
        wants = pod(1, NVLINK, name=name.partition("/")[2], uid=name)
        wants["status"] |= {"nominatedNodeName": "train-07"}
        cluster.pod(wants, "default")
    assert f"reserved for {', '.join(names[:3])} and {names[3]}" in cluster.asked(
        "node", "train-07"
    ).stdout.replace("\n", " ")
    node = json.loads(cluster.asked("node", "train-07", "-o", "json").stdout)
    assert (node["reservedFor"], node["reservations"]) == (names[0], names)
    assert node["gpus"]["reserved"] == 4
    listed = json.loads(cluster.asked("nodes", "-o", "json").stdout)["nodes"][0]
    assert listed["reservations"] == names


def test_the_pod_with_the_reservation_may_come(cluster: Cluster) -> None:
    reserved_message(cluster, RESERVED_FOR)
    found = json.loads(cluster.why("team-b/urgent", "-o", "json").stdout)
    assert (found["takes"], found["rejections"]) == (1, {})


def test_a_reservation_lasts_no_longer_than_it_says(cluster: Cluster, tmp_path: Path) -> None:
    reserved_message(cluster, -5.0)
    assert json.loads(cluster.why("train", "-o", "json").stdout)["takes"] == 1
    done = cluster.asked("check", file(tmp_path))
    assert (done.returncode, "reserved for" in done.stdout) == (0, False)


def test_a_tenant_reads_only_that_there_is_a_reservation(cluster: Cluster) -> None:
    """Without the right to list the pods of others the annotation is not read: it is on the pod."""
    reserved_message(cluster, RESERVED_FOR)
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    for words in (("node", "train-07"), ("node", "train-07", "-o", "json"), ("why", "train")):
        done = cluster.asked(*words)
        assert "urgent" not in done.stdout
        assert "team-b" not in done.stdout
