"""``gpu-topology claim``: a pod's constraints as a ResourceClaimTemplate."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.cli import main
from scheduler_extender.files.claimfile import selector
from scheduler_extender.kube.sinks import NODES_PATH, RECORDS_PATH
from tests.commands import ROOT, Done, asked, refused
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import bridged
from tests.scheduler_extender.cli.kubecluster import Cluster
from topology import codec
from topology.core import alternatives as core
from topology.machines import machine

CLUSTERS = ROOT / "examples" / "clusters"
GROUP = "kind: MachineGroup\nmachine: {}\ncount: 1\nnamePrefix: n-\n"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, annotations: {gpu-topology.io/link: nvlink}}
spec:
  containers:
  - {name: log, image: x}
  - name: main
    image: x
    resources: {limits: {nvidia.com/gpu: 2, cpu: 4}, requests: {nvidia.com/gpu: 2}}
"""


def claim(
    folder: Path, text: str, cluster: str = GROUP.format("a100-pcie-4-bridged"), *words: str
) -> Done:
    (folder / "pod.yaml").write_text(text)
    (folder / "cluster.yaml").write_text(cluster)
    return asked(main, "claim", folder / "pod.yaml", "--cluster", folder / "cluster.yaml", *words)


def requests(template: dict[str, Any]) -> Any:
    return template["spec"]["spec"]["devices"]["requests"]


def test_as_json_it_is_the_same_list_of_objects(tmp_path: Path) -> None:
    text = POD.replace("image: x}", "image: x, env: [{name: DAY, value: 2026-01-01}]}")
    cluster = GROUP.format("a100-pcie-4-bridged")
    found = json.loads(claim(tmp_path, text, cluster, "-o", "json").stdout)
    assert found["kind"] == "List"
    template, made = yaml.safe_load_all(claim(tmp_path, POD).stdout)
    assert found["items"][0] == template
    found["items"][1]["spec"]["containers"][0].pop("env")
    assert found["items"][1] == made
    refused(claim(tmp_path, text, cluster, "-o", "table"), "--output: allowed are yaml, json, not")


def test_the_pod_takes_its_gpus_by_the_claim(tmp_path: Path) -> None:
    done = claim(tmp_path, POD)
    assert (done.returncode, done.stderr) == (0, "")
    template, pod = yaml.safe_load_all(done.stdout)
    assert template["metadata"] == {"name": "train-gpus"}
    ((name, alternatives),) = [(r["name"], r["firstAvailable"]) for r in requests(template)]
    assert name == "gpus"
    assert [each["count"] for each in alternatives] == [2, 2]
    buses = [re.findall(r'"(0000:[^"]*)"', str(each["selectors"])) for each in alternatives]
    assert buses == [["0000:27:00.0", "0000:38:00.0"], ["0000:a8:00.0", "0000:b8:00.0"]]
    assert pod["spec"]["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": "train-gpus"}
    ]
    log, main_ = pod["spec"]["containers"]
    assert "resources" not in log
    assert main_["resources"] == {
        "limits": {"nvidia.com/gpu": 0, "cpu": 4}, "requests": {}, "claims": [{"name": "gpus"}]
    }  # fmt: skip
    assert pod["metadata"]["annotations"] == {"gpu-topology.io/link": "nvlink"}
    (tmp_path / "claimed.yaml").write_text(done.stdout)
    checked = asked(
        main, "check", tmp_path / "claimed.yaml", "--cluster", tmp_path / "cluster.yaml"
    )
    assert checked.returncode == 2
    assert "Pod train: not evaluated, because claims are not read from files; in" in checked.stderr


def test_what_makes_pods_has_the_claim_in_its_template() -> None:
    job = ROOT / "examples" / "workloads" / "job.yaml"
    done = asked(main, "claim", job, "--cluster", CLUSTERS / "mixed.yaml")
    assert done.returncode == 0
    template, made = yaml.safe_load_all(done.stdout)
    assert made["kind"] == "Job"
    assert made["spec"]["template"]["spec"]["resourceClaims"][0]["name"] == "gpus"
    assert len(requests(template)[0]["firstAvailable"]) <= 8


def test_what_is_left_out_is_reported(tmp_path: Path) -> None:
    names = ("dgx1-v100", "a100-pcie-4-bridged", "a30-4-bridged")
    groups = "---\n".join(
        GROUP.format(name).replace("n-", f"n{i}-") for i, name in enumerate(names)
    )
    done = claim(tmp_path, POD, groups)
    assert done.returncode == 0
    assert done.stderr == (
        "note: 8 × Tesla V100-SXM2-16GB, NVLink 1-2: the claim names 14 of the 16 sets of 2 GPUs "
        "with link=nvlink; its pods cannot get the other sets\n"
    )


def test_machines_that_are_not_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_STEPS", 14)  # half of them do for one
    names = ("dgx1-v100", "a100-pcie-4-bridged", "a30-4-bridged")
    groups = "---\n".join(
        GROUP.format(name).replace("n-", f"n{i}-") for i, name in enumerate(names)
    )
    done = claim(tmp_path, POD, groups)
    assert "too many kinds of machines to examine all; 2 nodes are left out\n" in done.stderr


def test_no_set_is_a_no(tmp_path: Path) -> None:
    done = claim(tmp_path, POD, GROUP.format("l40s-4"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "none of 1 nodes has a set of 2 GPUs with link=nvlink whose PCI addresses are known\n"
    )


def test_why_there_is_no_set_is_reported(tmp_path: Path) -> None:
    """It spoke of PCI addresses where no node had a record that could be used."""
    (tmp_path / "pod.yaml").write_text(POD)
    record: dict[str, Any] = codec.encode(machine("a100-pcie-4-bridged").topology("n"))
    with FakeApiServer() as fake:
        cluster = Cluster(fake, tmp_path)
        words = ("claim", tmp_path / "pod.yaml", "--kubeconfig", cluster.kubeconfig)
        fake.put(RECORDS_PATH, {**record, "spec": {"devices": "none"}})
        done = asked(main, *words)
        assert done.returncode == 1
        assert "no node has a usable record" in done.stderr
        fake.put(RECORDS_PATH, record)
        done = asked(main, *words)
    assert done.returncode == 0
    assert done.stderr == "note: no node uses DRA yet, so the claim names GPUs of all nodes\n"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{gpu-topology.io/link: nvlink}", "{}", "no required constraints"),
        ("nvlink}", "nvlink, gpu-topology.io/policy: preferred}", "no required constraints"),
        ("name: log, image: x", "name: log, image: x, resources: {limits: {nvidia.com/gpu: 1}}",
         "exactly one container must request GPUs"),
        ("nvidia.com/gpu: 2, cpu: 4}, requests: {nvidia.com/gpu: 2}", "cpu: 4}", "requests no GPU"),
        ("link: nvlink", "lnik: nvlink", "unknown key"),
        ("link: nvlink", "link: nvlink, gpu-topology.io/group: a, gpu-topology.io/group-size: '2', "
         "gpu-topology.io/group-domain: node",
         "a pod with its own ResourceClaims cannot be in a group"),
        ("nvidia.com/gpu: 2, cpu: 4}, requests: {nvidia.com/gpu: 2}",
         "nvidia.com/mig-1g.10gb: 1}", "a claim requests whole GPUs (nvidia.com/gpu), not"),
        ("spec:", "spec:\n  resourceClaims: [{name: gpus, resourceClaimName: x}]",
         "spec.resourceClaims already has a claim named gpus"),
    ],
    ids=["plain", "preferred", "two containers", "no GPUs", "a key", "a group", "MIG", "a name"],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path: Path, before: str, after: str, message: str) -> None:
    refused(claim(tmp_path, POD.replace(before, after)), message)


@pytest.mark.parametrize("machine", ["a100-pcie-4-bridged", "l40s-4"])
def test_what_can_have_no_claim_is_named(tmp_path: Path, machine: str) -> None:
    text = (ROOT / "examples" / "workloads" / "kserve.yaml").read_text()
    done = claim(tmp_path, text, GROUP.format(machine))
    refused(done, "kind InferenceService: its pods cannot have claims")


def test_every_template_that_asks_for_the_same_has_the_claim() -> None:
    path = ROOT / "examples" / "workloads" / "leaderworkerset.yaml"
    done = asked(main, "claim", path, "--cluster", CLUSTERS / "mixed.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    template, made = yaml.safe_load_all(done.stdout)
    name = template["metadata"]["name"]
    for each in ("leaderTemplate", "workerTemplate"):
        spec = made["spec"]["leaderWorkerTemplate"][each]["spec"]
        assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": name}]
        (container,) = spec["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 0
        assert container["resources"]["claims"] == [{"name": "gpus"}]


def test_a_template_that_asks_for_something_else_is_reported_and_stays(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "workloads" / "leaderworkerset.yaml").read_text()
    first, _, last = text.rpartition("nvidia.com/gpu: 8")
    done = claim(tmp_path, f"{first}nvidia.com/gpu: 4{last}", GROUP.format("dgx-h100"))
    assert done.returncode == 0
    assert done.stderr == (
        "note: LeaderWorkerSet also creates other pods, which are not evaluated here: "
        "4 GPUs link=nvlink\n"
    )
    assert done.stdout.count("resourceClaims") == 1


def test_what_has_no_effect_is_reported(tmp_path: Path) -> None:
    done = claim(tmp_path, POD.replace("{gpu-", "{gpu-topolgy.io/nic: pix, gpu-"))
    assert done.returncode == 0
    assert done.stderr.startswith("note: annotation gpu-topolgy.io/nic has no effect")


def test_the_container_that_asks_for_some_has_the_claim(tmp_path: Path) -> None:
    none = "name: log, image: x, resources: {limits: {nvidia.com/gpu: 0}}"
    done = claim(tmp_path, POD.replace("name: log, image: x", none))
    assert done.returncode == 0
    log, main_ = list(yaml.safe_load_all(done.stdout))[1]["spec"]["containers"]
    assert log["resources"] == {"limits": {"nvidia.com/gpu": 0}}
    assert main_["resources"]["claims"] == [{"name": "gpus"}]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("spec:", "spec:\n  resourceClaims:"),
        ("cpu: 4},", "cpu: 4}, claims: null,"),
        ("limits: {nvidia.com/gpu: 2, cpu: 4}, ", "limits: null, "),
    ],
    ids=["no claims", "no claims of a container", "no limits"],
)
def test_what_is_written_empty_is_filled(tmp_path: Path, before: str, after: str) -> None:
    done = claim(tmp_path, POD.replace(before, after))
    assert done.returncode == 0
    pod = list(yaml.safe_load_all(done.stdout))[1]
    assert len(pod["spec"]["resourceClaims"]) == 1
    resources = pod["spec"]["containers"][1]["resources"]
    assert (resources["claims"], resources["requests"]) == ([{"name": "gpus"}], {})
    assert resources["limits"]["nvidia.com/gpu"] == 0


def test_a_pod_of_a_list_has_the_claim(tmp_path: Path) -> None:
    items = [{"kind": "Service", "metadata": {"name": "web"}}, yaml.safe_load(POD)]
    done = claim(tmp_path, yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    assert done.returncode == 0
    template, made = yaml.safe_load_all(done.stdout)
    assert template["metadata"] == {"name": "train-gpus"}
    assert made["items"][0] == items[0]
    assert made["items"][1]["spec"]["resourceClaims"][0]["name"] == "gpus"


def test_templates_that_are_one_by_an_alias_have_one_claim(tmp_path: Path) -> None:
    template = {key: yaml.safe_load(POD)[key] for key in ("metadata", "spec")}
    twice = {"leaderWorkerTemplate": {"leaderTemplate": template, "workerTemplate": template}}
    made = {"kind": "LeaderWorkerSet", "metadata": {"name": "train"}, "spec": twice}
    done = claim(tmp_path, yaml.safe_dump(made))
    assert done.returncode == 0
    assert done.stdout.count("resourceClaimTemplateName") == 1


def test_machines_without_dra_are_left_out_where_some_have_it(tmp_path: Path) -> None:
    record: dict[str, Any] = codec.encode(machine("a100-pcie-4-bridged").topology("dra"))
    record["spec"]["allocator"] = {"policy": "dra", "published": [3, 1, 0, 2]}
    cluster = f"{GROUP.format('dgx1-v100')}---\n{yaml.safe_dump(record)}"
    done = claim(tmp_path, POD, cluster)
    assert (done.returncode, done.stderr) == (0, "")
    assert "V100" not in done.stdout
    assert done.stdout.count("productName") == 2


def test_unreadable_parts_of_the_cluster_are_reported(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    with FakeApiServer() as fake:
        cluster = Cluster(fake, tmp_path)
        cluster.node(bridged())
        fake.refuse(403, None, path=NODES_PATH)
        done = asked(main, "claim", tmp_path / "pod.yaml", "--kubeconfig", cluster.kubeconfig)
    assert done.stderr.startswith("note: you may not list nodes: ")


def test_products_are_distinguished() -> None:
    found = selector([("A", "0000:01:00.0"), ("B", "0000:02:00.0"), ("A", "0000:03:00.0")])
    assert found.count(" || ") == 1
    assert 'productName == "A" && ' in found
    assert '["0000:01:00.0", "0000:03:00.0"]' in found
