"""``gpu-topology why`` of one pod."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from scheduler_extender.kube.sinks import RECORDS_PATH
from tests.commands import ROOT, Done, asked, refused
from tests.nodes import bridged, pod, switched
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology import codec
from topology.core.devices import DeviceId, PodUid
from topology.core.report import Allocation, Report
from topology.machines import machine

WAITING = "examples/clusters/waiting.yaml"
NVLINK = {"link": "nvlink"}
PAIRS = machine("a100-pcie-4-bridged").topology("train-07")


def why(*words: object) -> Done:
    return asked(main, "why", *words)


def test_a_pod_is_named_with_its_namespace(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    cluster.pod(pod(2, NVLINK, name="train", uid="train"), "team-b")
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    done = cluster.why("team-b/train")
    assert done.stdout.startswith("team-b/train\n")
    assert "GPU 0 is held by team-b/serve" in done.stdout, "its own namespace can be seen"


def test_a_misplaced_annotation_is_reported(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    manifest = pod(2, {}, name="train", uid="train")
    manifest["metadata"]["labels"] = {"gpu-topology.io/link": "nvlink"}
    manifest["metadata"]["annotations"] = {"gpu-topolgy.io/min-nvlinks": "2"}
    cluster.pod(manifest)
    done = cluster.why("train")
    assert "2 GPUs without constraints" in done.stdout
    assert "label gpu-topology.io/link has no effect" in done.stdout
    assert "did you mean gpu-topology.io/min-nvlinks?" in done.stdout


def test_an_unreadable_annotation_is_the_answer(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    cluster.pod(pod(2, {"link": "rope"}, name="train", uid="train"))
    done = cluster.why("train")
    assert done.returncode == 1
    assert 'no node takes it: annotation gpu-topology.io/link="rope": allowed are' in done.stdout


def test_a_running_pod_has_its_node_beside_an_unreadable_annotation(cluster: Cluster) -> None:
    cluster.node(switched(2, "node"))
    cluster.pod(pod(2, {"link": "rope"}, name="p", uid="p", node="node", phase="Running"))
    done = cluster.why("p")
    assert done.returncode == 0
    assert 'on node: annotation gpu-topology.io/link="rope": allowed are' in done.stdout


def test_a_refused_pod_waits_for_no_report() -> None:
    done = why("team-b/batch-q8w5s", "--cluster", "examples/clusters/audit.yaml")
    assert (done.returncode, "report" in done.stdout) == (0, False)
    assert done.stdout.endswith("  the kubelet refused the pod (TopologyAffinityError)\n")
    done = asked(main, "unblock", "team-b/batch-q8w5s", "--cluster", "examples/clusters/audit.yaml")
    assert done.stdout == "no pod is worth evicting for team-b/batch-q8w5s: it has ended\n"


def test_a_placed_pod_reads_what_it_got(cluster: Cluster) -> None:
    node = bridged(4, "node")
    cluster.node(node)
    placement = json.dumps(
        {"verdict": "guaranteed", "node": "node", "uid": "p", "sets": [[0, 1], [2, 3]]}
    )
    manifest = pod(
        2, {**NVLINK, "placement": placement}, name="p", uid="p", node="node", phase="Running"
    )
    cluster.pod(manifest)
    ids = tuple(DeviceId(node.gpus[i].uuid) for i in (2, 3))
    held = (Allocation(PodUid("p"), "team-a", "p", "main", "nvidia.com/gpu", ids),)
    now = datetime.now(UTC).isoformat()
    report = Report("boot", 2, allocations=held, observed_at=now)
    cluster.fake.put(RECORDS_PATH, codec.encode(node, report))
    done = cluster.why("pod/p", "-o", "json")
    assert done.returncode == 0, done.stderr
    placed = json.loads(done.stdout)["placed"]
    assert (placed["verdict"], placed["got"], placed["keeps"]) == ("guaranteed", [2, 3], True)
    assert placed["sets"] == [[0, 1], [2, 3]]
    assert "it got GPUs 2,3, which meet its constraints" in cluster.why("p").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nobody",), "there is no pod team-a/nobody"),
        (("cpu-only",), "requests no GPUs"),
        (("deployment/none",), "404"),
        (("train", "-o", "xml"), "--output: allowed are table, wide, json, yaml, name, not 'xml'"),
        (("train", "--require", "hope"), "--require: allowed are"),
    ],
)
def test_bad_input_is_one_line(cluster: Cluster, words: tuple[str, ...], message: str) -> None:
    cluster.pod(pod(None, name="cpu-only", uid="c"))
    refused(cluster.why(*words), message)


def test_it_is_tried_without_a_cluster() -> None:
    done = why("waits", "--cluster", WAITING)
    assert (done.returncode, done.stderr) == (1, "")
    assert "default/serve-0a on train-00 ends" in done.stdout
    assert "unblock" not in done.stdout, "there is no extender to ask"


def test_check_asks_the_same_cluster(cluster: Cluster) -> None:
    cluster.node(PAIRS, serve=("team-b", 0), notebook=("team-b", 2))
    sample = "manifests/samples/pair-nvlink.yaml"
    words = ("check", sample, "--kubeconfig", cluster.kubeconfig)
    done = asked(main, *words)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no node takes it: no set of 2 free GPUs with link=nvlink (1 node)" in done.stdout
    assert "GPU 0 is held by team-b/serve" in done.stdout
    cluster.fake.refuse(403, None, path="^/api/v1/pods")
    (row,) = json.loads(asked(main, *words, "-n", "team-a", "--output=json").stdout)["nodes"]
    assert row["reason"] == "scattered"
    assert "GPU 0 is held by team-b/serve" in row["miss"]["words"], "the record names it"


def test_gates_are_why_a_pod_waits_too(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node(switched(2, "node"))
    manifest = pod(2, NVLINK, name="train", uid="train")
    manifest["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    cluster.pod(manifest)
    done = cluster.why("train")
    assert done.returncode == 0
    ignored = "  kube-scheduler ignores the pod until its scheduling gates are removed\n"
    assert f"{ignored}  scheduling gates: kueue.x-k8s.io/admission\n" in done.stdout
    file = tmp_path / "full.yaml"
    group = {"kind": "MachineGroup", "machine": "t4-4", "count": 1, "namePrefix": "a-"}
    file.write_text(f"{json.dumps(group)}\n---\n{json.dumps({'kind': 'Pod', **manifest})}")
    assert why("team-a/train", "--cluster", file).stdout.endswith(ignored)


def test_a_record_that_cannot_be_used_does_not_spoil_the_json(cluster: Cluster) -> None:
    cluster.node(PAIRS)
    record = cluster.fake.read(f"{RECORDS_PATH}/train-07")
    cluster.fake.put(RECORDS_PATH, {**record, "spec": {**record["spec"], "devices": "none"}})
    cluster.pod(pod(2, NVLINK, name="train", uid="train"))
    done = cluster.why("train", "-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["rejections"] == {"record-unusable": 1}


def test_a_pod_that_only_ineligible_nodes_would_take_goes_to_no_node(tmp_path: Path) -> None:
    text = (ROOT / "examples/clusters/template.yaml").read_text()
    file = tmp_path / "cluster.yaml"
    file.write_text(text.replace("tolerations:", "volumes:"))
    message = (
        "no node takes it: the node that would take it is not eligible because of taint "
        "pool=batch:NoSchedule; "
        "not guaranteed: the node may hand out GPUs without link=nvlink (1 node)\n"
    )
    done = why("team-a/train", "--cluster", file)
    assert done.returncode == 1
    assert message in done.stdout
    done = asked(main, "waiting", "-A", "--cluster", file, "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["pods"][0]["takes"] == 0
