"""``check`` of several files and folders, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from tests.commands import ROOT, Done, asked, refused
from tests.nodes import pod

CLUSTER = "examples/clusters/mixed.yaml"
PAIR = {"kind": "Pod", **pod(2, {"link": "nvlink"}, name="pair")}
WRONG = {"kind": "Pod", **pod(2, {"link": "wire"}, name="wrong")}
SERVICE = {"kind": "Service", "metadata": {"name": "web"}}


def check(*words: object) -> Done:
    return asked(main, "check", *words, "--cluster", CLUSTER)


def written(path: Path, *documents: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(documents))
    return path


def deployment(replicas: int, **metadata: object) -> dict[str, Any]:
    template = {"metadata": PAIR["metadata"], "spec": PAIR["spec"]}
    return {
        "kind": "Deployment",
        "metadata": {"name": "train", **metadata},
        "spec": {"replicas": replicas, "template": template},
    }


def test_one_bad_object_hides_no_answer_about_the_others(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.yaml", WRONG, PAIR)
    done = check(bad, tmp_path / "none.yaml", written(tmp_path / "good.yaml", PAIR))
    assert done.returncode == 2
    assert "pair, pair each ask" not in done.stdout
    assert done.stdout.startswith("pair requests 2 GPUs link=nvlink\n")
    assert done.stderr.splitlines() == [
        f'error: {bad}: Pod wrong: annotation gpu-topology.io/link="wire": '
        "allowed are nvlink, pix, pxb, phb, node",
        f"error: {tmp_path}/none.yaml: No such file or directory",
    ]


def test_each_file_is_named_where_nothing_can_be_read(tmp_path: Path) -> None:
    written(tmp_path / "folder" / "a.yaml", WRONG)
    (tmp_path / "folder" / "b.yaml").write_text("a: [")
    (tmp_path / "empty").mkdir()
    done = check(tmp_path / "nope.yaml", tmp_path / "empty", "-f", tmp_path / "folder")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.removeprefix(f"error: {tmp_path}/").split(":")[0] for line in lines] == [
        "nope.yaml",
        "empty",
        "folder/a.yaml",
        "folder/b.yaml",
    ]
    good = written(tmp_path / "good.yaml", PAIR)
    assert check(good, tmp_path / "empty").stdout.startswith("pair requests 2 GPUs")


def test_a_pod_that_has_a_node_is_passed_over_with_a_line(tmp_path: Path) -> None:
    placed = {**PAIR, "spec": {**PAIR["spec"], "nodeName": "train-00"}}
    running = [{**placed, "metadata": {"name": f"run-{n}"}} for n in range(5)]
    path = written(tmp_path / "pods.yaml", PAIR, *running)
    done = check(path, "--strict")
    message = (
        f"{path}: not evaluated because already on a node: Pod run-0, Pod run-1, Pod run-2 and 2 "
        "more"
    )
    assert (done.returncode, done.stderr) == (0, f"note: {message}\n")
    assert done.stdout.startswith("pair requests 2 GPUs")
    done = check(written(path, running[0]))
    message = f"error: {path}: not evaluated because already on a node: Pod run-0\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_a_folder_is_read_with_those_below_it(tmp_path: Path) -> None:
    written(tmp_path / "a.yaml", PAIR)
    written(tmp_path / "deep" / "b.yml", SERVICE)
    written(tmp_path / "deep" / "c.json", PAIR)
    written(tmp_path / ".git" / "d.yaml", WRONG)
    written(tmp_path / "values.txt", WRONG)
    os.mkfifo(tmp_path / "e.yaml")
    done = check("-f", tmp_path, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    files = [each["file"] for each in json.loads(done.stdout)["pods"]]
    assert files == [f"{tmp_path}/a.yaml", f"{tmp_path}/deep/c.json"]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "{0}: the folder has no .yaml, .yml or .json file"),
        (
            [SERVICE],
            "{0}/a.yaml: kind: allowed are Pod and objects with a pod template, not 'Service'",
        ),
    ],
)
def test_a_folder_with_nothing_to_check_is_bad_input(
    documents: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    if documents:
        written(tmp_path / "a.yaml", *documents)
    refused(check(tmp_path), message.format(tmp_path))


def test_without_a_file_there_is_nothing_to_check() -> None:
    done = check()
    assert (done.returncode, done.stderr) == (
        2,
        "error: Missing argument 'FILE'. (try check --help)\n",
    )


def test_a_warning_is_bad_where_checks_are_strict(tmp_path: Path) -> None:
    wrong_place = deployment(1, annotations={"gpu-topology.io/link": "nvlink"})
    path = written(tmp_path / "a.yaml", wrong_place)
    assert check(path).returncode == 0
    strict = check(path, "--strict")
    assert strict.returncode == 1
    assert "has no effect on the Deployment" in strict.stderr
    assert check(written(tmp_path / "b.yaml", PAIR), "--strict").returncode == 0


def test_the_number_of_copies_that_fit_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", deployment(30))
    done = check(path)
    assert done.returncode == 0
    assert "\npair: 20 of its 30 pods fit at once\n" in done.stdout
    found = json.loads(check(path, "-o", "json").stdout)
    assert (found["copies"], found["fit"]) == (30, 20)
    assert check(path, "--strict").returncode == 1
    assert check(written(tmp_path / "b.yaml", deployment(2)), "--strict").returncode == 0


def test_an_object_with_several_kinds_of_pods_has_room_for_all_at_once(tmp_path: Path) -> None:
    """Two nodes have eight linked GPUs in the mixed cluster: each kind alone fits, not both."""

    def template(replicas: int, count: int) -> dict[str, Any]:
        made = pod(count, {"link": "nvlink"}, name="t")
        return {
            "replicas": replicas,
            "template": {"metadata": made["metadata"], "spec": made["spec"]},
        }

    def job(masters: int) -> Path:
        replicas = {"Master": template(masters, 8), "Worker": template(20, 2)}
        spec = {"pytorchReplicaSpecs": replicas}
        made = {"kind": "PyTorchJob", "metadata": {"name": "t"}, "spec": spec}
        return written(tmp_path / "a.yaml", made)

    done = check(job(2), "--strict")
    assert done.returncode == 1
    message = "PyTorchJob t (object 1): 14 of its 22 pods fit at once"
    assert message in done.stdout.splitlines()
    (answer,) = json.loads(check(job(2), "-o", "json").stdout)["objects"]
    assert (answer["copies"], answer["fit"]) == (22, 14)


def test_each_copy_of_a_member_is_a_member(tmp_path: Path) -> None:
    """A gang of which no size is known: as many members as the Job has pods."""
    made = deployment(30)
    made["spec"]["template"] = {
        "metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}},
        "spec": PAIR["spec"],
    }
    done = check(written(tmp_path / "a.yaml", made))
    assert done.returncode == 1
    assert "only 24 of its 30 members fit at once" in done.stdout


CLAIMING: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "claiming"},
    "spec": {
        "containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "rc"}],
    },
}
NOT_JUDGED = (
    "not evaluated, because claims are not read from files; in the cluster, gpu-topology why "
    "POD shows what a pod gets"
)


def test_a_pod_with_claims_of_its_own_is_not_left_out_in_silence(tmp_path: Path) -> None:
    other = {**CLAIMING, "metadata": {"name": "other"}}
    zero = {"limits": {"nvidia.com/gpu": 0}, "claims": [{"name": "gpu"}]}
    asks_us = {**other, "spec": {**CLAIMING["spec"], "containers": [{"resources": zero}]}}
    for second in (other, asks_us):
        path = written(tmp_path / "a.yaml", CLAIMING, second)
        done = check(path)
        message = f"{path}: Pod claiming and Pod other: {NOT_JUDGED}"
        assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
    path = written(tmp_path / "a.yaml", CLAIMING, PAIR)
    done = check(path)
    message = f"{path}: Pod claiming: {NOT_JUDGED}"
    assert (done.returncode, done.stderr) == (0, f"warning: {message}\n")
    assert check(path, "--strict").returncode == 1


def test_an_object_whose_operator_makes_the_pods_is_reported(tmp_path: Path) -> None:
    cache, service = ({"kind": k, "metadata": {"name": "llm"}} for k in ("NIMCache", "NIMService"))
    path = written(tmp_path / "a.yaml", cache, service)
    done = check(path)
    message = (
        f"{path}: NIMCache llm: its operator creates a Job: check that Job; "
        "NIMService llm: its operator creates a Deployment: check that Deployment"
    )
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
    for kind, made in (("TrainJob", "JobSet"), ("PodCliqueSet", "Pod")):
        path = written(tmp_path / "a.yaml", PAIR, {**service, "kind": kind})
        done = check(path, "--strict")
        message = f"warning: {path}: {kind} llm: its operator creates a {made}: check that {made}\n"
        assert (done.returncode, done.stderr) == (1, message)


def test_a_pod_may_have_only_the_beginning_of_a_name(tmp_path: Path) -> None:
    done = check(written(tmp_path / "a.yaml", {**PAIR, "metadata": {"generateName": "train-"}}))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("train requests 2 GPUs\n")


def test_nor_is_a_file_of_a_folder_that_has_no_other(tmp_path: Path) -> None:
    path = written(tmp_path / "folder" / "a.yaml", CLAIMING)
    written(tmp_path / "folder" / "b.yaml", PAIR)
    done = check(tmp_path / "folder", "--strict")
    message = f"warning: {path}: Pod claiming: {NOT_JUDGED}\n"
    assert (done.returncode, done.stderr) == (1, message)


NOT_JOINED = (
    "link: applies to the GPUs of one pod, and each pod of the group has one GPU; to get linked "
    "GPUs, request all of them in one pod"
)


@pytest.mark.parametrize("count", [1, 2])
def test_pods_of_one_gpu_are_not_joined_by_link(count: int, tmp_path: Path) -> None:
    group = {"link": "nvlink", "group": "j", "group-size": "2", "group-domain": "node"}
    path = written(tmp_path / "a.yaml", {"kind": "Pod", **pod(count, group, name="w")})
    done = check(path, "--strict")
    warned = f"warning: {path}: {NOT_JOINED}\n"
    assert (done.returncode, done.stderr) == ((1, warned) if count == 1 else (0, ""))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"{(ROOT / CLUSTER).read_text()}\n---\n{path.read_text()}")
    why = asked(main, "why", "default/w", "--cluster", cluster)
    assert (NOT_JOINED in why.stdout) == (count == 1)


def test_selectors_need_node_objects(tmp_path: Path) -> None:
    picky = {**PAIR, "spec": {**PAIR["spec"], "nodeSelector": {"pool": "a"}}}
    path = written(tmp_path / "a.yaml", picky)
    done = check(path)
    assert done.stderr == (
        "warning: nodeSelector and node affinity of pair are ignored on 8 of 8 nodes, "
        "because not all labels of these nodes are known\n"
    )
    assert check(path, "--strict").returncode == 1


def test_a_reader_that_goes_away_is_no_answer(tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", {**PAIR, "metadata": {"name": "big"}})
    command = [sys.executable, "-m", "scheduler_extender", "check", str(path), "--cluster", CLUSTER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.wait() == 0
