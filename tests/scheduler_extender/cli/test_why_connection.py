"""``gpu-topology why`` finds its cluster, and names what it cannot reach or list."""

import json
import os
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from scheduler_extender.kube.sinks import PODS_PATH, RECORDS_PATH
from tests.commands import Done, asked, refused
from tests.nodes import pod, switched
from tests.scheduler_extender.cli.kubecluster import Cluster
from tests.scheduler_extender.serving import running
from topology.machines import machine

NVLINK = {"link": "nvlink"}
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")


def why(*words: object) -> Done:
    return asked(main, "why", *words)


def test_with_a_kubeconfig_alone_it_says_what_the_extender_would(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-a", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "team-a/train\n"
        "requests 2 GPUs: every two linked by NVLink (link=nvlink)\n"
        "no node takes it: no set of 2 free GPUs with link=nvlink (1 node)\n"
        "\n"
        "nearest\n"
        "  train-07: 1 of 2 linked GPUs is free (1); GPU 0 is held by team-a/serve\n"
        "\n"
        "what would help\n"
        "  team-a/serve on train-07 ends: the node takes the pod then\n"
        "  without link=nvlink: 1 node would take it now\n"
        "  with 1 GPU in place of 2: 1 node would take it now\n"
        "  with policy=preferred, without a promise: 1 node would take it now\n"
        "  evictions; kubectl gpu-topology unblock team-a/train shows a plan, if one exists\n"
    )


def test_what_the_caller_may_not_list_is_reported(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    cluster.fake.refuse(403, None, path="^/api/v1/(pods|nodes)")
    done = cluster.why("train")
    assert (done.returncode, done.stderr) == (1, "")
    assert "GPU 0 is held by team-b/serve" in done.stdout, "the record names it"
    assert "no node takes it: no set of 2 free GPUs with link=nvlink (1 node)" in done.stdout
    assert "you may list pods only in the namespace team-a" in done.stdout
    assert "you may not list nodes" in done.stdout
    cluster.fake.refuse(403, None, path=RECORDS_PATH)
    refused(cluster.why("train"), "403", "--forward")


def test_what_is_no_api_server_is_named_as_such(cluster: Cluster, tmp_path: Path) -> None:
    with running(switched()) as service:
        config = json.loads(cluster.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{service.ports[0]}"
        other = tmp_path / "other"
        other.write_text(json.dumps(config))
        done = why("train", "--kubeconfig", other)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_cluster_without_the_extender_is_named_as_such(cluster: Cluster) -> None:
    cluster.fake.refuse(404, None, path=RECORDS_PATH)
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train")
    assert done.returncode == 1
    assert "is gpu-topology installed?" in done.stdout


def test_lists_are_read_page_by_page(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_extender.kube.reading.PAGE", 2)
    monkeypatch.setattr("scheduler_extender.kube.reading.RECORDS_PAGE", 1)
    for i in range(5):
        cluster.node(switched(2, f"node-{i}"), **{f"pod-{i}": ("team-a", 0)})
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    assert json.loads(cluster.why("train", "-o", "json").stdout)["rejections"] == {"busy": 5}
    assert {r.query.get("limit") for r in cluster.fake.requests if r.path == PODS_PATH} == {"2"}


def test_a_kubeconfig_is_found_as_kubectl_finds_it(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.node(switched(2, "node"))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"), "of-the-context")
    config = json.loads(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "of-the-context"
    usual = tmp_path / "home" / ".kube" / "config"
    usual.parent.mkdir(parents=True)
    usual.write_text(json.dumps(config))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert why("train").stdout.startswith("of-the-context/train\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    none = why("train")
    refused(none, f"kubeconfig {tmp_path / 'none'}: there is no such file")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}{os.pathsep}{usual}")
    assert why("train").stdout.startswith("of-the-context/train\n")


def test_without_any_kubeconfig_it_says_which_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    message = "error: neither $KUBECONFIG nor ~/.kube/config exists; give --kubeconfig FILE"
    done = why("train")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{message}\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert why("train").stderr.startswith(f"{message} (service account: ")
