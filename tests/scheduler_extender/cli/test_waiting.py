"""``gpu-topology waiting``: which pods wait, and why, in one line each."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.annotations import IMPLICIT_NAME, UNASKED
from scheduler_extender.cli import main
from scheduler_extender.kube.sinks import PODS_PATH
from tests.commands import asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology.machines import machine

PAIRS = machine("a100-pcie-4-bridged").topology("train-07")
PCIE = machine("l40s-4").topology("serve-01")
NVLINK = {"link": "nvlink"}


def waits(count: int, annotations: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    hours = more.pop("hours", 0)
    found = pod(count, annotations, uid=more["name"], **more)
    made = datetime.now(UTC) - timedelta(hours=hours, minutes=1)
    found["metadata"] |= {"labels": labels, "creationTimestamp": made.isoformat()}
    return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Half of each bridge is held; pods of two namespaces wait, and some of them do not."""
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(PAIRS, serve=("team-a", 0), notebook=("team-b", 2))
        found.node(PCIE)
        found.pod(waits(2, NVLINK, name="train", hours=3, labels={"app": "train"}))
        found.pod(waits(8, name="large", hours=50))
        found.pod(waits(2, NVLINK, name="theirs"), "team-b")
        found.pod(waits(1, name="ended", phase="Failed"))
        cpu = waits(1, name="no-gpus")
        cpu["spec"]["containers"] = [{"name": "main"}]
        found.pod(cpu)
        yield found


def test_the_pods_of_the_namespace(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cluster.asked("waiting")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "pod           waits  request      why\n"
        "team-a/large    2 d  8 GPUs       no node takes it: node has fewer GPUs than\n"
        "                                  requested (2 nodes)\n"
        "team-a/train    3 h  2 GPUs       no node takes it: no set of 2 free GPUs with\n"
        "                     link=nvlink  link=nvlink (1 node); the hardware has no set\n"
        "                                  of 2 GPUs with link=nvlink (1 node)\n"
    )


def test_all_namespaces(cluster: Cluster) -> None:
    words = ("waiting", "-A", "-o", "name", "--kubeconfig", cluster.kubeconfig)
    done = asked(main, *words)
    assert done.stdout.split() == ["pod/large", "pod/train", "pod/theirs"]
    cluster.fake.refuse(403, None, path=f"^{PODS_PATH}$")
    refused(asked(main, *words), "you need permission to list pods in all namespaces")
    refused(cluster.asked("waiting", "-A"))


def test_with_the_rights_of_one_namespace_its_pods_are_answered(cluster: Cluster) -> None:
    whole = json.loads(cluster.asked("waiting", "-o", "json").stdout)
    cluster.fake.refuse(403, None, path=f"^{PODS_PATH}$")
    done = cluster.asked("waiting", "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["pods"] == whole["pods"]
    (note,) = found["notes"]
    assert note.startswith("you may list pods only in the namespace team-a: ")


def test_selected_pods(cluster: Cluster) -> None:
    assert cluster.asked("waiting", "-l", "app=train", "-o", "name").stdout == "pod/train\n"
    none = cluster.asked("waiting", "-l", "app=serve")
    answers = "no pod in the namespace team-a waits for GPUs; -A lists all namespaces\n"
    assert (none.returncode, none.stdout) == (0, answers)


def test_no_pod_waits() -> None:
    none = asked(main, "waiting", "-A", "--cluster", "examples/clusters/mixed.yaml")
    assert (none.returncode, none.stdout) == (0, "no pod waits for GPUs\n")


def test_a_node_that_would_take_it_is_no_no(cluster: Cluster) -> None:
    for name in ("large", "train"):
        cluster.fake.remove(f"/api/v1/namespaces/team-a/pods/{name}")
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.pod(waits(2, name="small", conditions=[unschedulable]))
    done = cluster.asked("waiting")
    assert done.returncode == 0
    assert (
        "2 of 2 nodes would take it; kube-scheduler finds no node because of its own rules"
        in done.stdout
    )


def test_gates_and_bad_annotations(cluster: Cluster) -> None:
    gated = waits(2, name="gated")
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    cluster.pod(gated)
    cluster.pod(waits(2, {"lnik": "nvlink"}, name="typo"))
    found = json.loads(cluster.asked("waiting", "-o", "json").stdout)["pods"]
    reasons = {row["pod"]: row["reason"] for row in found}
    assert reasons["team-a/gated"].startswith("held back by its scheduling gates; 2 of 2 nodes")
    assert "annotation gpu-topology.io/lnik: unknown key" in reasons["team-a/typo"]


def test_a_pod_that_the_extender_is_not_asked_about_reads_so_and_what_helps(
    cluster: Cluster,
) -> None:
    """check, why and waiting say the same."""
    unseen = waits(2, name="unseen")
    (main_container,) = unseen["spec"]["containers"]
    main_container["resources"] = {"limits": {IMPLICIT_NAME: "2"}}
    cluster.pod(unseen)
    found = json.loads(cluster.asked("waiting", "-o", "json").stdout)["pods"]
    (row,) = (row for row in found if row["pod"] == "team-a/unseen")
    assert row["reason"].startswith(f"{UNASKED}; no node takes it: ")
    assert "2 GPUs" in row["request"]
    assert UNASKED in " ".join(cluster.why("unseen").stdout.split())
    main_container["resources"]["limits"]["nvidia.com/gpu"] = "0"
    cluster.pod(unseen)
    assert UNASKED not in " ".join(cluster.why("unseen").stdout.split())


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_nothing_is_wider_than_the_terminal(
    cluster: Cluster, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (("waiting",), ("waiting", "-o", "wide")):
        done = cluster.asked(*words)
        assert max(map(len, done.stdout.splitlines())) <= columns
        assert "hardware" in done.stdout


def test_a_file_in_place_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    done = asked(main, "waiting", "-A", "--cluster", "examples/clusters/why.yaml")
    assert done.returncode == 1
    assert (
        "no node takes it: the hardware has no set of 4 GPUs with link=nvlink (6 nodes); not"
        in done.stdout
    )
    none = asked(main, "waiting", "--cluster", "examples/clusters/why.yaml")
    answers = "no pod in the namespace default waits for GPUs; -A lists all namespaces\n"
    assert (none.returncode, none.stdout) == (0, answers)


def test_one_pod_does_not_take_the_time_of_all(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes were asked about one pod for as long as it took: about a pod with long claims for
    minutes."""
    monkeypatch.setattr("scheduler_extender.cli.waiting.EXPLAIN_SECONDS", -1)
    done = cluster.asked("waiting", "-l", "app=train", "-o", "json")
    (row,) = json.loads(done.stdout)["pods"]
    assert row["reason"] == "not evaluated in time: run gpu-topology why team-a/train"
    assert (row["takes"], row["rejections"]) == (None, {})
    assert done.returncode == 0, "that no node takes it is not known"
    monkeypatch.setattr("scheduler_extender.cli.why.EXPLAIN_SECONDS", -1)
    answer = cluster.why("train")
    assert "not all nodes were evaluated in time; so far no node takes it" in answer.stdout
    assert answer.returncode == 0


def test_a_file_is_worked_out_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    file = ("--cluster", "examples/clusters/why.yaml")
    answers = [asked(main, *words, *file) for words in (("waiting", "-A"), ("why", "team-a/train"))]
    for name in ("waiting.SECONDS", "waiting.EXPLAIN_SECONDS", "why.EXPLAIN_SECONDS"):
        monkeypatch.setattr(f"scheduler_extender.cli.{name}", -1)
    assert [
        asked(main, *words, *file) for words in (("waiting", "-A"), ("why", "team-a/train"))
    ] == answers
